"""CUDA tensors that are sent to other processes: with a real PyTorch, on the real engine and the stub driver."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import NATIVE, build

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")

PRELUDE = """
import ctypes, os, subprocess, sys
import torch
C, lib = torch._C, ctypes.CDLL(os.environ["SHARE_CALLER"])
lib.open_memory.restype = ctypes.c_void_p
text = ctypes.create_string_buffer(4096)

def alloc(n): return C._cuda_cudaCachingAllocator_raw_alloc(n, 0)
def free(p): C._cuda_cudaCachingAllocator_raw_delete(p)
def share(p):
    offset = ctypes.c_long()
    n = lib.share_memory(ctypes.c_void_p(p), text, ctypes.byref(offset))
    return (text.raw[:n], offset.value) if n > 0 else text.value.decode()
def open_(handle, offset):
    p = lib.open_memory(handle, len(handle), text)
    return p + offset if p else text.value.decode()
def pattern(seed, n): return (bytes(range(seed, 251)) * (n // (251 - seed) + 1))[:n]
"""

SENDER = """
sizes = [1000, 5 << 20, 70 << 20, 300, 1 << 20]
sent = [alloc(n) for n in sizes]
others = [alloc(9 << 20) for _ in range(40)]  # more than the budget
handles = [share(p) for p in sent]
assert all(type(h) is tuple for h in handles), handles
assert share(sent[1]) == handles[1]  # it is shared once
for i, (p, n) in enumerate(zip(sent, sizes)): ctypes.memmove(p, pattern(i, n), n)
arguments = [f"{h.decode()}|{o}|{n}" for (h, o), n in zip(handles, sizes)]
subprocess.run([sys.executable, os.environ["RECEIVER"], *arguments], check=True)
for i, (p, n) in enumerate(zip(sent, sizes)): assert ctypes.string_at(p, n) == pattern(100 + i, n), i
free(sent[0])
said = open_(*handles[0])
assert type(said) is str and "no longer there" in said, said
assert "no allocation begins" in share(sent[0])
for p in [*sent[1:], *others]: free(p)
"""

RECEIVER = """
alloc(1 << 20)  # the engine and its context
for i, argument in enumerate(sys.argv[1:]):
    handle, offset, n = argument.split("|")
    p = open_(handle.encode(), int(offset))
    assert type(p) is int, p
    assert open_(handle.encode(), int(offset)) == p  # it is opened once
    assert ctypes.string_at(p, int(n)) == pattern(i, int(n)), i
    ctypes.memmove(p, pattern(100 + i, int(n)), int(n))
lib.close_memory()
for bad in (b"", b"penstock", b"penstock-memory-1-1", b"penstock-memory-1-1 x", b"penstock-memory-1-1 1 1", bytes(64), b"penstock-memory-1-" + b"9" * 200 + b" 1"):
    assert "not Penstock's" in open_(bad, 0), (bad, open_(bad, 0))
assert "cannot be asked" in open_(b"penstock-memory-1-1-1 1", 0)
assert "no longer there" in open_(argument.split("|")[0].rpartition(" ")[0].encode() + b" 99999", 0)
"""


@pytest.fixture
def run(command, compiler, tmp_path):
    build(compiler, "-shared", "-fPIC", "-o", tmp_path / "libfakecudart.so", NATIVE / "fake_cudart.c")
    build("g++", "-std=c++17", "-shared", "-fPIC", "-o", tmp_path / "libcaller.so", NATIVE / "share_caller.cpp", "-ldl")
    (tmp_path / "receiver.py").write_text(PRELUDE + RECEIVER)
    program = tmp_path / "program.py"

    def go(body: str, *options: str, **more: str) -> subprocess.CompletedProcess[str]:
        program.write_text(PRELUDE + body)
        environment = dict(LD_PRELOAD=str(tmp_path / "libfakecudart.so"), SHARE_CALLER=str(tmp_path / "libcaller.so"), RECEIVER=str(tmp_path / "receiver.py"), PENSTOCK_WARNED="1", **more)
        return command.run("run", "--budget", "256MiB", "--host-budget", "1GiB", *options, "--", sys.executable, program, **environment)

    return go


@pytest.fixture
def shares():
    import torch

    if b"CUDAPluggableAllocator14shareIpcHandleEPv" not in (Path(torch.__file__).parent / "lib" / "libtorch_cuda.so").read_bytes():
        pytest.skip("this PyTorch's allocator has the functions under other names")


def test_memory_is_shared_both_ways(run, shares):
    done = run(SENDER, "--engine", "explicit", "--ipc")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("engine, says", [("explicit", "start with PENSTOCK_IPC=1 or `penstock run --ipc`"), ("managed", "use --engine explicit")])
def test_what_cannot_be_shared_is_told(run, shares, engine, says):
    done = run("print(share(alloc(5 << 20)))", "--engine", engine)
    assert done.returncode == 0 and "this CUDA tensor cannot be shared: " in done.stdout and says in done.stdout, (done.stdout, done.stderr)


def test_a_driver_without_descriptors(run, shares):
    done = run("alloc(5 << 20)", "--engine", "explicit", "--ipc", STUB_EXPORT="0")
    assert done.returncode == 2 and done.stderr.startswith("penstock: ") and "run without PENSTOCK_IPC (--ipc)" in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr
