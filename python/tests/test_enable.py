"""penstock.enable in a process of its own, with a fake PyTorch, the real shim and a fake engine."""

import os
import shutil

import pytest

from conftest import build

PRELUDE = """
import ctypes, os, sys
import torch, penstock

def alloc(n, device=0):
    torch.cuda._lazy_init()
    return torch._C.current.alloc(n, device, None)

def free(p, n, device=0):
    torch._C.current.free(p, n, device, None)
"""


def run(sandbox, body, **kwargs):
    return sandbox.run(PRELUDE + body, **kwargs)


def test_import_is_cheap(sandbox):
    r = sandbox.run("import sys, penstock; print('torch' in sys.modules, 'ctypes' in sys.modules, penstock.__version__)")
    assert r.out.split()[:2] == ["False", "False"], r.err


def test_allocate_and_count(sandbox):
    r = run(
        sandbox,
        """
penstock.enable(budget="64MiB", host_budget=1 << 20)
assert penstock.is_enabled() and os.environ["PENSTOCK_BUDGET"] == str(64 << 20)
assert penstock.stats() == {"enabled": True, "started": False}
assert torch.cuda.memory_allocated() == 0 and torch.cuda.memory_stats() == {}
a, b = alloc(1000), alloc(3 << 20)
assert a and b
free(a, 1000)
s = torch.cuda.memory_stats()
assert torch.cuda.memory_allocated() == 3 << 20 == s["allocated_bytes.all.current"]
assert torch.cuda.max_memory_allocated() == (3 << 20) + 1000 == s["allocated_bytes.all.peak"]
assert torch.cuda.memory_reserved() == (3 << 20) + 4096
assert torch.cuda.max_memory_reserved() == (3 << 20) + 1000 + 4096
assert s["requested_bytes.small_pool.peak"] == 1000 and s["requested_bytes.small_pool.current"] == 0
assert s["requested_bytes.large_pool.current"] == 3 << 20
assert s["allocation.all.allocated"] == 2 and s["allocation.all.freed"] == 1 and s["allocation.all.current"] == 1
assert s["allocated_bytes.all.allocated"] - s["allocated_bytes.all.freed"] == 3 << 20
assert s["num_alloc_retries"] == 3 and s["num_ooms"] == 0
assert torch.cuda.mem_get_info() == ((64 << 20) - (3 << 20), 64 << 20)
assert torch.cuda.memory.mem_get_info is torch.cuda.mem_get_info
torch.cuda.reset_peak_memory_stats()
assert torch.cuda.max_memory_allocated() == 3 << 20
assert torch.cuda.memory_stats()["requested_bytes.all.peak"] == 3 << 20
torch.cuda.reset_accumulated_memory_stats()
assert torch.cuda.memory_stats()["allocation.all.allocated"] == 0
p = penstock.stats()
assert p["started"] and p["device"] == 0 and p["engine"] == "fake" and p["requested_bytes"] == 3 << 20
assert p["faults"] is None and p["prediction_hit_rate"] is None
assert alloc(0) is None
""",
    )
    assert r.code == 0 and r.err == "", r.err
    assert r.calls() == ["init 0", "malloc 1000 0", "malloc 3145728 0", "free 0", "close"]


def test_other_device_has_no_figures(sandbox):
    r = run(
        sandbox,
        """
penstock.enable()
alloc(1000)
assert torch.cuda.memory_allocated(0) == 1000 and torch.cuda.memory_allocated(1) == 0
try:
    torch.cuda.mem_get_info(1)
except NotImplementedError as e:
    assert "device 1" in str(e)
else:
    raise AssertionError
""",
    )
    assert r.code == 0, r.err


def test_summary(sandbox):
    r = run(
        sandbox,
        """
penstock.enable(budget="64MiB")
torch.cuda._lazy_init()
assert "nothing allocated" in torch.cuda.memory_summary()
alloc(5 << 20)
print(torch.cuda.memory_summary())
assert len(torch.cuda.memory_summary(abbreviated=True)) < len(torch.cuda.memory.memory_summary())
""",
    )
    assert r.code == 0, r.err
    lines = {line[:26].strip(): line[26:].split() for line in r.out.splitlines()}
    assert lines["allocated"] == ["5.00", "MiB", "5.00", "MiB"]
    assert lines["device budget"] == ["64.00", "MiB"]
    assert lines["faults"] == ["unavailable"] and lines["prediction hit rate"] == ["unavailable"]
    assert lines["moved to the device"] == ["11", "bytes"]


