"""Stock PyTorch beside `penstock run`, without a budget and inside budgets, a few iterations of each by turns.

    python3 bench/turns.py [--models moe] [--rounds 60] [--turn 4] [--control] [--on-device] [--name turns]

All processes live at a time, and each trains when it is asked to, while the others wait: what else a
machine does changes over seconds, and so touches turns next to each other alike, which it does not for whole
runs (bench/fits.py). The first iteration of a turn is left out, as caches hold what the other process
had there. Of each round the median of Penstock's iterations is divided by that of stock's; reported are the
median of these ratios and the interval that 95 of 100 medians of rounds drawn again lie in; beside it, how
much longer the time is that a tenth of all its iterations stay below. With --control a
second stock process takes part, and the same is reported of it: what the method itself is off by.
All processes' memory must fit the card together; none of it is managed, and the report is checked for it.
With --against a job in less memory than it needs stands beside the same job in memory, whatever the machine does meanwhile:

    python3 bench/turns.py --models gpt2m --deterministic --against PENSTOCK_ENGINE=explicit,PENSTOCK_BUDGET=4046MiB

With --before each process of --against has one beside it with another build's bin/ and lib/, and is compared with that.

Exit status 1 when a process failed, used managed memory, or is more than 2 % slower.
"""

import argparse
import json
import queue
import random
import sys
import tempfile
import threading
import time
from pathlib import Path

import _common as c
from fits import ALLOWED_PERCENT, managed_use

WARM_UP = 6  # iterations before the first turn


def parse():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--models", default="moe")
    p.add_argument("--rounds", type=int, default=60)
    p.add_argument("--turn", type=int, default=4, help="iterations at a time, the first of which is not counted")
    p.add_argument("--control", action="store_true", help="a second stock process")
    p.add_argument("--against", action="append", default=[], metavar="NAME=VALUE[,...]", help="one more process of penstock run with this in its environment; may be repeated")
    p.add_argument("--before", metavar="FOLDER", help="another build, with bin/ and lib/: each process of --against also with it")
    p.add_argument("--deterministic", action="store_true", help="deterministic algorithms, as in bench/explicit.py")
    p.add_argument("--on-device", action="store_true", help="models are built where they are trained, which is faster")
    p.add_argument("--timeout", type=float, default=120, help="seconds a turn may take")
    p.add_argument("--deadline", type=float, default=500, help="no round is begun after so many seconds")
    p.add_argument("--name", default="turns", help="results go to bench/results/NAME.json")
    a = p.parse_args()
    if a.turn < 2:
        p.error("--turn: at least 2, for the first iteration is not counted")
    a.against = {word: c.settings(word) for word in a.against}
    a.models = a.models.split(",")
    if a.before and not (Path(a.before) / "bin" / "penstock").exists():
        p.error(f"--before: there is no bin/penstock in {a.before}")
    return a


class Trainer:
    """A process that trains when it is asked to."""

    def __init__(self, number, name, model, extra, flags, folder, build=None):
        """extra is what Penstock's environment has beside, None for stock; build is the folder of another build."""
        self.name, self.report, self.answers = name, Path(folder) / f"{number}.json", queue.Queue()
        command = [sys.executable, c.WORKLOADS, model, "1", "--when-asked", *flags]
        if extra is not None:
            command = c.penstock_argv(command, report=self.report)
            if build:
                command[0] = Path(build).resolve() / "bin" / "penstock"
        self.err = tempfile.TemporaryFile("w+")
        pipe = c.subprocess.PIPE
        self.process = c.start(command, c.environment(extra), stdin=pipe, stdout=pipe, stderr=self.err, text=True)
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            for answer in c.json_lines(line):
                self.answers.put(answer)
        self.answers.put(None)

    def train(self, iterations, timeout_s):
        """The seconds that each iteration took."""
        try:
            self.process.stdin.write(f"{iterations}\n")
            self.process.stdin.flush()
            answer = self.answers.get(timeout=timeout_s)
        except (OSError, queue.Empty) as e:
            raise c.Refused(f"{self.name}: no answer ({type(e).__name__}): {self.said()}") from None
        if answer is None:
            raise c.Refused(f"{self.name} has ended: {self.said()}")
        return answer["iter_s"]

    def said(self):
        self.err.seek(0)
        return c.tail(self.err.read(), 4, 600)

    def end(self):
        """The exit report, if there is one."""
        try:
            self.process.stdin.close()
            self.process.wait(60)
        except (OSError, c.subprocess.TimeoutExpired):
            pass
        c.end_group(self.process)
        return json.loads(self.report.read_text()) if self.report.exists() else None


