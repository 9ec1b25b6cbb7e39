import collections
import ctypes

from torch import _C

from . import _get_device_index, _lazy_init, is_initialized

__all__ = [
    "empty_cache",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_summary",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
    "set_per_process_memory_fraction",
]


class CUDAPluggableAllocator:
    def __init__(self, path, alloc, free):
        lib = ctypes.CDLL(path)
        self._allocator = _C._cuda_CUDAAllocator(*(ctypes.cast(getattr(lib, n), ctypes.c_void_p).value for n in (alloc, free)))

    def allocator(self):
        return self._allocator


def change_current_allocator(allocator):
    _C._cuda_changeCurrentAllocator(allocator.allocator())


def memory_stats(device=None):
    if not is_initialized():
        return {}
    flat = {}

    def walk(prefix, value):
        if isinstance(value, dict):
            for k, v in value.items():
                walk(f"{prefix}.{k}" if prefix else k, v)
        else:
            flat[prefix] = value

    walk("", _C._cuda_memoryStats(_get_device_index(device)))
    return collections.OrderedDict(sorted(flat.items()))


def memory_allocated(device=None):
    return memory_stats(device).get("allocated_bytes.all.current", 0)


def max_memory_allocated(device=None):
    return memory_stats(device).get("allocated_bytes.all.peak", 0)


def memory_reserved(device=None):
    return memory_stats(device).get("reserved_bytes.all.current", 0)


def max_memory_reserved(device=None):
    return memory_stats(device).get("reserved_bytes.all.peak", 0)


def reset_peak_memory_stats(device=None):
    return _C._cuda_resetPeakMemoryStats(_get_device_index(device))


def reset_accumulated_memory_stats(device=None):
    return _C._cuda_resetAccumulatedMemoryStats(_get_device_index(device))


def memory_snapshot():
    return _C._cuda_memorySnapshot((0, 0, True))["segments"]


def memory_summary(device=None, abbreviated=False):
    raise AssertionError("not patched")


def mem_get_info(device=None):
    raise AssertionError("not patched")


def empty_cache():
    if is_initialized():
        _C._cuda_emptyCache()


def set_per_process_memory_fraction(fraction, device=None):
    _lazy_init()
    _C._cuda_setMemoryFraction(fraction, _get_device_index(device))