def test_calls_reach_the_engine(sandbox):
    r = run(
        sandbox,
        """
penstock.enable()
torch.cuda.empty_cache()  # before CUDA is initialised: nothing
torch.cuda.set_per_process_memory_fraction(0.25)
torch.cuda.empty_cache()
assert torch._C._cuda_getMemoryFraction(0) == 0.25
record = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(torch._C.current.functions["set_record_stream_fn"])
p = alloc(10)
record(p, 1)
record(None, 1)  # the storage of an empty tensor
""",
    )
    assert r.code == 0, r.err
    assert r.calls() == ["init 0", "fraction 0.25 0", "empty_cache", "malloc 10 0", "record_stream 1 1", "close"]


@pytest.mark.parametrize(
    "body, env, says",
    [
        ("torch.cuda._lazy_init(); penstock.enable()", {}, "before the first CUDA call"),
        ("penstock.enable(budget='much')", {}, "budget 'much' is not a size"),
        ("penstock.enable()", {"PENSTOCK_LIB": "/nonexistent"}, "/nonexistent"),
        ("torch.version.cuda = None; penstock.enable()", {}, "without CUDA"),
        ("torch.version.hip = '6'; penstock.enable()", {}, "ROCm"),
        ("penstock.disable()", {}, "cannot be disabled"),
        ("penstock.enable(); alloc(10); penstock.enable(budget=5)", {}, "PENSTOCK_BUDGET cannot change"),
        ("torch.cuda.memory.change_current_allocator(torch.cuda.memory.CUDAPluggableAllocator(None, 'malloc', 'free')); penstock.enable()", {}, "install no other"),
    ],
)
def test_errors_are_one_line(sandbox, body, env, says):
    r = run(
        sandbox,
        f"""
try:
    {body}
except penstock.PenstockError as e:
    print(e)
else:
    sys.exit("no error")
""",
        env=sandbox.environment(**env),
    )
    assert r.code == 0, r.err
    assert says in r.out and len(r.out.splitlines()) == 1
    assert "Traceback" not in r.err


def test_a_failed_enable_changes_nothing(sandbox):
    r = run(
        sandbox,
        """
before = dict(vars(torch.cuda)), dict(vars(torch._C)), dict(os.environ)
try:
    penstock.enable(policy="lru")
except penstock.PenstockError:
    pass
assert before == (dict(vars(torch.cuda)), dict(vars(torch._C)), dict(os.environ))
assert not penstock.is_enabled() and torch._C.current is None
""",
        env=sandbox.environment(PENSTOCK_LIB="/nonexistent"),
    )
    assert r.code == 0, r.err


def test_no_torch(sandbox):
    try:
        import torch  # noqa: F401

        pytest.skip("PyTorch is installed")
    except ImportError:
        pass
    r = sandbox.run("import penstock\ntry:\n    penstock.enable()\nexcept penstock.PenstockError as e:\n    print(e)", env=sandbox.environment(fake_torch=False))
    assert "PyTorch cannot be imported" in r.out, r.err


def test_enable_again(sandbox):
    r = run(
        sandbox,
        """
penstock.enable(budget=1000)
penstock.enable()
penstock.enable(budget=2000)  # not started yet: the last word counts
assert alloc(10)
penstock.enable(budget=2000)
assert penstock.stats()["budget_bytes"] == 2000
""",
    )
    assert r.code == 0, r.err


def test_nccl_blocks_where_the_engine_must_know_what_runs(sandbox):
    for engine, blocking in (("explicit", "1"), ("auto", "1"), ("managed", "0")):
        r = run(
            sandbox,
            f"import os\npenstock.enable(engine={engine!r})\nprint(os.environ['NCCL_COMM_BLOCKING'])",
            env=sandbox.environment(NCCL_COMM_BLOCKING="0"),
        )
        assert r.out.splitlines() == [blocking], r.err


def test_warns_without_the_hook(sandbox):
    r = run(sandbox, "penstock.enable()\nassert alloc(10)", env=sandbox.environment(hook=False))
    assert r.code == 0
    assert r.err.count("PenstockWarning:") == 1 and "libpenstock_hook.so" in r.err


@pytest.mark.parametrize("folder", ["lib", "a folder/with spaces"])
def test_restart_preloads_the_hook(sandbox, libs, tmp_path, folder):
    shutil.copytree(libs, tmp_path / folder)
    r = sandbox.run(
        """
import os, sys
print("start", sys.argv[1:], flush=True)
import penstock
penstock.enable(budget=12345, restart=True)
print(os.environ["PENSTOCK_BUDGET"])
""",
        "an argument",
        env=sandbox.environment(hook=False, LD_PRELOAD="", PENSTOCK_LIB=str(tmp_path / folder)),
    )
    assert r.code == 0 and "Warning" not in r.err, r.err
    assert r.out.splitlines() == ["start ['an argument']", "start ['an argument']", "12345"]


