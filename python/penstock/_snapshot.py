"""torch.cuda.memory's snapshots and history, of Penstock's memory.

What is allocated where comes from the engine, whenever it was allocated; the
history, and the stack of each live allocation, from the shim while it records.
The formats are those that PyTorch documents (``torch.cuda.memory._snapshot``),
so that its tools read them.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Any
from collections.abc import Iterable

from . import _segment_events
from ._native import Native

_STACKS = {None: 1, "state": 2, "alloc": 3, "all": 4}  # as penstock_torch_record_history has them
_ACTIONS = ("alloc", "free_requested", "free_completed", "oom", "snapshot", "annotate", "segment_alloc", "segment_free")  # by bit


class _BadArgument(ValueError, RuntimeError):
    """PyTorch's own is a RuntimeError with the same words."""


def record(
    native: Native,
    enabled: str | None = "all",
    context: str | None = "all",
    stacks: str = "all",
    max_entries: int = sys.maxsize,
    clear_history: bool = False,
    compile_context: bool = False,
    global_record_annotations: bool = False,
    skip_actions: Iterable[str] = (),
    record_pinned_host_memory: bool = False,
    record_cuda: bool = True,
) -> None:
    """torch._C._cuda_record_memory_history. Frames are Python's, whatever stacks says."""
    if enabled not in (None, "state", "all"):
        raise _BadArgument("expected state to be 'state', 'all', or None")
    if context not in _STACKS:
        raise _BadArgument("expected context to be 'state', 'alloc', 'all', or None")
    if stacks not in ("python", "all"):
        raise _BadArgument("expected stacks to be 'python', or 'all'")
    _start(native, enabled is not None and record_cuda, context, max_entries if enabled == "all" else 0, clear_history, skip_actions, record_pinned_host_memory)


def record_legacy(
    native: Native,
    enabled: bool,
    record_context: bool = True,
    trace_alloc_max_entries: int = 1,
    trace_alloc_record_context: bool = False,
    record_context_cpp: bool = False,
    clear_history: bool = False,
    compile_context: bool = False,
    global_record_annotations: bool = False,
    skip_actions: Iterable[str] = (),
    record_pinned_host_memory: bool = False,
    record_cuda: bool = True,
) -> None:
    """torch._C._cuda_record_memory_history_legacy."""
    context = "alloc" if trace_alloc_record_context else "state" if record_context else None
    _start(native, enabled and record_cuda, context, trace_alloc_max_entries, clear_history, skip_actions, record_pinned_host_memory)


def _start(native: Native, on: bool, context: str | None, max_entries: int, clear: bool, skip_actions: Iterable[str], host: bool) -> None:
    if host:
        raise NotImplementedError("record_pinned_host_memory is not available under Penstock")
    skipped = sum(1 << _ACTIONS.index(a) for a in set(skip_actions) if a in _ACTIONS)
    native.record_history(_STACKS[context] if on else 0, max_entries, skipped, clear)


def snapshot(native: Native, devices: int, which: Any = None) -> dict[str, Any]:
    """torch._C._cuda_memorySnapshot: of everything, or of a pool by its id, which may say whether the history is wanted."""
    pool, wants_history = _parsed(which)
    device = native.device()
    found = native.segments() if device is not None else []
    if device is not None:
        native.note_snapshot(device, sum(b["requested_size"] for s in found for b in s["blocks"] if b["state"] == "active_allocated"))
    history = native.history(wants_history)
    stacks = _stacks(history)
    frames = {address: stacks[number] for address, number in history["live"]}
    traces: list[list[dict[str, Any]]] = [[] for _ in range(max(devices, -1 if device is None else device + 1))]
    for action, on, address, size, stream, time, stack, metadata in history["entries"]:
        traces[on].append(
            {
                "action": _ACTIONS[action],
                "device_free" if _ACTIONS[action] == "oom" else "addr": address,
                "size": size,
                "stream": stream,
                "time_us": time,
                "frames": stacks[stack],
                "compile_context": "N/A",
                "user_metadata": history["metadata"][metadata],
            }
        )
    if device is not None:
        whole = _segment_events.added(traces[device], found)
        wanted = [e for e in whole if not history["skipped"] >> _ACTIONS.index(e["action"]) & 1]
        traces[device] = wanted[max(0, len(wanted) - history["max_entries"]) :]
    return {
        "segments": [_segment(s, device, frames) for s in found if pool in ((0, 0), tuple(s["pool"]))],
        "device_traces": traces,
        "allocator_settings": {
            "PYTORCH_CUDA_ALLOC_CONF": os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""),
            "max_split_size": -1,
            "garbage_collection_threshold": 0.0,
            "expandable_segments": False,
        },
        "external_annotations": [],
    }


def traceback(native: Native, address: int) -> list[dict[str, Any]] | None:
    """torch._C._cuda_allocationTraceback."""
    history = native.history(False)
    number = dict(history["live"]).get(address)
    return None if number is None else _stacks(history)[number]


class Metadata:
    """What a thread says of whatever it allocates and frees: torch._C._cuda_setMemoryMetadata and _cuda_getMemoryMetadata."""

    def __init__(self, native: Native) -> None:
        self._native, self._of = native, threading.local()

    def set(self, text: str) -> None:
        self._native.set_metadata(text)
        self._of.text = text

    def get(self) -> str:
        return getattr(self._of, "text", "")


def _parsed(which: Any) -> tuple[tuple[int, int], bool]:
    if which is None:
        return (0, 0), True
    if not isinstance(which, tuple):
        raise _BadArgument("Expected tuple or None")
    if len(which) not in (2, 3):
        raise _BadArgument("Expected tuple of size 2 or 3")
    if not all(isinstance(x, int) for x in which[:2]):
        raise _BadArgument("mempool_id elements must be integers")
    return (which[0], which[1]), bool(which[2]) if len(which) == 3 else True


def _stacks(history: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The stacks by number; what is alike in several is there once, which keeps a pickle of them small."""
    codes = history["codes"]
    frames = [{"filename": codes[code][0], "line": line, "name": codes[code][1]} for code, line in history["frames"]]
    return [[frames[i] for i in stack] for stack in history["stacks"]]


def _segment(s: dict[str, Any], device: int | None, frames: dict[int, list[dict[str, Any]]]) -> dict[str, Any]:
    blocks = s["blocks"]
    live = [b for b in blocks if b["state"] in _segment_events.LIVE]
    for b in blocks:
        b["frames"] = frames.get(b["address"], []) if b["state"] == "active_allocated" else []
    return {
        "device": device,
        "address": s["address"],
        "total_size": s["total_size"],
        "allocated_size": sum(b["size"] for b in live if b["state"] == "active_allocated"),
        "active_size": sum(b["size"] for b in live),
        "requested_size": sum(b["requested_size"] for b in live),
        "stream": s["stream"],
        "segment_type": "small" if s["small"] else "large",
        "segment_pool_id": tuple(s["pool"]),
        "is_expandable": False,
        "frames": [],
        "blocks": blocks,
        "penstock_on_device_bytes": s["on_device_bytes"],
    }
