"""PyTorch's memory statistics, with Penstock's numbers.

PyTorch's pluggable allocator has no statistics, nor snapshots: every function that asks for
them raises. Two layers are replaced. The functions of ``torch._C`` that return
raw statistics get ours, so that everything PyTorch builds on them in Python
(``torch.cuda.memory_stats``, ``memory_allocated``, ``torch.accelerator.*``, and
whatever calls ``torch._C`` directly) works as it is. Functions that do not go
through them (``mem_get_info``) or would show what has no meaning here
(``memory_summary``) are replaced in both modules that export them.

Statistics without a meaning under Penstock (segments, split and oversize
blocks) are zero, as PyTorch itself does with its cudaMallocAsync backend.
"""

from __future__ import annotations

import functools
from typing import Any
from collections.abc import Callable

from . import _snapshot
from ._native import Native

_METRICS = ("current", "peak", "allocated", "freed")
_POOLS = ("all", "small_pool", "large_pool")

def _zero() -> dict[str, int]:
    return dict.fromkeys(_METRICS, 0)


def _zero_pools() -> dict[str, dict[str, int]]:
    return {pool: _zero() for pool in _POOLS}


def nested_stats(native: Native, device: int) -> dict[str, Any]:
    """The statistics of a device in the shape of torch.cuda.memory_stats_as_nested_dict."""
    stats: dict[str, Any] = {
        "num_alloc_retries": 0,
        "num_ooms": 0,
        "num_oom_rejections": 0,
        "num_sync_all_streams": 0,
        "num_device_alloc": 0,
        "num_device_free": 0,
        "reserved_bytes_by_private_pools": {},
        "max_split_size": -1,
        "oversize_allocations": _zero(),
        "oversize_segments": _zero(),
    }
    for name in ("segment", "inactive_split", "inactive_split_bytes", "reserved_bytes"):
        stats[name] = _zero_pools()
    engine = native.stats() if device == native.device() else None
    if engine is None:
        for name in ("allocation", "active", "allocated_bytes", "active_bytes", "requested_bytes"):
            stats[name] = _zero_pools()
        return stats

    counters = native.counters()
    requested = {pool: dict(counters[pool]["bytes"]) for pool in _POOLS}
    counts = {pool: dict(counters[pool]["count"]) for pool in _POOLS}
    # Current and peak are what the engine gave out, rounding included; it does
    # not keep running totals, so those are of what was asked for.
    allocated = {pool: dict(requested[pool]) for pool in _POOLS}
    allocated["all"].update(current=int(engine["allocated_bytes"]), peak=int(engine["allocated_peak_bytes"]))
    stats["requested_bytes"] = requested
    stats["allocation"] = counts
    stats["active"] = {pool: dict(counts[pool]) for pool in _POOLS}
    stats["allocated_bytes"] = allocated
    stats["active_bytes"] = {pool: dict(allocated[pool]) for pool in _POOLS}
    stats["reserved_bytes"]["all"].update(current=int(engine["reserved_bytes"]), peak=int(engine["reserved_peak_bytes"]))
    stats["num_alloc_retries"] = int(engine["retries"])
    stats["num_ooms"] = int(engine["ooms"])
    return stats


def memory_info(native: Native, device: int) -> tuple[int, int]:
    """Free and total bytes of a device: what is left of the budget, and the budget."""
    if not native.started():
        native.start(device)
    if device != native.device():
        raise NotImplementedError(f"Penstock runs on device {native.device()}; there are no figures of device {device}")
    engine = native.stats() or {}
    total = int(engine["device_total_bytes"])
    budget = int(engine.get("budget_bytes") or 0)
    if 0 < budget < total:
        total = budget
    return min(int(engine["device_free_bytes"]), total), total


