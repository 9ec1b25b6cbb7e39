"""Against a real PyTorch, when there is one. No GPU is needed: the allocator's
C++ path runs as it is, and a preloaded library answers for the device."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from conftest import NATIVE, build

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")

PRELUDE = """
import warnings, penstock
warnings.simplefilter("error", penstock.PenstockWarning)
warnings.filterwarnings("ignore", "this PyTorch's allocator object")  # in 2.3; what is lost is said
import torch
from penstock import _versions
own = _versions.layouts(torch.__version__)[0].exception
C = torch._C
def alloc(n): return C._cuda_cudaCachingAllocator_raw_alloc(n, 0)
def free(p): C._cuda_cudaCachingAllocator_raw_delete(p)
def pretend_initialised():
    # There is no GPU to initialise: only PyTorch's own test for it is answered.
    torch.cuda.is_initialized = torch.cuda.memory.is_initialized = lambda: True
    torch.cuda._lazy_init = torch.cuda.memory._lazy_init = lambda: None
    torch.cuda.current_device = lambda: 0
    torch.cuda.memory._get_device_index = lambda device, optional=False: 0 if device is None else device
"""


@pytest.fixture(scope="session")
def cudart(tmp_path_factory: pytest.TempPathFactory, compiler: str) -> Path:
    out = tmp_path_factory.mktemp("cudart") / "libfakecudart.so"
    build(compiler, "-shared", "-fPIC", "-o", out, NATIVE / "fake_cudart.c")
    return out


@pytest.fixture
def run(sandbox, cudart):
    def go(body: str, active: bool = False, code: int = 0, **extra: str):
        env = sandbox.environment(fake_torch=False, active=active, **extra)
        env["LD_PRELOAD"] += f":{cudart}"
        del env["PYTHONWARNINGS"]
        env.setdefault("PENSTOCK_WARNED", "1")  # that this version was not tried
        r = sandbox.run(PRELUDE + body, env=env, timeout=180)
        assert r.code == code, r.err
        return r

    return go


def test_allocation_and_statistics(run):
    r = run(
        """
penstock.enable(budget="1GiB", host_budget="1GiB")
a, b = alloc(1000), alloc(5 << 20)
pretend_initialised()
free(a)
assert torch.cuda.memory_allocated() == 5 << 20, torch.cuda.memory_allocated()
assert torch.cuda.max_memory_allocated() == (5 << 20) + 1000
assert torch.cuda.memory_reserved() == (5 << 20) + 4096
s = torch.cuda.memory_stats()
assert s["num_alloc_retries"] == 3 and s["allocation.small_pool.freed"] == 1 and s["requested_bytes.large_pool.current"] == 5 << 20
assert torch.cuda.memory_stats_as_nested_dict()["active_bytes"]["all"]["current"] == 5 << 20
assert torch.cuda.mem_get_info() == ((1 << 30) - (5 << 20), 1 << 30)
torch.cuda.reset_peak_memory_stats()
assert torch.cuda.max_memory_allocated() == 5 << 20
torch.cuda.reset_accumulated_memory_stats()
assert torch.cuda.memory_stats()["allocation.all.allocated"] == 0
assert "allocated" in torch.cuda.memory_summary()
torch.cuda.set_per_process_memory_fraction(0.5)
assert C._cuda_getMemoryFraction(0) == 0.5 if hasattr(C, "_cuda_getMemoryFraction") else True
torch.cuda.empty_cache()
assert torch.cuda.memory.get_allocator_backend() == "pluggable"
""",
    )
    assert r.calls() == ["init 0", "malloc 1000 0", "malloc 5242880 0", "free 0", "fraction 0.5 0", "empty_cache", "close"]


# A script may index any key that PyTorch documents.
def test_every_key_of_pytorch_is_there(run):
    run(
        """
import re
penstock.enable()
alloc(1000)
pretend_initialised()
keys = set(torch.cuda.memory_stats()) | set(torch.cuda.memory_stats_as_nested_dict())  # of which one may be empty
documented = re.findall('``"([a-z][a-z_]+)(?:\\\\.\\\\{all,large_pool,small_pool\\\\})?(?:\\\\.\\\\{current,peak,allocated,freed\\\\})?"``', torch.cuda.memory_stats.__doc__)
assert len(documented) > 10, documented
for name in documented:
    name = {"allocated": "allocation"}.get(name, name)  # the documentation's slip
    assert any(k == name or k.startswith(name + ".") for k in keys), name
"""
    )


def test_out_of_memory_is_pytorchs_own(run):
    """Where the layout of its exception was seen to be the known one; a RuntimeError with the same text elsewhere."""
    run(
        """
import threading
penstock.enable(budget=1000, host_budget=1000)
def attempt():
    try:
        alloc(5 << 30)
    except RuntimeError as e:
        assert not own or isinstance(e, torch.OutOfMemoryError), type(e)
        assert str(e).startswith("CUDA out of memory. Penstock could not allocate 5.00 GiB"), e
        assert "device budget 1000 bytes" in str(e) and "host budget 1000 bytes" in str(e)
        assert "\\n" not in str(e)
        caught.append(e)
caught = []
attempt()
t = threading.Thread(target=attempt); t.start(); t.join()
assert len(caught) == 2
assert alloc(10)  # and life goes on
"""
    )


def test_engine_error_is_a_runtime_error(run):
    run(
        """
penstock.enable()
try:
    alloc(10)
except torch.cuda.OutOfMemoryError:
    raise AssertionError("not out of memory")
except RuntimeError as e:
    assert str(e) == "penstock: no driver; install it", e
else:
    raise AssertionError
""",
        FAKE_INIT_ERROR="no driver; install it",
    )


def test_engine_error_under_run_is_one_line(run):
    r = run("def deep(): alloc(10)\ndeep()", active=True, code=2, FAKE_INIT_ERROR="no driver; install it")
    assert r.err == "penstock: no driver; install it\n" and r.calls() == ["init 0"]


def test_graph_pools(run):
    import torch

    if not hasattr(torch._C, "_cuda_beginAllocateToPool"):
        pytest.skip("this PyTorch asks for the current stream first, which takes a GPU")
    r = run(
        """
penstock.enable()
for f in (C._cuda_beginAllocateToPool, C._cuda_endAllocateToPool, C._cuda_releasePool):
    f(0, (3, 4))
"""
    )
    assert r.calls() == ["init 0", "retain_pool 0 3 4", "release_pool 0 3 4", "close"]


def pools_known() -> bool:
    import torch
    from penstock import _versions

    return _versions.layouts(torch.__version__)[0].pools


@pytest.fixture
def with_pools():
    if not pools_known():
        pytest.skip("where this PyTorch has the functions of a MemPool is not known")


def test_memory_pools(run, with_pools):
    r = run(
        """
penstock.enable(budget=10 << 20, host_budget=1)
pretend_initialised()
pool = torch.cuda.MemPool(use_on_oom=True)
assert pool.use_count() == 1, pool.use_count()
C._cuda_beginAllocateCurrentThreadToPool(0, pool.id)
assert pool.use_count() == 2
import threading
t = threading.Thread(target=lambda: alloc(1000)); t.start(); t.join()  # of another thread: not the pool's
a = alloc(2000)
C._cuda_endAllocateToPool(0, pool.id)
C._cuda_releasePool(0, pool.id)
alloc(3000)
asked = []
C._cuda_attach_out_of_memory_observer(lambda *a: asked.append(a))
try: alloc(20 << 20)  # where all is full the pool is asked, too
except RuntimeError: pass
assert asked == [(0, 20 << 20, 10 << 20, (10 << 20) - 6000)], asked
id = pool.id
del pool
try: alloc(20 << 20)
except RuntimeError: pass
try: torch.cuda.MemPool(torch.cuda.memory._get_current_allocator().allocator())
except RuntimeError as e: assert "allocator of its own" in str(e), e
else: raise AssertionError
print(id[0], id[1])
"""
    )
    id = r.out.strip()
    assert r.calls()[:12] == [
        "init 0", f"retain_pool 0 {id}", f"retain_pool 0 {id}", "malloc 1000 0", f"in_pool {id}", "malloc 2000 0", f"release_pool 0 {id}", "malloc 3000 0",
        f"malloc {20 << 20} 0", f"in_pool {id}", f"malloc {20 << 20} 0", f"release_pool 0 {id}",
    ], r.calls()  # fmt: skip
    assert [c for c in r.calls()[12:] if "in_pool" in c] == []


def test_checkpoints_of_pools(run, with_pools):
    """What the graph trees of torch.compile do between two captures."""
    r = run(
        """
