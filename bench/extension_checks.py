"""Checks of behaviours.py for what extensions do beside PyTorch's operators: they call CUDA with `data_ptr()` of tensors.

extension.cu has the kernels; behaviours.py compiles it and says in BENCH_EXTENSION where. In each check five
GiB, more than the budget, are used before each use of what is checked, so that under a budget that has left the
device, or must not have.
"""

import ctypes
import functools
import os
import sys

import torch
from _checks import MIB, block, check, expect

BYTES = 64 * MIB
FLOATS = BYTES // 4
ROUNDS = 4
SIDE = 4096  # of the matrix that a tensor map is made of


class Library:
    """extension.cu's functions; an error is an exception."""

    def __init__(self):
        self.functions = ctypes.CDLL(os.environ["BENCH_EXTENSION"])

    def __getattr__(self, name):
        function = getattr(self.functions, name)

        def call(*arguments):
            error = function(*arguments)
            expect(error == 0, f"{name} failed: CUDA error {error}")

        return call


@functools.cache
def library():
    return Library()


def stream():
    return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)


def pointer(tensor):
    return ctypes.c_void_p(tensor.data_ptr())


def addresses(tensors):
    return (ctypes.c_void_p * len(tensors))(*(t.data_ptr() for t in tensors))


def elsewhere_bytes():
    """Bytes that Penstock has taken off the device so far; None under stock."""
    penstock = sys.modules.get("penstock")
    return penstock and penstock.stats().get("d2h_bytes")


class Pressure:
    """More memory than the budget, used beside what is checked."""

    def __init__(self):
        self.blocks = [block(512 * MIB, 0) for _ in range(10)]
        self.sent = elsewhere_bytes()

    def __call__(self):
        for b in self.blocks:
            b.add_(1)
        torch.cuda.synchronize()

    def end(self, targets, values):
        """All contents are right, and memory was short."""
        for t, value in zip(targets, values):
            low, high = float(t.min()), float(t.max())
            expect(low == high == value, f"a tensor holds {low} to {high}, not {value}")
        rounds = float(self.blocks[0][0])
        for b in self.blocks:
            expect(float(b.min()) == float(b.max()) == rounds, "what was used beside is wrong")
        if self.sent is None:
            return ""
        sent = elsewhere_bytes() - self.sent
        expect(sent > 0, "nothing has left the device, so this check proves nothing")
        return f"; {sent >> 20} MiB left the device"


def targets(n):
    return [block(BYTES, i) for i in range(n)]


FLOAT = ctypes.c_float
SIZE = ctypes.c_size_t


@check
def extension_tables():
    """Kernels that find tensors through tables: in a tensor, in memory of their own that a kernel has written, in pinned memory."""
    ts, call = targets(6), library()
    pressure = Pressure()
    for _ in range(ROUNDS):
        pressure()
        table = torch.tensor([t.data_ptr() for t in ts[:2]], dtype=torch.int64, device="cuda")
        call.add_by_table(stream(), pointer(table), 2, SIZE(FLOATS), FLOAT(1))
        pressure()
        half = FLOATS // 2  # both halves of one tensor
        call.add_by_own_table(stream(), pointer(ts[2]), SIZE(half), 2, SIZE(half), FLOAT(1))
        pressure()
        call.add_by_pinned_table(stream(), addresses(ts[3:5]), 2, SIZE(FLOATS), FLOAT(1))
    more = pressure.end(ts, [0 + ROUNDS, 1 + ROUNDS, 2 + ROUNDS, 3 + ROUNDS, 4 + ROUNDS, 5])
    return f"{3 * ROUNDS} launches by tables{more}", {}