def summary(native: Native, device: int, abbreviated: bool) -> str:
    """A table for people, of what Penstock knows."""
    engine = native.stats() if device == native.device() else None
    head = f"Penstock memory summary, device {device}"
    if engine is None:
        return f"{head}: nothing allocated yet\n"

    def size(v: float | None) -> str:
        if v is None:
            return "unavailable"
        for unit in ("bytes", "KiB", "MiB", "GiB"):
            if abs(v) < 1024 or unit == "GiB":
                return f"{v:.0f} {unit}" if unit == "bytes" else f"{v:.2f} {unit}"
            v /= 1024
        raise AssertionError("unreachable")

    def number(v: Any) -> str:
        return "unavailable" if v is None else f"{v:g}" if isinstance(v, float) else str(v)

    rows: list[tuple[str, str, str]] = [
        ("allocated", size(engine["allocated_bytes"]), size(engine["allocated_peak_bytes"])),
        ("resident on the device", size(engine["resident_bytes"]), size(engine["resident_peak_bytes"])),
        ("reserved on the device", size(engine["reserved_bytes"]), size(engine["reserved_peak_bytes"])),
    ]
    if not abbreviated:
        counters = native.counters()
        for pool, title in (("small_pool", "requested, up to 1 MiB"), ("large_pool", "requested, over 1 MiB")):
            rows.append((title, size(counters[pool]["bytes"]["current"]), size(counters[pool]["bytes"]["peak"])))
    lines = [f"{head} (engine {engine.get('engine')}, policy {engine.get('policy')})"]
    lines.append(f"{'':26}{'current':>16}{'peak':>16}")
    lines += [f"{title:26}{now:>16}{peak:>16}" for title, now, peak in rows]
    lines.append(f"{'device budget':26}{size(engine.get('budget_bytes')):>16}")
    lines.append(f"{'host budget':26}{size(engine.get('host_budget_bytes')):>16}")
    lines.append(f"{'moved to the device':26}{size(engine.get('h2d_bytes')):>16}")
    lines.append(f"{'moved to the host':26}{size(engine.get('d2h_bytes')):>16}")
    if not abbreviated:
        for title, key in (
            ("allocations", "allocations"),
            ("live allocations", "allocations_live"),
            ("retries", "retries"),
            ("out of memory", "ooms"),
            ("launches", "launches"),
            ("faults", "faults"),
            ("stall seconds", "stall_seconds"),
            ("prediction hit rate", "prediction_hit_rate"),
        ):
            lines.append(f"{title:26}{number(engine.get(key)):>16}")
    return "\n".join(lines) + "\n"


def apply(torch: Any, native: Native) -> None:
    """Puts our functions in the place of PyTorch's."""
    cuda, memory, C = torch.cuda, torch.cuda.memory, torch._C

    def index(device: Any) -> int:
        return int(memory._get_device_index(device, optional=True))

    def mem_get_info(device: Any = None) -> tuple[int, int]:
        """Free and total bytes of Penstock's device budget."""
        cuda._lazy_init()
        return memory_info(native, index(device))

    def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
        """A table of Penstock's memory statistics."""
        return summary(native, index(device), abbreviated)

    metadata = _snapshot.Metadata(native)
    raw: dict[str, Callable[..., Any]] = {
        "_cuda_memoryStats": lambda device: nested_stats(native, device),
        "_cuda_resetPeakMemoryStats": lambda device: native.reset_peak(),
        "_cuda_resetAccumulatedMemoryStats": lambda device: native.reset_accumulated(),
        "_cuda_getMemoryFraction": lambda device: native.memory_fraction(device),
        "_cuda_memorySnapshot": lambda which=None: _snapshot.snapshot(native, cuda.device_count(), which),
        "_cuda_record_memory_history": functools.partial(_snapshot.record, native),
        "_cuda_record_memory_history_legacy": functools.partial(_snapshot.record_legacy, native),
        "_cuda_isHistoryEnabled": native.history_enabled,
        "_cuda_allocationTraceback": lambda address: _snapshot.traceback(native, address),
        "_cuda_memoryMetadataSupported": lambda: True,
        "_cuda_setMemoryMetadata": metadata.set,
        "_cuda_getMemoryMetadata": metadata.get,
        "_cuda_annotateMemory": native.annotate,
        # torch.accelerator, which is CUDA here: _check has seen to that.
        "_accelerator_getDeviceStats": lambda device: nested_stats(native, device),
        "_accelerator_resetPeakStats": lambda device: native.reset_peak(),
        "_accelerator_resetAccumulatedStats": lambda device: native.reset_accumulated(),
        "_accelerator_getMemoryInfo": lambda device: memory_info(native, device),
    }
    for name, function in raw.items():
        if hasattr(C, name):  # an older PyTorch lacks some
            setattr(C, name, function)
    for module in (cuda, memory):
        module.mem_get_info = mem_get_info
        module.memory_summary = memory_summary
