"""Where the native libraries are.

A wheel carries them in ``penstock/lib``; a checkout has them in ``lib`` beside
``python``; PENSTOCK_LIB names any other folder and comes first.
"""

from __future__ import annotations

import os
from pathlib import Path

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