def interval(ratios):
    """What 95 of 100 medians lie in, of as many ratios drawn from these."""
    draw = random.Random(1)
    medians = sorted(c.median(draw.choices(ratios, k=len(ratios))) for _ in range(4000))
    return [medians[100], medians[-101]]


def quiet(turns, name):
    """What a tenth of the iterations stay below: what disturbs a machine makes them longer, and never shorter."""
    x = sorted(t for turn in turns for t in turn[name])
    return x[len(x) // 10]


def compare(turns, name, over="stock"):
    """A process beside another one, round by round."""
    ratios = [c.median(t[name]) / c.median(t[over]) for t in turns]
    low, high = interval(ratios)
    return {
        "seconds": c.median([x for t in turns for x in t[name]]), "slower_percent": 100 * (c.median(ratios) - 1),
        "interval_percent": [100 * (low - 1), 100 * (high - 1)], "quiet_percent": 100 * (quiet(turns, name) / quiet(turns, over) - 1), "quiet_seconds": quiet(turns, name),
    }  # fmt: skip


def wrong(report, extra):
    """What makes a process of Penstock's worthless, or None."""
    if not report:
        return "no report was written: Penstock was not in the process"
    if extra.get("PENSTOCK_ENGINE") == "explicit" and report.get("engine") == "explicit":
        return report.get("failure")  # it uses no managed memory
    return managed_use({"report": report})


def measure(card, model, a, deadline):
    card.require_free()
    flags = [*(["--on-device"] if a.on_device else []), *(["--deterministic", "--no-fill"] if a.deterministic else [])]
    kinds = {"stock": None, "penstock": {}, **a.against, **({"stock again": None} if a.control else {})}
    builds = {}
    if a.before:
        builds = {f"{n}, before": a.before for n in a.against}
        kinds.update({f"{n}, before": extra for n, extra in a.against.items()})
    turns = []
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        trainers = [Trainer(i, n, model, extra, flags, folder, builds.get(n)) for i, (n, extra) in enumerate(kinds.items())]
        try:
            for t in trainers:
                t.train(WARM_UP, a.timeout)
            for i in range(a.rounds):
                if time.monotonic() > deadline:
                    break
                k = i % len(trainers)
                turn = {t.name: t.train(a.turn, a.timeout)[1:] for t in trainers[k:] + trainers[:k]}
                turns.append(turn)
        finally:
            reports = {t.name: t.end() for t in trainers}
    error = None
    for n, extra in kinds.items():
        if extra is not None:
            error = error or wrong(reports[n], extra)
    if not turns:
        raise c.Refused(f"{model}: no round was finished by the deadline")
    summary = {"model": model, "rounds": len(turns), "error": error, "stock_seconds": c.median([x for t in turns for x in t["stock"]])}
    summary["beside_stock"] = {n: compare(turns, n) for n in kinds if n != "stock"}
    if a.before:
        summary["beside_before"] = {n: compare(turns, n, f"{n}, before") for n in a.against}
    return {**summary, "reports": reports, "turns": turns}


HEAD = ["model", "process", "rounds", "s/it", "slower", "95 %", "quiet", "error"]


def rows(s):
    yield [s["model"], "stock", s["rounds"], c.fmt(s["stock_seconds"], ".4f"), "", "", "", s["error"] or "none"]
    beside = [*s["beside_stock"].items(), *((f"{n}, beside before", x) for n, x in s.get("beside_before", {}).items())]
    for n, x in beside:
        between = "{:+.2f} to {:+.2f}".format(*x["interval_percent"])
        yield [s["model"], n, s["rounds"], c.fmt(x["seconds"], ".4f"), c.fmt(x["slower_percent"], "+.2f", " %"), between, c.fmt(x["quiet_percent"], "+.2f", " %"), ""]


def body():
    a = parse()
    c.require_build()
    card = c.Card()
    document = {**c.header(card), "warm_up": WARM_UP, "turn": a.turn, "summaries": []}
    deadline = time.monotonic() + a.deadline
    bad = []
    for model in a.models:
        s = measure(card, model, a, deadline)
        document["summaries"].append(s)
        c.save(a.name, document)
        if s["error"] or s["beside_stock"]["penstock"]["slower_percent"] > ALLOWED_PERCENT:
            bad.append(f"{model}: {s['error'] or 'more than %s %% slower' % ALLOWED_PERCENT}")
    print(f"No budget but where the process says so; {document['gpu']}, driver {document['driver']}")
    print(c.table(HEAD, [r for s in document["summaries"] for r in rows(s)]))
    if bad:
        print("NOT in order: " + "; ".join(bad))
    return 1 if bad else 0


if __name__ == "__main__":
    c.main(body)
