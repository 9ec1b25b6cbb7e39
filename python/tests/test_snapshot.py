"""torch.cuda.memory's snapshots and history: against a fake PyTorch and a fake engine, and with a real PyTorch on the real engine and the stub driver."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from conftest import NATIVE, build

PRELUDE = """
import ctypes, threading
import torch, penstock
C = torch._C
penstock.enable()

def alloc(n):
    return C.current.alloc(n, 0, None)  # without the interpreter's lock: ctypes lets go of it

def free(p, n):
    C.current.free(p, n, 0, None)

def happened(s):
    return [(e["action"], e["size"], [f["name"] for f in e["frames"]][:2]) for e in s["device_traces"][0] if not e["action"].startswith("segment")]

def blocks(s):
    return {b["address"]: b for g in s["segments"] for b in g["blocks"]}
"""


@pytest.fixture
def run(sandbox):
    def go(body: str):
        r = sandbox.run(PRELUDE + body)
        assert r.code == 0, r.err
        return r

    return go


def test_snapshot_shows_what_there_is_at_any_time(run):
    run(
        """
s = C._cuda_memorySnapshot(None)
assert s["segments"] == [] and not any(s["device_traces"])
a, b, c = alloc(1000), alloc(3 << 20), alloc(7777)
s = C._cuda_memorySnapshot()
assert [g["address"] for g in s["segments"]] == sorted((a, b, c))
of = {g["address"]: g for g in s["segments"]}
want = dict(device=0, total_size=3 << 20, allocated_size=3 << 20, active_size=3 << 20, requested_size=3 << 20, stream=0, segment_type="large",
            segment_pool_id=(0, 0), is_expandable=False, frames=[], penstock_on_device_bytes=3 << 19)
assert want.items() <= of[b].items(), of[b]
assert of[b]["blocks"] == [dict(address=b, size=3 << 20, requested_size=3 << 20, state="active_allocated", frames=[])]
assert of[a]["segment_type"] == "small" and of[c]["segment_pool_id"] == (7, 0)
assert s["device_traces"] == [[]] and s["external_annotations"] == [] and "PYTORCH_CUDA_ALLOC_CONF" in s["allocator_settings"]
assert [g["address"] for g in C._cuda_memorySnapshot((7, 0))["segments"]] == [c]
assert len(torch.cuda.memory_snapshot()) == 3
assert C._cuda_allocationTraceback(a) is None
for bad, says in ((5, "Expected tuple or None"), ((1,), "Expected tuple of size 2 or 3"), (("x", 0), "mempool_id elements must be integers")):
    try: C._cuda_memorySnapshot(bad)
    except RuntimeError as e: assert str(e) == says
    else: raise AssertionError(bad)
"""
    )


def test_history_and_its_contexts(run):
    run(
        """
def make(n): return alloc(n)
def drop(p, n): free(p, n)
early = make(5)
assert C._cuda_isHistoryEnabled() is False
C._cuda_record_memory_history("all", "all", "python", 100)
assert C._cuda_isHistoryEnabled() is True
kept, gone = make(10), make(20)
drop(gone, 20)
s = C._cuda_memorySnapshot(None)
assert happened(s) == [
    ("alloc", 10, ["alloc", "make"]), ("alloc", 20, ["alloc", "make"]), ("free_requested", 20, ["free", "drop"]), ("free_completed", 20, ["free", "drop"]),
    ("snapshot", 15, ["note_snapshot", "snapshot"])], happened(s)
first = s["device_traces"][0][1]  # after its segment's
assert first["action"] == "alloc" and first["addr"] == kept and first["stream"] == 0 and first["time_us"] > 1.7e15
assert first["frames"][1] == dict(filename=__file__, line=make.__code__.co_firstlineno, name="make"), first["frames"]
assert first["frames"][2]["name"] == "<module>"
assert blocks(s)[kept]["frames"] is first["frames"] and blocks(s)[early]["frames"] == []
assert C._cuda_allocationTraceback(kept) == first["frames"]
assert C._cuda_memorySnapshot((0, 0, False))["device_traces"] == [[]]

