"""For training loops that write to TensorBoard themselves, or have nothing that does."""

from __future__ import annotations

from typing import Any

from .._errors import PenstockError
from .._scalars import Meter


class TensorBoardWriter:
    """Writes Penstock's figures to TensorBoard.

        writer = TensorBoardWriter("runs/penstock")     # or a SummaryWriter
        for step, batch in enumerate(loader):
            ...
            writer.log(step)

    Args:
        where: a folder, or a SummaryWriter that exists.
        every: how many steps apart figures are written.
    """

    def __init__(self, where: Any, every: int = 10) -> None:
        if every < 1:
            raise PenstockError(f"every is a number of steps, at least 1, not {every}")
        self._meter, self._every = Meter(), every
        self._own = not hasattr(where, "add_scalar")
        self._writer = _writer(where) if self._own else where

    def log(self, step: int) -> None:
        """Writes the figures as of a step; those between every so many are left out."""
        if step % self._every == 0:
            for name, value in self._meter.read().items():
                self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Closes the writer, unless it was given one."""
        if self._own:
            self._writer.close()


def _writer(folder: Any) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as e:
        raise PenstockError(f"TensorBoard cannot be imported ({e}); install it with `pip install penstock[tensorboard]`") from None
    return SummaryWriter(str(folder))
