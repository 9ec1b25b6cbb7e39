"""Does a long run become slower? GPT-2 medium inside a budget under the managed engine, iteration by iteration.

    python3 bench/drift.py [--runs deterministic:100,plain:60] [--budget 3GiB] [--timeout 40] [--deadline 84]

Prints for each iteration its seconds, bytes each way, faults, launches that were let go late, stalls, allocations that
had to be tried again, tensors beside the arena for want of address space (PENSTOCK_MANAGED_LIMIT is tight here), and
what the engine has learned. Exit status 1 when a run failed, when the median of the last third is more than 10 % above
that of iterations 6 to 20, or when an iteration after the fifth took three times the median.
"""

import argparse
import time

import _common as c

COUNTERS = ("h2d_bytes", "d2h_bytes", "faults", "late_launches", "retries", "plain_tensors", "stall_seconds", "space_stall_seconds", "lock_wait_seconds")
STATES = ("iteration_launches", "prediction_hit_rate", "reserved_bytes", "resident_bytes", "resident_peak_bytes")
EARLY = slice(5, 20)
MOST_DRIFT, MOST_OUTLIER = 1.10, 3.0
STARTUP_S = 20  # what a run needs at least to show anything


def parse():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--model", default="gpt2m")
    p.add_argument("--runs", default="deterministic:100,plain:60", help="deterministic or plain, with iterations")
    p.add_argument("--budget", default="3GiB")
    p.add_argument("--engine", default="managed", choices=("managed", "explicit"))
    p.add_argument("--timeout", type=float, default=40, help="seconds a run may take; what it finished until then counts")
    p.add_argument("--deadline", type=float, default=84, help="seconds after which every run has ended; none is started shortly before")
    p.add_argument("--name", default="drift", help="results go to bench/results/NAME.json")
    a = p.parse_args()
    a.runs = [(kind, int(n)) for kind, _, n in (r.partition(":") for r in a.runs.split(","))]
    if any(kind not in ("deterministic", "plain") or n < 30 for kind, n in a.runs):
        p.error("--runs takes deterministic:N or plain:N with N of at least 30")
    return a


def iterations(result):
    """One row for each iteration: seconds, what it added to the counters, and the states after it."""
    before = result.get("stats_before") or {}
    for i, (seconds, stats) in enumerate(zip(result["iter_s"], result.get("stats") or [])):
        row = {"iteration": i, "seconds": round(seconds, 4)}
        for key in COUNTERS:
            now, then = stats.get(key), before.get(key) or 0
            row[key] = None if now is None or now == -1 else now - max(0, then)
        row.update({key: stats.get(key) for key in STATES})
        before = stats
        yield row


def verdict(seconds):
    """(drift, worst outlier over the median), or None when too few iterations were finished."""
    if len(seconds) < 30:
        return None
    early, late = c.median(seconds[EARLY]), c.median(seconds[-(len(seconds) // 3) :])
    return late / early, max(seconds[EARLY.start :]) / c.median(seconds[EARLY.start :])


def show(rows):
    def mib(value):
        return "n/a" if value is None else f"{value / (1 << 20):.0f}"

    head = ["it", "s", "in MiB", "out MiB", "faults", "late", "retries", "beside", "stall s", "for space", "lock s", "period", "hits", "reserved MiB", "resident MiB", "peak MiB"]
    body = [
        [r["iteration"], f"{r['seconds']:.3f}", mib(r["h2d_bytes"]), mib(r["d2h_bytes"]), *(c.fmt(r[k], "d") for k in COUNTERS[2:6]),
         *(c.fmt(r[k]) for k in COUNTERS[6:]), c.fmt(r["iteration_launches"], "d"), c.fmt(r["prediction_hit_rate"], ".3f"),
         *(mib(r[k]) for k in STATES[2:])]
        for r in rows
    ]  # fmt: skip
    print(c.table(head, body))


def body():
    a = parse()
    c.require_build()
    card = c.Card()
    doc = {**c.header(card), "model": a.model, "budget": a.budget, "engine": a.engine, "runs": []}
    bad, began = [], time.monotonic()
    for kind, n in a.runs:
        left = a.deadline - (time.monotonic() - began)
        if left < STARTUP_S:
            bad.append(f"{kind}: skipped, the deadline of {a.deadline:.0f} s is near")
            continue
        r = c.train(card, a.model, n, min(a.timeout, left), penstock=True, budget=a.budget, policy="penstock", engine=a.engine, deterministic=kind == "deterministic")
        run = {"kind": kind, "command": r["command"], "error": r["error"], "wall_s": r["wall_s"], "timed_out": r["timed_out"]}
        doc["runs"].append(run)
        if r.get("result"):
            run["iterations"] = list(iterations(r["result"]))
            print(f"\n{kind}: {len(run['iterations'])} of {n} iterations in {r['wall_s']} s")
            show(run["iterations"])
            run["verdict"] = verdict(r["result"]["iter_s"])
        c.save(a.name, doc)
        if r["error"] or not run.get("verdict"):
            bad.append(f"{kind}: {r['error'] or 'fewer than 30 iterations ended in time'}")
            print(c.tail(r["stderr_tail"]), flush=True)
            continue
        drift, outlier = run["verdict"]
        print(f"{kind}: the last third takes {drift:.2f} times as long as iterations {EARLY.start + 1} to {EARLY.stop}; the slowest {outlier:.1f} times the median", flush=True)
        if drift > MOST_DRIFT or outlier > MOST_OUTLIER:
            bad.append(f"{kind}: drift {drift:.2f} (at most {MOST_DRIFT}), slowest {outlier:.1f} (at most {MOST_OUTLIER})")
    for b in bad:
        print("NOT in order: " + b)
    return 1 if bad else 0


if __name__ == "__main__":
    c.main(body)
