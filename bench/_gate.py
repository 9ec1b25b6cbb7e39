"""What the gate's scripts share: jobs in forked processes, several at a time; what is said of rows; results that survive a cut. Standard library only.

A row is a program that runs in several ways: with stock PyTorch, and under Penstock. Each way is a process of its own
(_zygote.py), so a death is its row's alone. States of a row's way:

    equal     losses and parameters are stock's to the bit
    near      stock does not repeat itself, and this is about as far from it as stock is
    refused   what Penstock does not do, or another library does not do with its memory (README, limits), and says so
    cannot    out of memory: something needs more at once than the budget
    WRONG, DIED, TIMEOUT, FAILED   what the gate is there to find
    stock     stock PyTorch fails as well, so nothing is said of Penstock
"""

import argparse
import concurrent.futures
import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import _common as c

ZYGOTE = c.BENCH / "_zygote.py"
BAD = ("WRONG", "DIED", "TIMEOUT", "FAILED")
TOLD = (*BAD, "cannot", "refused", "stock")  # named in the table, with what is known of them
HOST_BUDGET = "12GiB"  # of each process: pinned as it is needed
NEAR = 4  # times stock's own distance from itself
NEAR_AT_LEAST = 0.01  # of a loss, where stock differs from itself at all
ENDS_WITHIN_S = 20  # after kill -9
TOO_LARGE = re.compile(r"out of memory: .* touches .*: give --budget \w+ or more")  # as the engine refuses a launch for which no moves make room
REPLAYED = ("made", "made_bytes", "dropped_bytes", "drops_wrong", "unmade")  # of the report, where memory was made again
THREADS = "2"  # of the CPU, for each process


class Outcome:
    """What became of a job: its lines, and how it ended. rc is None after a timeout, negative after a signal."""

    def __init__(self, rc, timed_out, wall_s, lines, log):
        self.rc, self.timed_out, self.wall_s, self.lines, self.log = rc, timed_out, round(wall_s, 2), lines, log

    def line(self, key):
        """The last line that has this key, or None."""
        found = [x for x in self.lines if key in x]
        return found[-1] if found else None

    def death(self):
        """How the process died, or None when it ended by itself, well or with an error that it told."""
        if self.timed_out:
            return "did not end in time"
        if self.rc < 0:
            return f"ended by {signal.Signals(-self.rc).name}"
        if self.rc and not self.line("error"):
            return f"exit status {self.rc}"
        return None