@check
def extension_globals():
    """Kernels that find tensors through __device__ and __constant__ variables, set by cudaMemcpyToSymbol."""
    ts, call = targets(5), library()
    pressure = Pressure()
    pressure()
    call.set_globals(addresses(ts[:4]))
    for _ in range(ROUNDS):
        pressure()
        call.add_by_globals(stream(), SIZE(FLOATS), FLOAT(1))
    more = pressure.end(ts, [0 + ROUNDS, 1 + ROUNDS, 2 + ROUNDS, 3 + ROUNDS, 4])
    return f"{ROUNDS} launches by globals and constants{more}", {}


@check
def extension_graph():
    """A graph that copies a table from the host, and a kernel that goes by it."""
    ts, call = targets(4), library()
    pressure = Pressure()
    pressure()
    call.make_graph(addresses(ts[:3]), 3, SIZE(FLOATS), FLOAT(1))
    for _ in range(ROUNDS):
        pressure()
        call.launch_graph(stream())
    more = pressure.end(ts, [0 + ROUNDS, 1 + ROUNDS, 2 + ROUNDS, 3])
    return f"{ROUNDS} launches of a graph{more}", {}


@check
def extension_texture():
    """A texture object over a tensor: its handle says nothing of the address."""
    ts, call = targets(3), library()
    out = torch.zeros(FLOATS, device="cuda")
    objects = [ctypes.c_ulonglong() for _ in ts[:2]]
    pressure = Pressure()
    for o, t in zip(objects, ts):
        pressure()
        call.make_texture(pointer(t), FLOATS, ctypes.byref(o))
    for _ in range(ROUNDS):
        for o, t in zip(objects, ts):
            pressure()
            call.add_texture(stream(), o, pointer(out), FLOATS)
            t.add_(1)  # what was read is now out of date
    torch.cuda.synchronize()
    for o in objects:
        call.drop_texture(o)
    read = sum(value + i for value in (0, 1) for i in range(ROUNDS))
    more = pressure.end([*ts, out], [0 + ROUNDS, 1 + ROUNDS, 2, read])
    return f"{2 * ROUNDS} launches by textures{more}", {}


@check
def extension_tensor_map():
    """A tensor map that is made once and used again and again: kernels find the tensor through it alone."""
    call = library()
    matrix = torch.full((SIDE, SIDE), 3.0, device="cuda")
    maps = (ctypes.c_uint64 * 24)()
    at = ctypes.c_void_p(-ctypes.addressof(maps) % 64 + ctypes.addressof(maps))  # aligned
    pressure = Pressure()
    pressure()
    word = call.functions.address_in_map(pointer(matrix), SIDE, SIDE)
    call.make_map(pointer(matrix), SIDE, SIDE, at)
    tiles = SIDE // 32
    for i in range(ROUNDS):
        pressure()
        sums = torch.zeros(tiles, device="cuda")
        call.sum_by_map(stream(), at, pointer(sums), SIDE, SIDE)
        wanted = (3.0 + i) * 32 * SIDE
        expect(bool((sums == wanted).all()), f"round {i + 1}: a row of tiles sums up to {float(sums.min())} to {float(sums.max())}, not {wanted}")
        matrix.add_(1)
    more = pressure.end([matrix], [3.0 + ROUNDS])
    return f"{ROUNDS} launches by a map; the address is its word {word}{more}", {}


class Shared:
    """A tensor as other libraries hand it over."""

    def __init__(self, t):
        self.__cuda_array_interface__ = {"shape": tuple(t.shape), "typestr": "<f4", "data": (t.data_ptr(), False), "strides": None, "version": 3}


@check
def array_interface():
    """__cuda_array_interface__ of a tensor that may be off the device: whoever takes it asks the driver what is there."""
    ts = targets(3)
    pressure = Pressure()
    for _ in range(ROUNDS):
        for t in ts[:2]:
            pressure()
            seen = torch.as_tensor(Shared(t), device="cuda")
            expect(seen.data_ptr() == t.data_ptr(), "what was taken is a copy")
            seen.add_(1)
    more = pressure.end(ts, [0 + ROUNDS, 1 + ROUNDS, 2])
    return f"{2 * ROUNDS} tensors taken{more}", {}
