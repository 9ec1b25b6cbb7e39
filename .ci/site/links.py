"""What the site's pages say of files outside docs/: such a link leads to the repository, and the file has to be there."""

import posixpath
import re
from pathlib import Path

from mkdocs.exceptions import PluginError

LINK = re.compile(r"(\]\()(\.\./[^)#\s]+)(#[^)\s]*)?(\))")


def on_page_markdown(markdown, page, config, files):
    root = Path(config.config_file_path).parent

    def lead(match):
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page.file.src_uri), match[2]))
        if not (root / path).exists():
            raise PluginError(f"{page.file.src_uri}: link to {path}, which is not in the repository")
        kind = "tree" if (root / path).is_dir() else "blob"
        return f"{match[1]}{config.repo_url}/{kind}/main/{path}{match[3] or ''}{match[4]}"

    return LINK.sub(lead, markdown)