for context, of_mallocs, of_frees, of_live in (("alloc", 1, 0, 1), ("state", 0, 0, 1), (None, 0, 0, 0)):
    C._cuda_record_memory_history("all", context, "all", 100, True)
    p, q = make(30), make(40)
    drop(p, 30)
    s = C._cuda_memorySnapshot(None)
    assert [bool(f) for _, _, f in happened(s)[:4]] == [bool(of_mallocs)] * 2 + [bool(of_frees)] * 2, (context, happened(s))
    assert bool(blocks(s)[q]["frames"]) == bool(of_live)
assert blocks(s)[kept]["frames"]  # of before: only the history began anew

C._cuda_record_memory_history("state", "all", "all", 100, True)
p = make(50)
s = C._cuda_memorySnapshot(None)
assert happened(s) == [] and blocks(s)[p]["frames"][1]["name"] == "make"
C._cuda_record_memory_history(None)
assert C._cuda_isHistoryEnabled() is False
s = C._cuda_memorySnapshot(None)
assert happened(s) == [] and not any(b["frames"] for b in blocks(s).values())

C._cuda_record_memory_history_legacy(True, True, 3, True)  # as it was before 2.1
for n in range(60, 66): make(n)
newest = [(e["action"], e["size"]) for e in C._cuda_memorySnapshot(None)["device_traces"][0]]
assert newest == [("segment_alloc", 65), ("alloc", 65), ("snapshot", sum(range(60, 66)) + 5 + 10 + 3 * 40 + 50)], newest
C._cuda_record_memory_history_legacy(False)
assert C._cuda_isHistoryEnabled() is False

C._cuda_record_memory_history("all", "all", "all", 100, False, False, False, ["free_requested", "snapshot", "segment_free"], False, True)
drop(make(70), 70)
assert [e["action"] for e in C._cuda_memorySnapshot(None)["device_traces"][0]] == ["segment_alloc", "alloc", "free_completed"]
C._cuda_record_memory_history("all", "all", "all", 100, False, False, False, [], False, False)
assert C._cuda_isHistoryEnabled() is False
"""
    )


def test_bad_arguments_are_pytorchs(run):
    run(
        """
for arguments, says in (
    (("some",), "expected state to be 'state', 'all', or None"),
    (("all", "some"), "expected context to be 'state', 'alloc', 'all', or None"),
    (("all", "all", "c++"), "expected stacks to be 'python', or 'all'"),
):
    for kind in (ValueError, RuntimeError):
        try: C._cuda_record_memory_history(*arguments)
        except kind as e: assert str(e) == says
        else: raise AssertionError(arguments)
try: C._cuda_record_memory_history("all", "all", "all", 1, False, False, False, [], True)
except NotImplementedError as e: assert "record_pinned_host_memory" in str(e)
else: raise AssertionError
assert C._cuda_isHistoryEnabled() is False
"""
    )


def test_threads_with_and_without_the_interpreters_lock(run):
    """Many that Python knows, while snapshots are taken and the recording goes on and off."""
    run(
        """
stop = False
def work():
    mine = []
    while not stop:
        mine.append(alloc(100))
        if len(mine) > 20: free(mine.pop(0), 100)
    for p in mine: free(p, 100)
threads = [threading.Thread(target=work) for _ in range(4)]
for t in threads: t.start()
for i in range(60):
    C._cuda_record_memory_history("all", ["all", "alloc", "state", None][i % 4], "all", 500, i % 7 == 0)
    s = C._cuda_memorySnapshot(None)
    assert len(s["device_traces"][0]) <= 500
    for e in s["device_traces"][0]:
        if e["action"] == "alloc" and e["frames"]:
            assert [f["name"] for f in e["frames"][:2]] == ["alloc", "work"], e
    if i % 10 == 9: C._cuda_record_memory_history(None)