penstock.enable()
id = (3, 4)
C._cuda_beginAllocateToPool(0, id)
a, b = alloc(4096), alloc(5 << 20)
C._cuda_endAllocateToPool(0, id)
live = lambda *p: C._cuda_checkPoolLiveAllocations(0, id, set(p))
assert live(a, b) and not live(a) and not live(a, b, 7)
state = C._cuda_getCheckpointState(0, id)
free(a), free(b)
assert live()
# The graph runs again: its output is there, and nobody owns the memory.
s = C._construct_storage_from_data_pointer(a, torch.device("cuda", 0), 4096)
assert not C._has_Standard_Deleter(s._cdata)
C._cuda_setCheckpointPoolState(0, state, [], [s._cdata])
assert live(a, b) and C._has_Standard_Deleter(s._cdata)
free(b)  # that output is dead already
assert live(a)
C._cuda_setCheckpointPoolState(0, C._cuda_getCheckpointState(0, id), [s._cdata], [])
assert live(a) and not C._has_Standard_Deleter(s._cdata)  # it was given back, and restored without its owner
del s
assert live(a)
free(a)
assert live() and penstock.stats()["requested_bytes"] == 0, penstock.stats()
C._cuda_releasePool(0, id)
"""
    )
    assert [c for c in r.calls() if "restore" in c] == ["restore 4096", "restore 5242880", "restore 4096"]


def test_cxx_callers_of_the_missing_functions(run, libs, tmp_path_factory, compiler):
    """cuDNN's benchmark mode calls cacheInfo on the allocator object: so does this program, through PyTorch's header."""
    import torch

    include = Path(torch.__file__).parent / "include"
    cuda = [p for p in Path(torch.__file__).parent.parent.glob("nvidia/*/include") if (p / "cuda_runtime.h").exists() and (p / "crt" / "host_config.h").exists()]
    if not cuda:
        pytest.skip("the CUDA headers are not installed (pip install nvidia-cuda-runtime nvidia-cuda-crt)")
    out = tmp_path_factory.mktemp("cxx")
    source = out / "caller.cpp"
    source.write_text(
        """
        #include <c10/cuda/CUDACachingAllocator.h>
        namespace A = c10::cuda::CUDACachingAllocator;
        extern "C" size_t cache_info(size_t largest) { A::get()->cacheInfo(0, &largest); return largest; }
        extern "C" double fraction() { return A::get()->getMemoryFraction(0); }
        extern "C" void reset_peak() { A::get()->resetPeakStats(0); A::get()->resetAccumulatedStats(0); }
        """
    )
    build(
        "g++", "-std=c++17", "-shared", "-fPIC", f"-I{include}", f"-I{include / 'torch/csrc/api/include'}", f"-I{cuda[0]}",
        "-o", out / "caller.so", source, f"-L{Path(torch.__file__).parent / 'lib'}", "-lc10_cuda", "-lc10",
    )  # fmt: skip
    run(
        f"""
import ctypes
penstock.enable(budget=1 << 20)
lib = ctypes.CDLL({str(out / "caller.so")!r})
lib.cache_info.restype, lib.cache_info.argtypes = ctypes.c_size_t, [ctypes.c_size_t]
lib.fraction.restype = ctypes.c_double
alloc(24)
assert lib.cache_info(0) == (1 << 20) - 24
assert lib.cache_info(1 << 30) == 1 << 30
held = alloc((1 << 20) - 24)  # the budget is full
assert lib.cache_info(0) == 1 << 16
assert lib.fraction() == 1.0
lib.reset_peak()
"""
    )


def test_import_hook(run):
    r = run("print(penstock.is_enabled(), C._cuda_getAllocatorBackend())\nassert alloc(10)", active=True, PENSTOCK_BUDGET="5000")
    assert r.out == "True pluggable\n" and r.calls() == ["init 0", "malloc 10 0", "close"]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_data_loader_workers(run, method):
    r = run(
        f"""
import os
class Data(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, i): return torch.full((3,), i), torch.tensor(penstock.stats()["started"])
if __name__ == "__main__":
    alloc(100)
    got = []
    for x, started in torch.utils.data.DataLoader(Data(), batch_size=2, num_workers=4, multiprocessing_context="{method}"):
        assert not started.any()
        got += x[:, 0].tolist()
    assert got == list(range(8))
    alloc(200)
""",
        active=True,
    )
    assert r.calls() == ["init 0", "malloc 100 0", "malloc 200 0", "close"]
    assert len({line.split()[0] for line in r.log}) == 1


def test_too_late(run):
    r = run(
        """
pretend_initialised()
try:
    penstock.enable()
except penstock.PenstockError as e:
    print(e)
"""
    )
    assert "before the first CUDA call" in r.out and len(r.out.splitlines()) == 1
