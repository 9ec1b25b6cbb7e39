"""Penstock lets a training job use more memory than the GPU has.

    import penstock
    penstock.enable(budget="24GiB")     # before the first CUDA call

or, without touching the script::

    penstock run --budget 24GiB -- python train.py

``enable`` installs Penstock's allocator in PyTorch. From then on tensors may
add up to more than the device's budget; what does not fit is kept in host
memory and moved before it is needed. ``torch.cuda.memory_allocated`` and its
relatives report Penstock's numbers.

Importing this package is cheap: it loads neither PyTorch nor a native library.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ._errors import PenstockError, PenstockWarning
from ._version import __version__

if TYPE_CHECKING:
    from . import optim as optim
    from ._runtime import disable, enable, is_enabled, stats
    from ._scalars import scalars

__all__ = ["PenstockError", "PenstockWarning", "__version__", "disable", "enable", "is_enabled", "scalars", "stats"]


# The rest is imported on use: every Python process under `penstock run` imports
# this package, and most of them never touch a GPU.
def __getattr__(name: str) -> Any:
    if name in ("disable", "enable", "is_enabled", "stats"):
        from . import _runtime

        return getattr(_runtime, name)
    if name == "scalars":
        from . import _scalars

        return _scalars.scalars
    if name == "optim":
        return importlib.import_module(".optim", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
