"""Whether PyTorch's own tests of CUDA graphs, memory pools, statistics and snapshots pass under Penstock where they pass without.

    python3 bench/pytorch_tests.py --tests PYTORCH/test [--only REGEX] [--minutes M] [--budget 4GiB]

--tests is the folder `test` of PyTorch's sources, of the version that is installed; nothing is downloaded or changed. Each test runs with stock PyTorch and
under `penstock run --engine explicit`, in processes of some tests of a class each, in the same order in both. What dies or hangs is one test's:
the rest go on in a new process. A test that passes in stock and not here is lost, and runs once more, alone.
Needs what the tests import: expecttest and psutil, and triton for those of inductor. Exit status 1 when a test is lost, Penstock was not wholly in a process, or nothing passes in stock.
"""

import argparse
import concurrent.futures
import json
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import _common as c
import _gate as g
from behaviours import report_problem

JOB = c.BENCH / "pytorch_tests_job.py"
# Which tests of a file run where --only does not say: not those of storage, autocast, optimizers and compiled kernels.
FILES = {
    "test_cuda.py": r"\.Test(Cuda|CudaMallocAsync|BlockStateAbsorption|MemPool\w*|CachingHostAllocatorCudaGraph|FXMemoryProfiler|CudaDeviceParametrized\w*)\.",
    "inductor/test_cudagraph_trees.py": "",
}
GROUP = 20  # tests of a process: importing PyTorch takes longer than most of them
GRACE_S = 5  # for a test that hangs to say where
ENDS_WITHIN_S = 20  # after kill -9
CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TORCH_EXTENSIONS_DIR")


def parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--tests", required=True, type=Path, metavar="FOLDER", help="PyTorch's folder of tests, of the version that is installed")
    p.add_argument("--files", default=",".join(FILES), metavar="FILE[,...]", help="files in it (%(default)s)")
    p.add_argument("--only", default=None, metavar="REGEX", help="tests whose name, MODULE.CLASS.TEST, this is found in (of test_cuda.py the classes on graphs, pools, statistics and snapshots; all of other files)")
    p.add_argument("--list", action="store_true", help="print the names of the tests and end")
    p.add_argument("--minutes", type=float, default=0, metavar="M", help="start nothing after so long, and say what was not run")
    p.add_argument("--timeout", type=float, default=120, metavar="S", help="seconds after which a process is ended in which no test has ended (%(default)g)")
    p.add_argument("--jobs", type=int, default=1, metavar="N", help="processes at a time (%(default)d: tests that fill the card or read its free memory are in each other's way)")
    p.add_argument("--budget", default=None, metavar="SIZE", help="of penstock run (none)")
    p.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help="cpu: without a card and Penstock, stock PyTorch twice: whether the tests can be had and repeat themselves")
    p.add_argument("--name", default="pytorch-tests", help="results go to bench/results/NAME.json")
    a = p.parse_args()
    a.tests = a.tests.resolve()
    a.files = a.files.split(",")
    return a


# ---- a process ----


class Ran:
    """What a process said of its tests, and how it ended: rc is None when it was ended."""

    def __init__(self, rc, lines, log, report, tests):
        self.rc, self.lines, self.log, self.report, self.tests = rc, lines, log, report, tests

    def line(self, key):
        found = [x for x in self.lines if key in x]
        return found[-1] if found else None

    def results(self):
        return {x["test"]: {k: v for k, v in x.items() if k != "test"} for x in self.lines if "test" in x}

    def unfinished(self):
        """The test that it died or hung in, or None."""
        begun = self.line("begun")
        return begun["begun"] if begun and begun["begun"] not in self.results() else None

    def end(self):
        """The result of a test that the process did not survive."""
        if self.rc is None:
            return {"state": "hung", "reason": f"hung{self._where()}", "trace": c.tail(self.log, 40, 3000)}
        return {"state": "died", "reason": f"{ending(self.rc)}: {self._last_words()}", "trace": c.tail(self.log, 30, 3000)}

    def nothing(self):
        """The result of all its tests, where it came to none."""
        fixture, error = self.line("fixture"), self.line("error")
        if fixture:
            return {"state": fixture["state"], "reason": f"{fixture['fixture']}: {fixture['reason']}"[:300], "trace": fixture["trace"]}
        if error:
            return {"state": "failed", "reason": f"not imported: {error['error']}"}
        return self.end()

    def problem(self, penstock):
        """What is wrong with the process beside its tests, or None."""
        ended = self.line("ended")
        if ended is None:
            return None  # its death is a test's
        if ended["penstock"] != penstock:
            return f"Penstock was {'not ' * penstock}in the process"
        if penstock and (ended["cuda"] or self.report):
            found = report_problem(self.report, "explicit")
            if found:
                return found
        if self.rc != 0:
            return f"after its tests were done: {self.end()['reason']}"
        return None

    def _where(self):
        """The innermost line of the tests, or of any Python, that the main thread was in: it is the last that is told."""
        frames = [x.strip() for x in self.log.rpartition("(most recent call first):\n")[2].splitlines() if "Timeout (" in self.log]
        frames.sort(key=lambda x: str(self.tests) not in x)
        return f" in {frames[0]}" if frames else ""

    def _last_words(self):
        said = [x for x in self.log.strip().splitlines() if x.strip()]
        return (said or ["it said nothing"])[-1].strip()[:240]