def test_a_path_that_the_loader_would_change_is_refused(sandbox, libs, tmp_path):
    folder = tmp_path / "$LIB"
    shutil.copytree(libs, folder)
    r = sandbox.run(
        "import penstock\ntry:\n    penstock.enable(restart=True)\nexcept penstock.PenstockError as e:\n    print(e)",
        env=sandbox.environment(hook=False, LD_PRELOAD="", PENSTOCK_LIB=str(folder)),
    )
    assert "cannot be preloaded" in r.out and str(folder) in r.out, r.err


def test_closed_when_the_program_fails(sandbox):
    r = run(sandbox, "penstock.enable(); alloc(10)\nraise ValueError('mine')")
    assert r.code == 1 and "ValueError: mine" in r.err
    assert r.calls()[-1] == "close" and r.calls().count("close") == 1


def test_not_closed_when_never_started(sandbox):
    r = run(sandbox, "penstock.enable()")
    assert r.code == 0 and r.calls() == []


def test_init_error_is_reported_as_the_library_says(sandbox):
    r = run(
        sandbox,
        """
penstock.enable()
try:
    torch.cuda.mem_get_info()
except penstock.PenstockError as e:
    print(e)
""",
        env=sandbox.environment(FAKE_INIT_ERROR="libcuda.so.1 was not found; install the NVIDIA driver"),
    )
    assert r.out == "libcuda.so.1 was not found; install the NVIDIA driver\n", r.err


@pytest.mark.parametrize("macro, says", [("OTHER_ABI", "ABI version 2"), ("INCOMPLETE", "does not export penstock_release_pool")])
def test_wrong_engine(sandbox, variant, libs, tmp_path, macro, says):
    folder = tmp_path / "lib"
    folder.mkdir()
    for name in ("libpenstock_torch.so", "libpenstock_hook.so"):
        os.symlink(libs / name, folder / name)
    os.symlink(variant(macro), folder / "libpenstock.so")
    r = run(
        sandbox,
        "penstock.enable()\ntry:\n    torch.cuda.mem_get_info()\nexcept penstock.PenstockError as e:\n    print(e)",
        env=sandbox.environment(PENSTOCK_LIB=str(folder)),
    )
    assert says in r.out, r.err


def test_a_c_library_that_is_too_old(sandbox, compiler, libs, tmp_path):
    """The shim is linked with a C library of the future, and meets the one that is here."""
    future = tmp_path / "future"
    shutil.copytree(libs, tmp_path / "lib")
    future.mkdir()
    (future / "libc.c").write_text("int from_the_future(void) { return 1; }")
    (future / "libc.map").write_text("GLIBC_2.999 { from_the_future; };")
    (future / "shim.c").write_text("int from_the_future(void); int f(void) { return from_the_future(); }")
    shared = (compiler, "-shared", "-fPIC", "-nostdlib")
    build(*shared, f"-Wl,--version-script={future / 'libc.map'}", "-Wl,-soname,libc.so.6", "-o", future / "libc.so.6", future / "libc.c")
    build(*shared, "-o", tmp_path / "lib" / "libpenstock_torch.so", future / "shim.c", future / "libc.so.6")
    r = run(
        sandbox,
        "try:\n    penstock.enable()\nexcept penstock.PenstockError as e:\n    print(e)",
        env=sandbox.environment(PENSTOCK_LIB=str(tmp_path / "lib")),
    )
    assert "glibc 2." in r.out and "GLIBC_2.999" in r.out and "newer system" in r.out and len(r.out.splitlines()) == 1, r.out + r.err


def test_a_version_that_was_tried(sandbox):
    r = run(sandbox, "penstock.enable()\nprint(ctypes.c_int.in_dll(ctypes.CDLL(None), 'lists_expected').value)")
    assert r.out == "1\n" and r.err == "", r.err


@pytest.mark.parametrize("version", ["2.99.0+cu140", "2.11.0a0+git1234567", "3.0.0.dev20270101"])
def test_a_version_that_was_not_tried(sandbox, version):
    """One line, of the first process, and nothing relies on layouts."""
    r = run(
        sandbox,
        """
import subprocess
penstock.enable()
print(ctypes.c_int.in_dll(ctypes.CDLL(None), 'lists_expected').value, flush=True)
subprocess.run([sys.executable, "-c", "import torch, penstock; penstock.enable()"], check=True)
""",
        env=sandbox.environment(FAKE_TORCH_VERSION=version),
    )
    assert r.out == "0\n"
    assert r.err.startswith(f"penstock: PyTorch {version} was not tried in full: ") and r.err.count("\n") == 1, r.err
    assert "RuntimeError" in r.err and "use PyTorch 2.11" in r.err


