import ctypes


def _unsupported(name):
    def f(*args):
        raise RuntimeError(f"CUDAPluggableAllocator does not yet support {name}")

    return f


_cuda_memoryStats = _unsupported("getDeviceStats")
_cuda_resetPeakMemoryStats = _unsupported("resetPeakStats")
_cuda_resetAccumulatedMemoryStats = _unsupported("resetAccumulatedStats")
_cuda_memorySnapshot = _unsupported("snapshot")
_cuda_record_memory_history = _unsupported("recordHistory")
_cuda_record_memory_history_legacy = _unsupported("recordHistory")
_cuda_isHistoryEnabled = _unsupported("isHistoryEnabled")
_cuda_allocationTraceback = _unsupported("allocationTraceback")
_cuda_getMemoryFraction = _unsupported("getMemoryFraction")
_accelerator_getDeviceStats = _unsupported("getDeviceStats")
_accelerator_getMemoryInfo = _unsupported("getMemoryInfo")

current = None  # the allocator in use


class _cuda_CUDAAllocator:
    def __init__(self, alloc, free):
        self.alloc = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)(alloc)
        self.free = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)(free)
        self.functions = {}

    def __getattr__(self, name):
        if name.startswith("set_"):
            return lambda address: self.functions.__setitem__(name, address)
        raise AttributeError(name)


def _cuda_changeCurrentAllocator(allocator):
    global current
    if current is not None:
        raise RuntimeError("Can't swap an already initialized allocator")
    current = allocator


def _cuda_emptyCache():
    ctypes.CFUNCTYPE(None)(current.functions["set_reset_fn"])()


def _cuda_setMemoryFraction(fraction, device):
    ctypes.CFUNCTYPE(None, ctypes.c_double, ctypes.c_int)(current.functions["set_memory_fraction_fn"])(fraction, device)
