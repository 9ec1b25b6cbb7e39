"""Whether ordinary PyTorch programs behave under `penstock run --budget 4GiB` as they do without.

    python3 bench/behaviours.py [--only NAME,NAME] [--engines managed,explicit] [--timeout 60]

Each check (behaviour_checks.py) runs in its own process, under stock PyTorch
and under Penstock with each engine; what they print must be equal. A check that fails under
stock as well says nothing of Penstock and is shown as skipped. Stock checks run
a few at a time, Penstock's one after another: managed memory stays within one limit.
Exit status 1 when a check failed, or was skipped (but for torch_compile).
"""

import argparse
import concurrent.futures
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import _common as c

CHECKS = (
    "dataloader_fork", "profiler", "autograd_thread", "record_stream", "two_streams_over_budget", "empty_cache", "zero_bytes", "out_of_memory",
    "memory_statistics", "cuda_graph", "torch_compile", "array_interface",
    "extension_tables", "extension_globals", "extension_graph", "extension_texture", "extension_tensor_map",
)  # fmt: skip
EXTENSION = "extension_"  # so begin the names of those that need extension.cu
KILL = "kill"
BUDGET = "4GiB"
HOST_BUDGET = {"out_of_memory": "2GiB"}  # so that both budgets together can be exceeded
STOCK_AT_ONCE = 4
KILL_AFTER_S = (0.0, 0.35, 0.81)  # after the job is under way


def parse():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--only", default=",".join((*CHECKS, KILL)))
    p.add_argument("--engines", default=",".join(c.ENGINES))
    p.add_argument("--timeout", type=float, default=60, help="seconds a check may take, each way")
    p.add_argument("--name", default="behaviours", help="results go to bench/results/NAME.json")
    a = p.parse_args()
    a.only = c.chosen(p, a.only, (*CHECKS, KILL), "check")
    a.engines = c.chosen(p, a.engines, c.ENGINES, "engine")
    return a


def extra_environment(name, folder, extension):
    if name.startswith(EXTENSION):
        return {"BENCH_EXTENSION": str(extension)}
    if name != "torch_compile":
        return {}
    # Each way compiles for itself, and leaves nothing in the user's cache.
    return {"TORCHINDUCTOR_CACHE_DIR": folder + "/inductor", "TRITON_CACHE_DIR": folder + "/triton"}


def command(name, engine, report=None):
    argv = [sys.executable, c.BENCH / "behaviour_checks.py", name]
    return c.penstock_argv(argv, BUDGET, "penstock", report, HOST_BUDGET.get(name), engine=engine) if engine else argv