stop = True
for t in threads: t.join()
assert not C._cuda_memorySnapshot(None)["segments"]
"""
    )


def test_a_thread_that_python_does_not_know_never_waits_for_it(sandbox, tmp_path, compiler):
    """It allocates while another has the interpreter's lock and waits for it."""
    source = tmp_path / "stranger.c"
    source.write_text(
        """
        #include <pthread.h>
        #include <sys/types.h>
        static void *(*alloc)(ssize_t, int, void *);
        static void (*release)(void *, ssize_t, int, void *);
        static void *work(void *unused) {
            for (int i = 0; i < 100; i++) release(alloc(64, 0, 0), 64, 0, 0);
            return unused;
        }
        void stranger(void *a, void *r) {
            pthread_t t;
            *(void **)&alloc = a, *(void **)&release = r;
            pthread_create(&t, 0, work, 0);
            pthread_join(t, 0);
        }
        """
    )
    build(compiler, "-shared", "-fPIC", "-o", tmp_path / "stranger.so", source, "-pthread")
    r = sandbox.run(
        PRELUDE
        + f"""
C._cuda_record_memory_history("all")
stranger = ctypes.PyDLL({str(tmp_path / "stranger.so")!r}).stranger  # with the lock
stranger(*(ctypes.cast(f, ctypes.c_void_p) for f in (C.current.alloc, C.current.free)))
s = C._cuda_memorySnapshot(None)
assert happened(s)[:300] == [("alloc", 64, []), ("free_requested", 64, []), ("free_completed", 64, [])] * 100
"""
    )
    assert r.code == 0, r.err


def test_memory_that_is_freed_while_a_stack_is_taken(run):
    """A collection of garbage may begin there, and an exception may be under way."""
    run(
        """
import gc
class Cycle:
    def __init__(self): self.p, self.me = alloc(64), self
    def __del__(self): free(self.p, 64)
gc.set_threshold(1, 1, 1)
C._cuda_record_memory_history("all")
for i in range(300):
    Cycle()
    try: raise KeyError(i)
    except KeyError as e:
        x = Cycle()
        del x
        assert e.args == (i,)
gc.set_threshold(700)
gc.collect()
assert not C._cuda_memorySnapshot(None)["segments"]
"""
    )


def test_a_forked_child_begins_anew(run):
    r = run(
        """
import os
C._cuda_record_memory_history("all")
alloc(10)
pid = os.fork()
if pid == 0:
    assert not C._cuda_isHistoryEnabled()
    assert C._cuda_memorySnapshot(None)["segments"] == []
    C._cuda_record_memory_history("all")
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
assert C._cuda_isHistoryEnabled() and len(happened(C._cuda_memorySnapshot(None))) == 2
"""
    )
    assert r.calls()[-1] == "close"