@pytest.mark.parametrize("lacks", ["CUDAPluggableAllocator", "set_begin_allocate_to_pool"])
def test_a_version_that_is_too_old(sandbox, lacks):
    r = run(
        sandbox,
        f"""
if hasattr(torch.cuda.memory, {lacks!r}):
    del torch.cuda.memory.CUDAPluggableAllocator
else:
    allocator = torch._C._cuda_CUDAAllocator
    allocator.__getattr__ = lambda self, name, inner=allocator.__getattr__: inner(self, "gone" if name == {lacks!r} else name)
try:
    penstock.enable()
except penstock.PenstockError as e:
    print(e)
""",
        env=sandbox.environment(FAKE_TORCH_VERSION="2.2.2"),
    )
    assert r.out.startswith(f"PyTorch 2.2.2 has an allocator interface without {lacks}; Penstock needs PyTorch 2.3 or newer"), r.out + r.err


def test_forked_child_is_harmless(sandbox):
    r = run(
        sandbox,
        """
penstock.enable()
p = alloc(1000)
child = os.fork()
if child == 0:
    try:
        free(p, 1000)           # a tensor of the parent, collected in the child
        torch.cuda.empty_cache()
        assert penstock.stats()["started"] is False
        assert torch.cuda.memory_allocated() == 0
    except BaseException:
        os._exit(9)
    sys.exit(0)                 # runs the exit handlers
assert os.waitpid(child, 0)[1] == 0
assert torch.cuda.memory_allocated() == 1000
""",
    )
    assert r.code == 0, r.err
    assert r.calls() == ["init 0", "malloc 1000 0", "close"]
    assert len({line.split()[0] for line in r.log}) == 1


def test_child_forked_before_the_start_has_its_own_engine(sandbox):
    r = run(
        sandbox,
        """
penstock.enable()
child = os.fork()
if child == 0:
    assert alloc(1000)
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
assert penstock.stats()["started"] is False
""",
    )
    assert r.code == 0, r.err
    assert r.calls()[:2] == ["init 0", "malloc 1000 0"]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_do_not_start_the_engine(sandbox, method):
    r = run(
        sandbox,
        f"""
import multiprocessing

def work(i):
    import torch  # a data set's worker
    return i * i, penstock.stats()["started"]

if __name__ == "__main__":
    penstock.enable()
    alloc(1000)
    with multiprocessing.get_context("{method}").Pool(2) as pool:
        assert pool.map(work, range(4)) == [(0, False), (1, False), (4, False), (9, False)]
        pool.close()
        pool.join()
    assert torch.cuda.memory_allocated() == 1000
""",
        env=sandbox.environment(active=True),
    )
    assert r.code == 0, r.err
    assert r.calls() == ["init 0", "malloc 1000 0", "close"]


def test_engine_is_chosen_by_name(sandbox):
    r = run(
        sandbox,
        """
import os
penstock.enable(engine="auto", budget="64MiB")
assert os.environ["PENSTOCK_ENGINE"] == "auto"
penstock.enable(engine="explicit")  # it may change until the engine starts
assert os.environ["PENSTOCK_ENGINE"] == "explicit" and os.environ["PENSTOCK_BUDGET"] == str(64 << 20)
alloc(1000)
try:
    penstock.enable(engine="managed")
except penstock.PenstockError as e:
    assert "PENSTOCK_ENGINE" in str(e)
else:
    raise AssertionError
""",
    )
    assert r.code == 0, r.err


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_of_the_program_are_marked(sandbox, method):
    # Without a rank the engine tells their files apart by GPU.
    r = run(
        sandbox,
        f"""
import multiprocessing, os

def work(device):
    penstock.enable()
    assert torch._C.current.alloc(1000, device, None)
    print(os.environ["PENSTOCK_WORKER"], flush=True)

if __name__ == "__main__":
    penstock.enable()
    context = multiprocessing.get_context("{method}")
    workers = [context.Process(target=work, args=(device,)) for device in range(2)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
        assert w.exitcode == 0
    print(os.environ.get("PENSTOCK_WORKER"), penstock.stats()["started"])
""",
        env=sandbox.environment(active=True),
    )
    assert r.code == 0, r.err
    assert r.out.splitlines() == ["1", "1", "None False"]
    assert sorted(c for c in r.calls() if c.startswith("init")) == ["init 0", "init 1"]
