"""For the Trainer of Hugging Face's transformers."""

from __future__ import annotations

from typing import Any

from .._errors import PenstockError
from .._scalars import Meter

try:
    from transformers import TrainerCallback as _Base
except ImportError as e:
    raise PenstockError(f"transformers cannot be imported ({e}); install it with `pip install penstock[trainer]`") from None


class TrainerCallback(_Base):
    """Adds Penstock's figures to what the Trainer logs, each time that it logs.

        trainer = Trainer(...)
        TrainerCallback().attach(trainer)

    ``attach`` puts it before the callbacks that write logs, such as TensorBoard's,
    so that they have the figures. Given as ``Trainer(callbacks=[TrainerCallback()])``
    it stands behind these: then the figures are in ``trainer.state.log_history`` only.
    """

    def __init__(self) -> None:
        self._meter = Meter()

    def attach(self, trainer: Any) -> TrainerCallback:
        trainer.callback_handler.callbacks.insert(0, self)
        return self

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        if logs is None or not state.is_world_process_zero:
            return
        values = self._meter.read()
        logs.update(values)
        if state.log_history:  # its last entry is a copy of logs
            state.log_history[-1].update(values)
