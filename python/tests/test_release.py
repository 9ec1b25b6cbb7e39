"""The version is written in one place, and a tag has to agree with it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from conftest import REPO


def git(folder: Path, *args: str) -> str:
    return subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b.c", *args], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository of what decides on a version."""
    for name in ("Makefile", "release/make", "python/penstock/_version.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPO / name, tmp_path / name)
    (tmp_path / "python/penstock/_version.py").write_text('__version__ = "1.2.3"\n')
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "--all")
    git(tmp_path, "commit", "--quiet", "--message", "a release")
    return tmp_path


def version(folder: Path) -> str:
    return subprocess.run(["make", "--silent", "--eval", "show: ; @echo $(VERSION)", "show"], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def test_a_build_between_releases_names_its_commit(checkout):
    commit = git(checkout, "rev-parse", "--short", "HEAD")
    assert version(checkout) == f"1.2.3+{commit}"
    git(checkout, "tag", "v1.2.2")
    assert version(checkout) == f"1.2.3+{commit}"


def test_the_commit_of_the_tag_is_of_that_version(checkout):
    git(checkout, "tag", "v1.2.3")
    assert version(checkout) == "1.2.3"
    (checkout / "Makefile").open("a").write("# changed\n")
    assert version(checkout).startswith("1.2.3+") and version(checkout).endswith("-dirty")


def test_a_tag_that_is_not_the_version_is_refused(checkout):
    git(checkout, "tag", "v1.2.4")
    done = subprocess.run(["release/make"], cwd=checkout, capture_output=True, text=True)
    assert done.returncode == 1 and "the tag v1.2.4 is not the version v1.2.3" in done.stderr
