"""Recordings of jobs in memory: what the simulator reads, and what the history's tests need.

    python3 bench/record.py [MODEL ...] [--iters 12] [--to FOLDER]

Each model, of bench/changing.py or bench/workloads.py, trains under the explicit engine with room for everything, so nothing waits and
durations are the GPU's own. FOLDER/MODEL.pstrace is its recording; `penstock simulate --trace` takes it as it is.
Exit status 1 when a job failed or something was moved while it was recorded.
"""

import argparse
import time
from pathlib import Path

import _common as c
import changing


def parse():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("models", nargs="*", metavar="MODEL", default=list(changing.workloads.MODELS))
    p.add_argument("--iters", type=int, default=12)
    p.add_argument("--room", default="70GiB", help="the budget, in which everything has to fit")
    p.add_argument("--host-budget", default="30GiB")
    p.add_argument("--timeout", type=float, default=120, help="seconds a run may take")
    p.add_argument("--deadline", type=float, default=570, help="no run is started after so many seconds")
    p.add_argument("--to", type=Path, default=Path("recordings"), metavar="FOLDER")
    p.add_argument("--name", default="record", help="results go to bench/results/NAME.json")
    return p.parse_args()


def record(card, model, a):
    """One recording, and what is said of it."""
    trace = a.to / f"{model}.pstrace"
    r = c.train(
        card, model, a.iters, a.timeout, penstock=True, engine="explicit", budget=a.room, host_budget=a.host_budget, trace=trace, workloads=changing.script(model),
    )  # fmt: skip
    report = c.report_of(r)
    moved = (report.get("h2d_bytes") or 0) + (report.get("d2h_bytes") or 0)
    wrong = r["error"] or (f"{moved} bytes were moved while it was recorded: give --room more" if moved else None)
    seconds = (r.get("result") or {}).get("iter_s") or []
    return {
        "model": model, "wrong": wrong, "iterations": len(seconds), "iter_s": [round(x, 4) for x in seconds], "peak_bytes": report.get("allocated_peak_bytes"),
        "file_bytes": trace.stat().st_size if trace.exists() else None, "command": r["command"], "stderr_tail": r["stderr_tail"][-1500:] if wrong else "",
    }  # fmt: skip


def body():
    a = parse()
    c.require_build()
    card = c.Card()
    a.to.mkdir(parents=True, exist_ok=True)
    document, ends = {**c.header(card, c.EXPLICIT_NOTE), "rows": []}, time.monotonic() + a.deadline
    for model in a.models:
        if time.monotonic() > ends:
            print(f"{model}: not begun by the deadline", flush=True)
            continue
        s = record(card, model, a)
        document["rows"].append(s)
        c.save(a.name, document)
        peak, file = (s["peak_bytes"] or 0) / c.GIB, (s["file_bytes"] or 0) / 1e6
        print(f"{model}: {s['wrong'] or 'in order'}; peak {peak:.2f} GiB, {file:.2f} MB, s/iteration {s['iter_s']}", flush=True)
    return 1 if any(s["wrong"] for s in document["rows"]) else 0


if __name__ == "__main__":
    c.main(body)