REAL = """
import pickle, random, sys
import torch
from torch.cuda import _memory_viz as viz
C, cuda = torch._C, torch.cuda
# There is no GPU to initialise: only PyTorch's own test for it is answered.
cuda.is_initialized = cuda.memory.is_initialized = lambda: True
cuda._lazy_init = cuda.memory._lazy_init = lambda: None
cuda.current_device = lambda: 0
cuda.memory._get_device_index = lambda device, optional=False: 0 if device is None else device

class Memory:
    def __init__(self, n): self.n, self.p = n, C._cuda_cudaCachingAllocator_raw_alloc(n, 0)
    def __del__(self): C._cuda_cudaCachingAllocator_raw_delete(self.p)

def make(n): return Memory(n)

early = make(5 << 20)
cuda.memory._record_memory_history(max_entries=100_000, stacks="python")
assert C._cuda_isHistoryEnabled() is True
rng, live = random.Random(1), [early]
for _ in range(1500):
    if rng.random() < 0.5 and len(live) > 1: live.pop(rng.randrange(1, len(live)))
    elif len(live) < 60: live.append(make(rng.choice([100, 5000, 1 << 20, 3 << 20, (1 << 20) + 5, rng.randrange(1, 6 << 20)])))
try: C._cuda_cudaCachingAllocator_raw_alloc(1 << 45, 0)
except RuntimeError: pass
else: raise AssertionError
s = cuda.memory._snapshot()

# What is live is there, and where it was allocated.
blocks = {b["address"]: b for g in s["segments"] for b in g["blocks"] if b["state"] == "active_allocated"}
assert {p: b["requested_size"] for p, b in blocks.items()} == {m.p: m.n for m in live}
assert blocks[early.p]["frames"] == []
for m in live[1:]:
    assert blocks[m.p]["frames"][1] == dict(filename=__file__, line=make.__code__.co_firstlineno, name="make")
assert sum(b["requested_size"] for b in blocks.values()) == cuda.memory_allocated()
assert sum(g["total_size"] for g in s["segments"]) == cuda.memory_reserved()
end = 0
for g in s["segments"]:
    assert end <= g["address"] and 0 <= g["penstock_on_device_bytes"] <= g["total_size"]
    end = g["address"]
    for b in g["blocks"]:
        assert b["address"] == end and b["requested_size"] <= b["size"]
        end += b["size"]
    assert end == g["address"] + g["total_size"]
    assert g["allocated_size"] == g["active_size"] == sum(b["size"] for b in g["blocks"] if b["state"] == "active_allocated")
assert len(cuda.memory_snapshot()) == len(s["segments"])

# Going back from there, as PyTorch's viewer does, there is always a segment around what is live.
segments, at = {g["address"]: g["total_size"] for g in s["segments"]}, set(blocks)
trace = s["device_traces"][0]
assert [e["action"] for e in trace[-2:]] == ["oom", "snapshot"] and trace[-2]["size"] == 1 << 45 and trace[-2]["device_free"] > 0
assert {"segment_alloc", "segment_free"} < {e["action"] for e in trace}
for e in reversed(trace):
    match e["action"]:
        case "free_completed": at.add(e["addr"])
        case "alloc": at.remove(e["addr"])
        case "segment_free": assert segments.setdefault(e["addr"], e["size"]) == e["size"]
        case "segment_alloc": assert segments.pop(e["addr"]) == e["size"]
    assert all(any(a <= p < a + n for a, n in segments.items()) for p in at)
assert at == {early.p}

cuda.memory._dump_snapshot(sys.argv[1])
with open(sys.argv[1], "rb") as f: dumped = pickle.load(f)
assert len(dumped["segments"]) == len(s["segments"])
assert "Active Memory Timeline" in viz.trace_plot(s) and "Allocator State History" in viz.segment_plot(s)
for draw in (viz.segments, viz.memory):
    assert "make" in draw(s, format_flamegraph=lambda lines: lines)
assert viz.segsum(s) and viz.trace(s)
if hasattr(C, "_cuda_beginAllocateToPool"):
    pool = (3, 4)
    C._cuda_beginAllocateToPool(0, pool)
    private = [make(1000), make(3 << 20)]
    C._cuda_endAllocateToPool(0, pool)
    of_pool = cuda.memory_snapshot(pool)
    assert {m.p for m in private} == {b["address"] for g in of_pool for b in g["blocks"] if b["state"] == "active_allocated"}
    assert all(g["segment_pool_id"] == pool for g in of_pool) and len(of_pool) == 2
    del private
    C._cuda_releasePool(0, pool)
    assert not any(b["state"] == "active_allocated" for g in cuda.memory_snapshot(pool) for b in g["blocks"])
if hasattr(C, "_cuda_setMemoryMetadata"):
    assert cuda.memory._memory_metadata_supported() and cuda.memory._get_memory_metadata() == ""
    cuda.memory._set_memory_metadata({"step": 3})
    assert cuda.memory._get_memory_metadata() == '{"step":3}'
    marked = make(5000)
    C._cuda_annotateMemory(marked.p, "a mark")
    cuda.memory._set_memory_metadata("")
    said = [(e["action"], e["user_metadata"]) for e in cuda.memory._snapshot()["device_traces"][0][-3:]]
    assert said == [("alloc", '{"step":3}'), ("annotate", "a mark"), ("snapshot", "")], said
if hasattr(cuda.memory, "_allocation_traceback"):
    assert cuda.memory._allocation_traceback(live[-1].p) == blocks[live[-1].p]["frames"]
cuda.memory._record_memory_history(enabled=None)
assert C._cuda_isHistoryEnabled() is False
"""


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
@pytest.mark.parametrize("engine", ["explicit", "managed"])
def test_real_pytorch(command, compiler, tmp_path, engine):
    build(compiler, "-shared", "-fPIC", "-o", tmp_path / "libfakecudart.so", NATIVE / "fake_cudart.c")
    program = tmp_path / "program.py"
    program.write_text(REAL)
    dump = tmp_path / "dump.pickle"
    environment = dict(LD_PRELOAD=str(tmp_path / "libfakecudart.so"), PENSTOCK_WARNED="1")
    done = command.run("run", "--engine", engine, "--budget", "128MiB", "--host-budget", "1GiB", "--", sys.executable, program, dump, **environment)
    assert done.returncode == 0, done.stderr
    # The command reads what was dumped as it reads PyTorch's own.
    done = command.run("report", "fragmentation", dump)
    assert done.returncode == 0 and "reserved is recorded" in done.stdout, done.stderr