class Zygote:
    """One _zygote.py, started at its first job, and again when it has died."""

    def __init__(self, imports, penstock, env=None):
        self.imports, self.penstock, self.env = list(imports), penstock, env or {}
        self._process, self._lock, self._ids, self._waiting, self.skipped = None, threading.Lock(), itertools.count(1), {}, []

    def start(self):
        with self._lock:
            while self._process is None or self._process.poll() is not None:
                self._begin()

    def _begin(self):
        env = c.environment({
            "PYTHONPATH": os.pathsep.join([str(c.ROOT / "python" / "penstock" / "_inject"), str(c.ROOT / "python"), str(c.BENCH), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "PENSTOCK_LIB": str(c.ROOT / "lib"), "PYTORCH_NVML_BASED_CUDA_CHECK": "1", "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "OMP_NUM_THREADS": THREADS, "PYTHONHASHSEED": "0", **self.env,
        })  # fmt: skip
        if self.penstock:
            env["LD_PRELOAD"] = os.pathsep.join(filter(None, [str(c.HOOK), env.get("LD_PRELOAD")]))
        process = c.start([sys.executable, ZYGOTE, ",".join(self.imports)], env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        first = process.stdout.readline()
        said = json.loads(first) if first else {}
        if "ready" not in said:
            c.end_group(process)
            culprit = said.get("initialises_cuda")
            if culprit is None:
                raise c.Refused(f"imports of {','.join(self.imports)} ended with status {process.wait()}: see above")
            self.imports.remove(culprit)  # the children import it
            self.skipped.append(culprit)
            return
        self.seconds = said["seconds"]
        self._process, self._waiting = process, {}
        threading.Thread(target=self._read, args=(process, self._waiting), daemon=True).start()

    def _read(self, process, waiting):
        for line in process.stdout:
            said = json.loads(line)
            entry = waiting[said["id"]]
            entry.update(said)
            if "status" in said:
                entry["ended"].set()
        process.wait()  # before anybody asks whether it lives
        for entry in waiting.values():
            entry["ended"].set()

    def run(self, target, arguments, timeout_s, env=None):
        self.start()
        with tempfile.TemporaryDirectory(prefix="penstock-gate-", ignore_cleanup_errors=True) as folder:
            entry = {"ended": threading.Event()}
            job = {"target": target, "arguments": arguments, "env": {k: str(v) for k, v in (env or {}).items()}, "penstock": self.penstock, "folder": folder}
            if self.penstock:
                job["env"]["PENSTOCK_REPORT"] = f"{folder}/report.json"
            with self._lock:
                job["id"] = next(self._ids)
                self._waiting[job["id"]] = entry
                began = time.monotonic()
                try:
                    self._process.stdin.write((json.dumps(job) + "\n").encode())
                    self._process.stdin.flush()
                except OSError:
                    entry["ended"].set()
            timed_out = not entry["ended"].wait(timeout_s)
            if timed_out and "pid" in entry:
                _kill(entry["pid"])
                entry["ended"].wait(ENDS_WITHIN_S)  # one that is stuck in the driver is left behind
            wall_s = time.monotonic() - began
            if "pid" in entry:
                _kill(entry["pid"])  # also what a finished child left behind
            rc = None if timed_out else entry.get("status", 1)
            lines = c.json_lines(_text(folder, "lines.jsonl"))
            for report in sorted(Path(folder).glob("report*.json"))[:1]:  # of a rank, where the program is one of several
                lines.append({"report": c._load(report)})
            return Outcome(rc, timed_out, wall_s, lines, _text(folder, "log"))

    def stop(self):
        if self._process:
            self._process.stdin.close()
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                pass
            c.end_group(self._process)


def _kill(pid):
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def _text(folder, name):
    try:
        return (Path(folder) / name).read_text(errors="replace")
    except OSError:
        return ""


# ---- what is said of an outcome ----


def failure(outcome, engine):
    """(state, detail) of a way that gave nothing to compare, or None."""
    if outcome.timed_out:
        return "TIMEOUT", f"did not end within {outcome.wall_s:.0f} s; {_last(outcome)}"
    error = outcome.line("error")
    if error:
        text = f"{error['error']}: {first_line(error['message'])}"
        if "OutOfMemory" in error["error"]:
            return "cannot", text
        refused = TOO_LARGE.search(outcome.log)
        if refused:
            return "cannot", f"{text}; {refused[0]}"
        return "FAILED", text
    if outcome.rc:
        done = "after its work was done, " if outcome.line("result") else ""
        return "DIED", f"{done}{outcome.death()}: {_last(outcome)}"
    if not outcome.line("result"):
        return "FAILED", "it ended without a result"
    if engine:
        report = (outcome.line("report") or {}).get("report")
        if report is None:
            return "FAILED", "no report was written: Penstock was not in the process"
        if report.get("engine") != engine or not report.get("hooked"):
            return "FAILED", f"Penstock was not fully there: engine {report.get('engine')!r}, hooked {report.get('hooked')}"
        if report.get("failure"):
            return "FAILED", f"the engine failed: {report['failure']}"
    return None


def first_line(text):
    return (text.strip().splitlines() or [""])[0][:300]


def _last(outcome):
    said = [x for x in outcome.log.strip().splitlines() if x.strip()]
    return (said or ["it said nothing"])[-1][:300]


def distance(a, b):
    """The largest difference of two lists of losses, as a share of b's."""
    if len(a) != len(b):
        return float("inf")
    return max((abs(x - y) / max(abs(y), 1e-12) if x == x and y == y else 0.0 if x != x and y != y else float("inf") for x, y in zip(a, b)), default=0.0)


def same(a, b):
    return repr(a["losses"]) == repr(b["losses"]) and a["digests"] == b["digests"]


def compare(stock, again, ours):
    """(state, detail) of a result {"losses", "digests"} beside stock's; again is a second one of stock, or None."""
    if same(ours, stock):
        return "equal", ""
    if again is None:
        return "WRONG", "differs from stock"
    if same(again, stock):
        what = "losses" if repr(ours["losses"]) != repr(stock["losses"]) else "parameters only"
        return "WRONG", f"{what} differ by {distance(ours['losses'], stock['losses']):.1e} from stock, which repeats itself"
    own, here = distance(again["losses"], stock["losses"]), distance(ours["losses"], stock["losses"])
    if here <= max(NEAR * own, NEAR_AT_LEAST):
        return "near", f"{here:.1e} from stock, which is {own:.1e} from itself"
    return "WRONG", f"{here:.1e} from stock, which is {own:.1e} from itself"


def moved_gib(outcome):
    report = (outcome.line("report") or {}).get("report") or {}
    return round(((report.get("h2d_bytes") or 0) + (report.get("d2h_bytes") or 0)) / c.GIB, 2)


def record(outcome, state, detail, **more):
    """A way of a row, for the results."""
    way = {"state": state, "detail": detail, "wall_s": outcome.wall_s, **more}
    report = (outcome.line("report") or {}).get("report")
    if report:
        way.update(moved_gib=moved_gib(outcome), resident_peak_bytes=report.get("resident_peak_bytes"))
        explicit = report.get("explicit") or {}
        way.update({k: explicit[k] for k in REPLAYED if explicit.get(k)})
    if state in BAD or state == "stock":
        way["log_tail"] = c.tail(outcome.log, 30, 3000)
    return way


# ---- the command ----


def parser(doc, name, jobs, timeout_s):
    p = argparse.ArgumentParser(description=doc.splitlines()[0])
    p.add_argument("--jobs", type=int, default=jobs, help="rows at a time")
    p.add_argument("--only", default="", metavar="REGEX", help="rows whose name this is found in")
    p.add_argument("--minutes", type=float, default=0, help="start nothing after so long, and say what was not run")
    p.add_argument("--shard", default="1/1", metavar="I/N", help="the I-th of N parts of the rows")
    p.add_argument("--timeout", type=float, default=timeout_s, help="seconds a process may take")
    p.add_argument("--resume", action="store_true", help="keep the rows that the results have of this card, commit and --set")
    p.add_argument("--list", action="store_true", help="print the names of the rows and end")
    p.add_argument("--name", default=name, help="results go to bench/results/NAME.json")
    p.add_argument("--set", type=c.settings, default={}, metavar="NAME=VALUE[,...]", help="in the environment of every run under Penstock")
    p.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help="cpu: stock PyTorch alone, twice, small: whether the programs run and repeat themselves")
    return p


def dealt(names):
    """The names in an order in which those of every kind come early and late, always the same."""
    return random.Random(0).sample(sorted(names), len(names))


def select(names, a):
    """Those that --only and --shard leave."""
    i, n = (int(x) for x in a.shard.split("/"))
    if not 1 <= i <= n:
        raise c.Refused(f"--shard {a.shard}: it takes I/N with I from 1 to N")
    chosen = [x for x in names if re.search(a.only, x)][i - 1 :: n]
    if a.list:
        print("\n".join(chosen))
        sys.exit(0)
    return chosen


class NoCard:
    """Stands for the card with --device cpu."""

    def facts(self):
        return {"gpu": "none (CPU)", "driver": None}

    def require_free(self):
        return 0


class Gate:
    """Runs rows, several at a time, and keeps the document of results."""

    def __init__(self, a, imports, note):
        self.a, self.began = a, time.monotonic()
        self.name = a.name if a.device == "cuda" else f"{a.name}-cpu"  # which git ignores
        if a.device == "cuda":
            c.require_build()
        self.card = c.Card() if a.device == "cuda" else NoCard()
        self.card.require_free()
        self.stock = Zygote(imports, False)
        self.penstock = Zygote(imports, True, a.set)
        self.document = {**c.header(self.card, note), "versions": versions(), "set": a.set or None, "rows": [], "not_run": []}
        self.kept = self._kept() if a.resume else {}
        self._lock = threading.Lock()

    def _kept(self):
        old = c._load(c.BENCH / "results" / f"{self.name}.json") or {"rows": []}
        alike = all(old.get(k) == self.document[k] for k in ("gpu", "commit", "versions", "set"))
        return {r["name"]: r for r in old["rows"]} if alike else {}

    def late(self):
        return bool(self.a.minutes) and time.monotonic() - self.began > 60 * self.a.minutes

    def run(self, names, run_rows, size=0):
        """Runs those that are not kept. run_rows(name) gives a row {"name", "ways": {way: {...}}}; with a size, it gets so many
        names and gives a row for each. None is what had no time."""
        todo = [n for n in names if n not in self.kept]
        self.document["rows"] = [self.kept[n] for n in names if n in self.kept]
        self.document["not_run"] = list(todo)
        tasks = [todo[i : i + size] for i in range(0, len(todo), size)] if size else todo
        try:
            if todo:
                zygotes = [self.stock] if self.a.device == "cpu" else [self.stock, self.penstock]
                with concurrent.futures.ThreadPoolExecutor(2) as pool:
                    list(pool.map(Zygote.start, zygotes))
            with concurrent.futures.ThreadPoolExecutor(self.a.jobs) as pool:
                for f in concurrent.futures.as_completed([pool.submit(self._task, t, run_rows) for t in tasks]):
                    f.result()
        finally:
            self.stock.stop()
            self.penstock.stop()
            self.document["wall_s"] = round(time.monotonic() - self.began, 1)
            c.save(self.name, self.document)
        return self.summary()

    def _task(self, task, run_rows):
        found = None if self.late() else run_rows(task)
        if found is None:
            return
        with self._lock:
            for row in [found] if isinstance(found, dict) else found:
                self.document["rows"].append(row)
                self.document["not_run"].remove(row["name"])
                ways = "  ".join(f"{w} {x['state']}" for w, x in row["ways"].items())
                print(f"{time.monotonic() - self.began:6.0f} s  {row['name']:44} {ways}", flush=True)
                for way, x in row["ways"].items():
                    if x["state"] in TOLD:
                        print(f"          {way}: {x['detail'][:240]}", flush=True)
            c.save(self.name, self.document)

    def summary(self):
        rows = sorted(self.document["rows"], key=lambda r: r["name"])
        ways = list(dict.fromkeys(w for r in rows for w in r["ways"]))
        states = ("equal", "near", "refused", "cannot", "stock", *BAD)
        counts = [[w, len([r for r in rows if w in r["ways"]]), *(sum(r["ways"].get(w, {}).get("state") == s for r in rows) for s in states)] for w in ways]
        print(f"\n{len(rows)} rows; {self.document['gpu']}, {', '.join(f'{k} {v}' for k, v in self.document['versions'].items())}; {self.document['wall_s']:.0f} s")
        print(c.table(["way", "run", *states], counts))
        for r in rows:
            for w, x in r["ways"].items():
                if x["state"] in TOLD:
                    print(f"{x['state']:7}  {r['name']}, {w}: {x['detail'][:200]}")
        if self.document["not_run"]:
            print(f"not run: {', '.join(self.document['not_run'])}")
        for z in (self.stock, self.penstock):
            if z.skipped:
                print(f"imported by each process, because it initialises CUDA: {', '.join(z.skipped)}")
        states = [x["state"] for r in rows for x in r["ways"].values()]
        # Where stock fails everywhere, nothing was tried.
        return 1 if set(states) & set(BAD) or states and set(states) == {"stock"} else 0


def versions(*more):
    """Of what the programs are made of, without importing it."""
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for name in ("torch", "torchvision", "transformers", "timm", "torch-geometric", "peft", "accelerate", "lightning", *more):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            pass
    return found
