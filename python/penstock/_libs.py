"""Where the native libraries are.

A wheel carries them in ``penstock/lib``; a checkout has them in ``lib`` beside
``python``; PENSTOCK_LIB names any other folder and comes first.
"""

from __future__ import annotations

import os
from pathlib import Path
from collections.abc import Mapping

from ._errors import PenstockError

ENGINE = "libpenstock.so"
HOOK = "libpenstock_hook.so"
TORCH = "libpenstock_torch.so"


def candidates() -> list[Path]:
    """The folders that are looked in, in order."""
    named = os.environ.get("PENSTOCK_LIB")
    if named:
        # A folder that was named is meant: no other is tried in its place.
        return [Path(named)]
    package = Path(__file__).resolve().parent
    return [package / "lib", package.parent.parent / "lib"]


def find(name: str) -> Path:
    """The path of a library. Raises PenstockError naming the folders when there is none."""
    tried = candidates()
    for folder in tried:
        path = folder / name
        if path.is_file():
            return path.resolve()
    where = ", ".join(str(folder) for folder in tried)
    if os.environ.get("PENSTOCK_LIB"):
        raise PenstockError(f"{name} is not in {where}, the folder that PENSTOCK_LIB names; correct or unset it")
    raise PenstockError(f"{name} was not found (looked in {where}); run `make build`, or set PENSTOCK_LIB to its folder")


def preload(hook: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that have the dynamic loader load a library before a program's own.

    LD_PRELOAD's paths end at spaces too; the folders of LD_LIBRARY_PATH do not,
    so a library whose path has some is named there and found here.
    """
    folder, name = os.path.split(hook)
    if any(c in folder for c in ":;$"):
        raise PenstockError(f"{hook} cannot be preloaded because its path has one of : ; $; move Penstock, or set PENSTOCK_LIB to a folder without them")

    def first(variable: str, entry: str) -> str:
        return f"{entry}:{environ[variable]}" if environ.get(variable) else entry

    if " " in folder:
        return {"LD_LIBRARY_PATH": first("LD_LIBRARY_PATH", folder), "LD_PRELOAD": first("LD_PRELOAD", name)}
    return {"LD_PRELOAD": first("LD_PRELOAD", hook)}