def ending(rc):
    number = -rc if rc < 0 else rc - 128  # as shells, and penstock, tell of a signal
    return f"ended by {signal.Signals(number).name}" if number in signal.valid_signals() else f"exit status {rc}"


class Runner:
    """Starts processes with tests, each way, and ends them when they are silent for too long or all is to end."""

    def __init__(self, a, card, folder):
        self.a, self.card, self.folder, self.began, self.stopping = a, card, folder, time.monotonic(), threading.Event()

    def late(self):
        return self.stopping.is_set() or bool(self.a.minutes) and time.monotonic() - self.began > 60 * self.a.minutes

    def run(self, way, file, names):
        """A process with these tests of a file; names is None to ask for those that there are."""
        if self.a.jobs == 1:
            self.card.require_free()
        with tempfile.TemporaryDirectory(dir=self.folder, ignore_cleanup_errors=True) as d:
            job, lines, log, report = (Path(d) / x for x in ("job.json", "lines.jsonl", "log", "report.json"))
            job.write_text(json.dumps({"tests": str(self.a.tests), "file": file, "lines": str(lines), "names": names, "timeout_s": self.a.timeout}))
            lines.touch()
            argv = [sys.executable, JOB, job]
            if way == "explicit":
                argv = c.penstock_argv(argv, self.a.budget, report=report, engine=way)
            rc = self._watch(argv, self._environment(way), log, lines)
            return Ran(rc, c.json_lines(lines.read_text(errors="replace")), log.read_text(errors="replace"), c._load(report), self.a.tests)

    def _environment(self, way):
        """Each way compiles for itself, and leaves nothing in the user's caches."""
        env = {k: f"{self.folder}/{way}/{k}" for k in CACHES} | {"PYTORCH_PRINT_REPRO_ON_FAILURE": "0"}
        if self.a.device == "cpu":
            env["CUDA_VISIBLE_DEVICES"] = ""
        return c.environment(env)

    def _watch(self, argv, env, log, lines):
        """The exit status, or None when nothing was said on lines for too long."""
        with open(log, "w") as out:
            p = c.start(argv, env, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
        said, since = 0, time.monotonic()
        try:
            while not self.stopping.is_set() and time.monotonic() - since < self.a.timeout + GRACE_S:
                try:
                    return p.wait(0.1)
                except subprocess.TimeoutExpired:
                    pass
                if lines.stat().st_size != said:
                    said, since = lines.stat().st_size, time.monotonic()
            return None
        finally:
            c.end_group(p)  # also what a finished one left behind
            try:
                p.wait(ENDS_WITHIN_S)
            except subprocess.TimeoutExpired:
                pass  # stuck in the driver: the free memory that the next one asks for decides

    def run_all(self, way, file, names):
        """(results by name, problems) of tests, in as many processes as it takes."""
        results, problems, left = {}, [], list(names)
        while left and not self.stopping.is_set():
            ran = self.run(way, file, left)
            results.update(ran.results())
            if ran.unfinished():
                results[ran.unfinished()] = ran.end()
            found = ran.problem(way == "explicit")
            if found:
                problems.append({"way": way, "first_test": left[0], "problem": found})
            rest = [n for n in left if n not in results]
            if len(rest) == len(left):
                results.update(dict.fromkeys(rest, ran.nothing()))
                break
            left = rest
        return results, problems


# ---- what there is to run ----


def collect(runner, file):
    """The names of a file's tests that were asked for, in order."""
    if not (runner.a.tests / file).is_file():
        raise c.Refused(f"there is no {file} in {runner.a.tests}: --tests takes the folder test of PyTorch's sources, of the version that is installed")
    ran = runner.run("stock", file, None)
    error, told = ran.line("error"), ran.line("names")
    if error:
        raise c.Refused(f"{file} cannot be imported: {error['error']}; {hint(error)}")
    if not told:
        raise c.Refused(f"{file} cannot be imported: {ran.end()['reason']}")
    if not told["names"]:
        print(f"{file} has no tests here{': ' + told['skipped'] if 'skipped' in told else ' (some need a card, or triton)'}", flush=True)
    only = FILES.get(file, "") if runner.a.only is None else runner.a.only
    return [n for n in told["names"] if re.search(only, n)]


def hint(error):
    missing = error["missing"]
    if missing and "." not in missing:
        return f"PyTorch's tests need the package {missing}: install it"
    return "are these the tests of the PyTorch that is installed?"


def class_of(name):
    return name.rpartition(".")[0]


def groups(names):
    """Some neighbours of one class each."""
    found = []
    for name in names:
        if not found or len(found[-1]) == GROUP or class_of(found[-1][0]) != class_of(name):
            found.append([])
        found[-1].append(name)
    return found


# ---- the results ----


def lost(test, way):
    return test["stock"]["state"] == "passed" and test[way]["state"] != "passed"


def classes(tests, way):
    """For each class: how many ran in stock, passed in stock, passed here, and are lost."""
    found = {}
    for t in tests:
        row = found.setdefault(class_of(t["name"]), {"tests": 0, "run": 0, "passed_stock": 0, "passed_here": 0, "lost": 0})
        row["tests"] += 1
        row["run"] += t["stock"]["state"] != "skipped"
        row["passed_stock"] += t["stock"]["state"] == "passed"
        row["passed_here"] += t[way]["state"] == "passed"
        row["lost"] += lost(t, way)
    return [{"class": k, **v} for k, v in found.items()]


def told(test, way):
    here = test[way]
    alone = f" (alone: {here['alone']})" if "alone" in here else ""
    return f"{test['name']}: {here['state']}{alone}: {here['reason']}"


class Session:
    """The tests of a call: runs them, keeps the document, prints the tables."""

    def __init__(self, runner, document):
        self.runner, self.document, self.lock = runner, document, threading.Lock()
        self.way = "explicit" if runner.a.device == "cuda" else "again"
        self.name = runner.a.name if runner.a.device == "cuda" else f"{runner.a.name}-cpu"  # which git ignores

    def run(self, names_of):
        """names_of: {file: [name]}."""
        self.order = {n: i for i, n in enumerate(n for names in names_of.values() for n in names)}
        self.document["not_run"] = list(self.order)
        with concurrent.futures.ThreadPoolExecutor(self.runner.a.jobs) as pool:
            try:
                tasks = [pool.submit(self._group, file, names) for file, found in names_of.items() for names in groups(found)]
                for f in concurrent.futures.as_completed(tasks):
                    f.result()
            except BaseException:  # a rule that does not hold, or who ends this: what runs is ended, too
                self.runner.stopping.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return self._summary()

    def _group(self, file, names):
        if self.runner.late():
            return
        run_all = self.runner.run_all
        stock, problems = run_all("stock", file, names)
        here, more = run_all(self.way, file, names)
        if self.runner.stopping.is_set():
            return
        tests = [{"name": n, "stock": stock[n], self.way: here[n]} for n in names]
        for t in tests:
            if lost(t, self.way) and not self.runner.late():
                again, _ = run_all(self.way, file, [t["name"]])
                t[self.way]["alone"] = again[t["name"]]["state"] if again else "not run"
            for way in ("stock", self.way):
                if way == "stock" or not lost(t, way):
                    t[way].pop("trace", None)
        with self.lock:
            self._keep(tests, problems + more)

    def _keep(self, tests, problems):
        d = self.document
        d["tests"] = sorted(d["tests"] + tests, key=lambda t: self.order[t["name"]])
        d["problems"] += problems
        done = {t["name"] for t in tests}
        d["not_run"] = [n for n in d["not_run"] if n not in done]
        d["classes"] = classes(d["tests"], self.way)
        d["wall_s"] = round(time.monotonic() - self.runner.began, 1)
        c.save(self.name, d)
        passed = sum(t[self.way]["state"] == "passed" for t in tests)
        print(f"{d['wall_s']:6.0f} s  {class_of(tests[0]['name'])}: {len(tests)} tests, {passed} passed here", flush=True)
        for line in [told(t, self.way) for t in tests if lost(t, self.way)] + [f"{p['way']}: {p['problem']}" for p in problems]:
            print(f"          {line}", flush=True)

    def _summary(self):
        d = self.document
        c.save(self.name, d)
        print(f"\n{len(d['tests'])} tests; {d['gpu']}, {', '.join(f'{k} {v}' for k, v in d['versions'].items())}; budget {d['budget'] or 'none'}")
        print(c.table(["class", "tests", "run", "passed in stock", "passed here", "lost"], [list(row.values()) for row in d["classes"]]))
        for t in d["tests"]:
            if lost(t, self.way):
                print(f"lost  {told(t, self.way)}")
        for p in d["problems"]:
            print(f"{p['way']}: from {p['first_test']}: {p['problem']}")
        if d["not_run"]:
            print(f"not run: {len(d['not_run'])} tests, from {d['not_run'][0]}")
        wrong = any(lost(t, self.way) for t in d["tests"]) or any(p["way"] != "stock" for p in d["problems"])
        return 1 if wrong or not any(t["stock"]["state"] == "passed" for t in d["tests"]) else 0


def tests_version(tests):
    """What the sources around the folder say of their version, or None."""
    try:
        return (tests.parent / "version.txt").read_text().strip()
    except OSError:
        return None


def body():
    a = parse()
    if a.device == "cuda":
        c.require_build()
    card = c.Card() if a.device == "cuda" else g.NoCard()
    card.require_free()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", ignore_cleanup_errors=True) as folder:
        runner = Runner(a, card, folder)
        names_of = {file: collect(runner, file) for file in a.files}
        if a.list:
            print("\n".join(n for names in names_of.values() for n in names))
            return 0
        document = {**c.header(card, c.EXPLICIT_NOTE), "versions": g.versions("triton"), "tests_version": tests_version(a.tests), "budget": a.budget, "classes": [], "tests": [], "problems": []}
        return Session(runner, document).run(names_of)


if __name__ == "__main__":
    c.main(body)
