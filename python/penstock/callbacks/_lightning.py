"""For the Trainer of Lightning, in either of its packages."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from .._errors import PenstockError
from .._scalars import Meter


def _base() -> Any:
    # A Trainer takes callbacks of its own package only: the one that the program has imported is meant.
    names = sorted(("lightning.pytorch", "pytorch_lightning"), key=lambda name: name not in sys.modules)
    failed = None
    for name in names:
        try:
            return importlib.import_module(name).Callback
        except ImportError as e:
            failed = failed or e
    raise PenstockError(f"Lightning cannot be imported ({failed}); install it with `pip install penstock[lightning]`")


class LightningCallback(_base()):  # type: ignore[misc]
    """Logs Penstock's figures to the Trainer's loggers, every ``log_every_n_steps``.

    trainer = Trainer(callbacks=[LightningCallback()])
    """

    def __init__(self) -> None:
        super().__init__()
        self._meter = Meter()
        self._logged = -1

    def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
        step = trainer.global_step
        if not trainer.loggers or step == self._logged or step % max(1, trainer.log_every_n_steps):
            return  # with accumulated gradients several batches are one step
        self._logged = step
        values = self._meter.read()
        if values:
            for logger in trainer.loggers:
                logger.log_metrics(values, step=step)
