"""Logs what Penstock counts where a training program logs its loss.

    from penstock.callbacks import TrainerCallback        # Hugging Face Trainer: pip install penstock[trainer]
    from penstock.callbacks import LightningCallback      # Lightning: pip install penstock[lightning]
    from penstock.callbacks import TensorBoardWriter      # a loop of one's own: pip install penstock[tensorboard]

All log ``penstock.scalars()``, whose documentation has the names, with rates since
the last time: ``penstock/to_gpu_bytes_per_second``, ``penstock/from_gpu_bytes_per_second``,
``penstock/made_again_bytes_per_second`` and ``penstock/stall_share``. Where Penstock
does not run they log nothing. A library is imported when its class is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._lightning import LightningCallback
    from ._tensorboard import TensorBoardWriter
    from ._trainer import TrainerCallback

__all__ = ["LightningCallback", "TensorBoardWriter", "TrainerCallback"]


def __getattr__(name: str) -> Any:
    if name == "TrainerCallback":
        from ._trainer import TrainerCallback as found
    elif name == "LightningCallback":
        from ._lightning import LightningCallback as found
    elif name == "TensorBoardWriter":
        from ._tensorboard import TensorBoardWriter as found
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
