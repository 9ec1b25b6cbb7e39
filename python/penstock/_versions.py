"""The versions of PyTorch that Penstock was tried with, and what it may rely on in others.

Most of what Penstock needs of PyTorch is asked for by name and found or missing.
Three things are layouts of PyTorch's own memory, which a version may change and
keep the names: that of the exception which reports out of memory, those of
the lists of tensors which its kernels are given, and where its allocators have
the functions for pools of memory. They are relied on only where
they were seen to hold.
"""

from __future__ import annotations

import re
from typing import NamedTuple

# The first whose pluggable allocator can be told when a CUDA graph begins to allocate from a pool of its own.
OLDEST = "2.3"


class Layouts(NamedTuple):
    exception: bool  # c10::OutOfMemoryError; otherwise out of memory is a RuntimeError
    lists: bool  # which addresses of a list a kernel uses; otherwise all of them count
    pools: bool  # torch.cuda.MemPool, and torch.compile(mode="reduce-overhead"); otherwise PyTorch raises


TRIED = {
    "2.11": Layouts(exception=True, lists=True, pools=True),
    "2.15": Layouts(exception=False, lists=False, pools=True),
}
NOTHING = Layouts(exception=False, lists=False, pools=False)


def series(version: str) -> str:
    """``2.11`` of ``2.11.0+cu130``; a development version is of no series."""
    m = re.fullmatch(r"(\d+\.\d+)\.\d+(?:\.post\d+)?(?:\+.*)?", version)
    return m[1] if m else version


def layouts(version: str) -> tuple[Layouts, str | None]:
    """What may be relied on in a version, and a warning for one that was not tried."""
    known = TRIED.get(series(version), NOTHING)
    without = (
        "out of memory is a RuntimeError here, not torch.OutOfMemoryError",
        "lists of tensors count whole, which costs speed",
        'torch.cuda.MemPool and torch.compile(mode="reduce-overhead") raise',
    )
    lost = [what for holds, what in zip(known, without) if not holds]
    if not lost:
        return known, None
    tried = [s for s, x in TRIED.items() if all(x)]
    return known, f"PyTorch {version} was not tried in full: {'; '.join(lost)}; use PyTorch {' or '.join(tried)} for the whole"
