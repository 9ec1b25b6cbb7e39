"""The figures of stats() that loggers plot: few, flat, with names that stay."""

from __future__ import annotations

import time
from typing import Any

# What is logged, by its name after "penstock/": the figure of stats(), or of its "explicit" part.
_FIGURES = {
    "resident_bytes": ("resident_bytes",),
    "allocated_bytes": ("allocated_bytes",),
    "budget_bytes": ("budget_bytes",),
    "host_bytes": ("explicit", "host_bytes"),
    "to_gpu_bytes": ("h2d_bytes",),
    "from_gpu_bytes": ("d2h_bytes",),
    "made_again_bytes": ("explicit", "made_bytes"),
    "faults": ("faults",),
    "stall_seconds": ("stall_seconds",),
    "prediction_hit_rate": ("prediction_hit_rate",),
    "iteration_seconds": ("iteration_seconds",),
    "in_memory_share": ("in_memory_share_estimated",),
}
# Sums of which loggers plot how fast they grow, too.
_RATES = {
    "to_gpu_bytes": "to_gpu_bytes_per_second",
    "from_gpu_bytes": "from_gpu_bytes_per_second",
    "made_again_bytes": "made_again_bytes_per_second",
    "stall_seconds": "stall_share",
}


def scalars() -> dict[str, float]:
    """A flat dict of numbers for a logger, with names that begin with ``penstock/``.

    ``resident_bytes`` of ``allocated_bytes`` are on the device, of ``budget_bytes``;
    ``host_bytes`` are in host memory. ``to_gpu_bytes`` and ``from_gpu_bytes`` were
    copied over the bus so far, ``made_again_bytes`` computed again instead;
    ``faults`` are page faults. Launches waited for ``stall_seconds`` in all.
    ``prediction_hit_rate`` is the part of operations that were foreseen.
    ``iteration_seconds`` is how long an iteration takes at present, and
    ``in_memory_share`` which part of the speed in memory that is, an estimate.

    What is not known is left out. Where Penstock has not started the dict is empty.
    """
    from ._runtime import stats

    return flat(stats())


def flat(stats: dict[str, Any]) -> dict[str, float]:
    values: dict[str, float] = {}
    if not stats.get("started"):
        return values
    for name, path in _FIGURES.items():
        value: Any = stats
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        if isinstance(value, (int, float)) and not isinstance(value, bool) and not (name == "iteration_seconds" and value == 0):
            values["penstock/" + name] = float(value)
    return values


class Meter:
    """scalars() with rates since the last time: ``to_gpu_bytes_per_second``, ``stall_share`` and the like."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}
        self._at = 0.0

    def read(self) -> dict[str, float]:
        now, values = time.monotonic(), scalars()
        last, seconds = self._last, now - self._at
        self._last, self._at = dict(values), now
        for name, rate in _RATES.items():
            key = "penstock/" + name
            if key in values and key in last and seconds > 0:
                values["penstock/" + rate] = max(0.0, values[key] - last[key]) / seconds
        return values
