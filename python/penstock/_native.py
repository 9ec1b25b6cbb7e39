"""ctypes bindings of libpenstock_torch.so and, once it is open, of the engine.

The shim opens the engine at the first CUDA allocation. Nothing here opens it
earlier, except ``start``: a process that never allocates on the GPU stays free
of it and may fork at will.
"""

from __future__ import annotations

import ctypes
import json
import os
from pathlib import Path
from typing import Any

from ._errors import PenstockError

_POOLS = ("all", "small_pool", "large_pool")
_METRICS = ("current", "peak", "allocated", "freed")


class Native:
    """The shim library of this process."""

    def __init__(self, shim: Path, engine: Path, known_exceptions: bool) -> None:
        try:
            self._lib = ctypes.CDLL(str(shim))
        except OSError as e:
            if "GLIBC_" in str(e):
                mine = os.confstr("CS_GNU_LIBC_VERSION")
                raise PenstockError(f"this machine's C library, {mine}, is too old ({e}); use a newer system or container image, or build Penstock here with `make wheel`") from None
            raise PenstockError(f"cannot load {shim}: {e}") from None
        lib = self._lib
        lib.penstock_torch_setup.restype = ctypes.c_char_p
        lib.penstock_torch_setup.argtypes = [ctypes.c_char_p, ctypes.c_int]
        lib.penstock_torch_start.restype = ctypes.c_char_p
        lib.penstock_torch_start.argtypes = [ctypes.c_int]
        lib.penstock_torch_started.restype = ctypes.c_int
        lib.penstock_torch_device.restype = ctypes.c_int
        lib.penstock_torch_engine.restype = ctypes.c_void_p
        lib.penstock_torch_adopt.restype = ctypes.c_int
        lib.penstock_torch_adopt.argtypes = [ctypes.c_int]
        lib.penstock_torch_memory_fraction.restype = ctypes.c_double
        lib.penstock_torch_memory_fraction.argtypes = [ctypes.c_int]
        lib.penstock_torch_counters.argtypes = [ctypes.POINTER(ctypes.c_int64)]
        lib.penstock_torch_record_history.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_uint, ctypes.c_int]
        lib.penstock_torch_history_enabled.restype = ctypes.c_int
        lib.penstock_torch_note_snapshot.argtypes = [ctypes.c_int, ctypes.c_int64]
        lib.penstock_torch_set_metadata.argtypes = [ctypes.c_char_p]
        lib.penstock_torch_annotate.argtypes = [ctypes.c_uint64, ctypes.c_int, ctypes.c_char_p]
        lib.penstock_torch_history.restype = ctypes.c_long
        lib.penstock_torch_history.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int]
        for name in ("close", "empty_cache", "reset_peak", "reset_accumulated", "counters", "record_history", "note_snapshot", "set_metadata", "annotate"):
            getattr(lib, "penstock_torch_" + name).restype = None
        self.path = shim
        self._engine: Any = None
        error = lib.penstock_torch_setup(str(engine).encode(), known_exceptions)
        if error:
            raise PenstockError(error.decode(errors="replace"))

    def address(self, name: str) -> int:
        """The address of a function of the shim, for PyTorch's setters."""
        address = ctypes.cast(getattr(self._lib, name), ctypes.c_void_p).value
        assert address is not None
        return address

    def adopt(self, known_pools: bool) -> int:
        return int(self._lib.penstock_torch_adopt(known_pools))

    def started(self) -> bool:
        return bool(self._lib.penstock_torch_started())

    def start(self, device: int) -> None:
        """Starts the engine as the first allocation on the device would."""
        error = self._lib.penstock_torch_start(device)
        if error:
            text = error.decode(errors="replace")
            raise PenstockError(text[len("penstock: ") :] if text.startswith("penstock: ") else text)

    def device(self) -> int | None:
        device = int(self._lib.penstock_torch_device())
        return device if device >= 0 else None

    def close(self) -> None:
        self._lib.penstock_torch_close()

    def empty_cache(self) -> None:
        self._lib.penstock_torch_empty_cache()

    def reset_peak(self) -> None:
        self._lib.penstock_torch_reset_peak()

    def reset_accumulated(self) -> None:
        self._lib.penstock_torch_reset_accumulated()

    def memory_fraction(self, device: int) -> float:
        return float(self._lib.penstock_torch_memory_fraction(device))

    def counters(self) -> dict[str, dict[str, dict[str, int]]]:
        """Requests: pool -> "count" or "bytes" -> metric -> number."""
        out = (ctypes.c_int64 * 24)()
        self._lib.penstock_torch_counters(out)
        return {
            pool: {
                kind: {metric: int(out[p * 8 + k * 4 + m]) for m, metric in enumerate(_METRICS)}
                for k, kind in enumerate(("count", "bytes"))
            }
            for p, pool in enumerate(_POOLS)
        }

    def stats(self) -> dict[str, Any] | None:
        """The engine's statistics; None when it has not been started."""
        engine = self._opened()
        if engine is None:
            return None
        values: dict[str, Any] = json.loads(_text(engine.penstock_stats))
        # The engine says -1 for what it cannot know (everything is a count); None
        # cannot be mistaken for a number.
        for key, value in values.items():
            if isinstance(value, (int, float)) and value == -1:
                values[key] = None
        return values

    def segments(self) -> list[dict[str, Any]]:
        """How memory is laid out, as penstock_snapshot says (cabi/penstock.h)."""
        engine = self._opened()
        found: list[dict[str, Any]] = json.loads(_text(engine.penstock_snapshot))["segments"] if engine is not None else []
        return found

    def record_history(self, stacks: int, max_entries: int, skipped: int, clear: bool) -> None:
        self._lib.penstock_torch_record_history(stacks, max(0, min(max_entries, (1 << 63) - 1)), skipped, clear)

    def history_enabled(self) -> bool:
        return bool(self._lib.penstock_torch_history_enabled())

    def note_snapshot(self, device: int, allocated: int) -> None:
        self._lib.penstock_torch_note_snapshot(device, allocated)

    def set_metadata(self, text: str) -> None:
        """What the calling thread's entries have from now on."""
        self._lib.penstock_torch_set_metadata(text.encode())

    def annotate(self, address: int, text: str) -> None:
        self._lib.penstock_torch_annotate(address, self._lib.penstock_torch_device(), text.encode())

    def history(self, entries: bool) -> dict[str, Any]:
        """What is recorded, as penstock_torch_history says (cabi/torch/penstock_torch.h)."""
        values: dict[str, Any] = json.loads(_text(lambda buffer, capacity: self._lib.penstock_torch_history(buffer, capacity, entries)))
        return values

    def _opened(self) -> Any:
        handle = self._lib.penstock_torch_engine()
        if not handle:
            return None
        if self._engine is None:
            engine = ctypes.CDLL("libpenstock.so", handle=handle)
            for name in ("penstock_stats", "penstock_snapshot", "penstock_last_error"):
                getattr(engine, name).restype = ctypes.c_long
                getattr(engine, name).argtypes = [ctypes.c_char_p, ctypes.c_size_t]
            self._engine = engine
        return self._engine


def _text(get: Any) -> str:
    capacity = 4096
    while True:
        buffer = ctypes.create_string_buffer(capacity)
        needed = int(get(buffer, capacity))
        if needed < 0:
            raise PenstockError("the engine gave no answer")
        if needed < capacity:
            return buffer.value.decode(errors="replace")
        capacity = needed + needed // 8 + 1  # it may have grown when it is asked for again
