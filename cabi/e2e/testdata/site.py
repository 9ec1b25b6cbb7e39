"""Allocates through libpenstock.so from nested functions, and from a thread."""

import contextlib
import ctypes
import threading

import penstock  # both of the test's own, with a function that calls what it is given
import torch

cuda = ctypes.CDLL("libcuda.so.1")
context = ctypes.c_void_p()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
lib = ctypes.CDLL("libpenstock.so")
lib.penstock_malloc.restype = ctypes.c_void_p
lib.penstock_malloc.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]


def inner():
    assert lib.penstock_malloc(8 << 20, 0, None)


@contextlib.contextmanager
def managed():
    penstock.call(lambda: torch.call(inner))
    yield


def outer():
    with managed():
        pass


outer()
threads = [threading.Thread(target=inner) for _ in range(8)]
for t in threads:
    t.start()
for t in threads:
    t.join()
lib.penstock_close()