def run_check(name, engine, timeout_s, extension):
    """engine: None for stock PyTorch; extension: where extension.cu is, compiled."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", ignore_cleanup_errors=True) as d:
        report = Path(d) / "report.json"
        r = c.run(command(name, engine, report), c.environment(extra_environment(name, d, extension)), timeout_s)
        found = [x for x in c.json_lines(r["stdout"]) if x.get("check") == name]
        result = found[-1] if found else {"check": name, "ok": False, "compare": {}, "detail": ""}
        result.update(engine=engine or "stock", rc=r["rc"], wall_s=r["wall_s"], timed_out=r["timed_out"], stderr_tail=c.tail(r["stderr"], 30, 4000))
        if r["timed_out"]:
            # Also when the check itself was done: a process that does not end is a failure.
            result.update(ok=False, detail=f"did not end within {timeout_s:.0f} s; {result['detail']}")
        elif not found:
            result["detail"] = f"exit status {r['rc']}: {c.tail(r['stderr'], 2, 300)}"
        elif r["rc"] != 0 and result["ok"]:
            result.update(ok=False, detail=f"exit status {r['rc']} after the check was done: {c.tail(r['stderr'], 2, 300)}")
        if engine and result["ok"]:
            result["report"] = c._load(report)
            problem = report_problem(result["report"], engine)
            if problem:
                result.update(ok=False, detail=problem)
    return result


def report_problem(r, engine):
    if r is None:
        return "no report was written: Penstock was not in the process"
    if r.get("engine") != engine or not r.get("hooked"):
        return f"Penstock was not fully there: engine {r.get('engine')!r}, hooked {r.get('hooked')}"
    if r.get("failure"):
        return f"the engine failed: {r['failure']}"
    return None


# ---- the kill check ----


def listing():
    """What is in the places where a process could leave something behind."""
    found = set()
    for folder in {"/dev/shm", "/tmp", "/var/tmp", "/run/lock", tempfile.gettempdir(), str(c.ROOT)}:
        try:
            found.update(os.path.join(folder, x) for x in os.listdir(folder))
        except OSError:
            pass
    for folder, _, files in os.walk("/dev/shm"):
        found.update(os.path.join(folder, f) for f in files)
    return found


def wait_for_line(process, wanted, timeout_s):
    seen = threading.Event()

    def read():
        for line in process.stdout:
            if wanted in line:
                seen.set()

    threading.Thread(target=read, daemon=True).start()
    end = time.monotonic() + timeout_s
    while time.monotonic() < end and not seen.is_set() and process.poll() is None:
        seen.wait(0.1)
    return seen.is_set()


def kill_once(card, engine, after_s, timeout_s):
    """What is wrong, or None."""
    idle = card.require_free()
    before = listing()
    with tempfile.TemporaryFile("w+") as err:
        p = c.start(command("churn", engine), c.environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=err, text=True)
        try:
            if not wait_for_line(p, "under way", timeout_s):
                err.seek(0)
                return f"the job did not get under way within {timeout_s:.0f} s (exit status {p.poll()}): {c.tail(err.read(), 2, 300)}"
            time.sleep(after_s)
            if p.poll() is not None:
                return f"the job ended by itself with exit status {p.returncode}"
            os.kill(p.pid, signal.SIGKILL)  # the process alone: it must not need help to end its threads
            try:
                p.wait(20)
            except subprocess.TimeoutExpired:
                return "the process was still there 20 s after kill -9"
        finally:
            c.end_group(p)
    left = sorted(listing() - before)
    if left:
        return f"left behind: {', '.join(left)}"
    deadline = time.monotonic() + 15
    while (used := card.memory()[1]) > idle + (64 << 20):
        if time.monotonic() > deadline:
            return f"{(used - idle) >> 20} MiB of the card are still in use 15 s after kill -9"
        time.sleep(0.2)
    return None


def run_kill(card, engine, timeout_s):
    result = {"check": KILL, "engine": engine or "stock", "ok": True, "compare": {}, "detail": f"kill -9 at {len(KILL_AFTER_S)} moments: nothing in /dev/shm, /tmp or on the card"}
    for after_s in KILL_AFTER_S if engine else KILL_AFTER_S[:1]:
        problem = kill_once(card, engine, after_s, timeout_s)
        if problem:
            result.update(ok=False, detail=f"killed {after_s} s after it was under way: {problem}")
            break
    return result


# ---- the table ----


def verdict(stock, ours):
    """ok, FAIL or skip, and why."""
    if not stock["ok"]:
        return "skip", f"fails under stock too: {stock['detail']}" if not ours["ok"] else f"fails under stock only: {stock['detail']}"
    if not ours["ok"]:
        return "FAIL", ours["detail"]
    for key, value in stock["compare"].items():
        if repr(ours["compare"].get(key)) != repr(value):
            return "FAIL", f"{key} differs from stock: {str(ours['compare'].get(key))[:120]} instead of {str(value)[:120]}"
    return "ok", ours["detail"]


def body():
    a = parse()
    c.require_build()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as d:
        extension = Path(d) / "extension.so"
        if any(n.startswith(EXTENSION) for n in a.only):
            c.compile_cuda("extension.cu", extension, "-shared", "-Xcompiler", "-fPIC")
        return run_all(a, extension)


def run_all(a, extension):
    card = c.Card()
    card.require_free()
    names = [n for n in a.only if n != KILL]
    document = {**c.header(card), "budget": BUDGET, "summary": [], "runs": []}
    stock = {}
    with concurrent.futures.ThreadPoolExecutor(STOCK_AT_ONCE) as pool:
        for r in pool.map(lambda n: run_check(n, None, a.timeout * 2, extension), names):  # twice: they share the processors
            stock[r["check"]] = r
    print(f"under penstock run --budget {BUDGET}, beside stock PyTorch; {c.CAP_NOTE}; {document['gpu']}", flush=True)
    for name in a.only:
        if name == KILL:
            card.require_free()
            stock[name] = run_kill(card, None, a.timeout)
        document["runs"].append(stock[name])
        document.setdefault("torch", stock[name].get("torch"))
        for engine in a.engines:
            card.require_free()
            ours = run_kill(card, engine, a.timeout) if name == KILL else run_check(name, engine, a.timeout, extension)
            state, why = verdict(stock[name], ours)
            document["runs"].append(ours)
            document["summary"].append({"check": name, "engine": engine, "verdict": state, "detail": why})
            print(f"{state:4}  {name:24} {engine:8} {why}", flush=True)
            if state == "FAIL" and ours.get("stderr_tail"):
                print("      " + ours["stderr_tail"][-1500:].replace("\n", "\n      "), flush=True)
            c.save(a.name, document)
    states = [s["verdict"] for s in document["summary"]]
    print(f"{states.count('ok')} ok, {states.count('FAIL')} failed, {states.count('skip')} skipped")
    # torch.compile needs a compiler that a machine may lack; the others have no excuse.
    excused = {"torch_compile"}
    return 1 if any(s["verdict"] == "FAIL" or s["verdict"] == "skip" and s["check"] not in excused for s in document["summary"]) else 0


if __name__ == "__main__":
    c.main(body)
