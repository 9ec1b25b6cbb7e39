"""What recording costs: iterations of one process, recorded and not by turns.

    python3 bench/faults_cost.py [--jobs gpt2l,gpt2m,gpt2m:3GiB] [--seconds 40] [--deadline 300]

A job is MODEL (everything fits, nothing faults) or MODEL:BUDGET[:POLICY] (managed memory). Runs of the
same thing in two processes differ by far more than recording costs, so each process switches its recording
off and on (penstock_record): recorded, not, not, recorded, and again, for a number of seconds. While it is off
the hook is off, where nothing can move, and no thread wakes for the recording; what was launched in the last
50 ms before is encoded in the beginning of the next iteration, by another thread. Each recorded iteration is
compared with the unrecorded one beside it; the figure is the median of these differences, with the range that
holds 95 % of the medians of resampled pairs (bootstrap). Longer turns tell less: machines change their speed
over tens of iterations. What is promised, 1 % where everything fits and 3 % under a budget, is shown when the whole
range is below it and missed when the whole range is above. Exit status 1 when a run failed or a figure is above.
"""

import argparse
import random
import tempfile
import time
from pathlib import Path

import _common as c

WARM_UP = {"gpt2m": 30}  # what is recorded of launches and allocations has filled its rings once
WARM_UP_NAIVE = 3
MOST_ITERATIONS = 100_000
PROMISED = {"fits": 0.01, "budget": 0.03}
RESAMPLES = 4000


def parse():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--jobs", default="gpt2l,gpt2m,gpt2m:3GiB")
    p.add_argument("--seconds", type=float, default=40, help="that each job takes turns")
    p.add_argument("--deadline", type=float, default=300, help="no run is started that could not end within so many seconds of the start")
    p.add_argument("--timeout", type=float, default=140)
    p.add_argument("--name", default="faults-cost", help="results go to bench/results/NAME.json")
    return p.parse_args()


def compare(seconds, recorded):
    """The relative cost of recording from iterations in the order on, off, off, on."""
    pairs = []
    for i in range(0, len(recorded) - 1, 2):
        on, off = (seconds[i], seconds[i + 1]) if recorded[i] else (seconds[i + 1], seconds[i])
        pairs.append(on / off - 1)
    draw = random.Random(1)
    medians = sorted(c.median([draw.choice(pairs) for _ in pairs]) for _ in range(RESAMPLES))
    return {
        "pairs": len(pairs), "cost": c.median(pairs), "low": medians[int(0.025 * RESAMPLES)], "high": medians[int(0.975 * RESAMPLES)],
        "recorded_s": c.median([s for s, r in zip(seconds, recorded) if r]), "plain_s": c.median([s for s, r in zip(seconds, recorded) if not r]),
        "pair_costs": [round(p, 5) for p in pairs],
    }  # fmt: skip


def body():
    a = parse()
    c.require_build()
    card = c.Card()
    card.require_free()
    began = time.monotonic()
    doc = {**c.header(card), "resamples": RESAMPLES, "runs": [], "skipped": []}
    rows, bad = [], []
    with tempfile.TemporaryDirectory(prefix="penstock-faults-") as folder:
        for job in a.jobs.split(","):
            model, budget, policy, *_ = [*job.split(":"), "", ""]
            left = a.deadline - (time.monotonic() - began)
            if left < a.seconds + 40:  # to start, build the model and warm up
                doc["skipped"].append(job)
                continue
            warm = WARM_UP_NAIVE if policy == "naive" else WARM_UP.get(model, 4)
            trace = Path(folder) / "run.pstrace"
            trace.unlink(missing_ok=True)
            r = c.train(card, model, MOST_ITERATIONS, min(a.timeout, left), penstock=True, budget=budget or None, policy=(policy or "penstock") if budget else None,
                        deterministic=bool(budget), trace=trace, flags=["--record-turns", str(warm), "--turn-seconds", str(a.seconds)])  # fmt: skip
            run = {"job": job, "command": r["command"], "error": r["error"], "wall_s": r["wall_s"]}
            doc["runs"].append(run)
            if r["error"] or r["timed_out"] or not r["result"].get("recorded"):
                run["error"] = r["error"] or "it did not end in time"
                run["iter_s"] = (r.get("result") or {}).get("iter_s")
                bad.append(f"{job}: {run['error']}")
                print(f"{job}: {run['error']}\n{c.tail(r['stderr_tail'])}", flush=True)
                continue
            seconds = r["result"]["iter_s"]
            run.update(iter_s=seconds, recorded=r["result"]["recorded"], faults=c.report_of(r).get("faults"), trace_bytes=trace.stat().st_size,
                       **compare(seconds[warm:], r["result"]["recorded"]))  # fmt: skip
            promised = PROMISED["budget" if budget else "fits"]
            run["promise"] = "shown" if run["high"] <= promised else "missed" if run["low"] > promised else "open"
            rows.append([job, f"{run['plain_s']:.4f}", f"{run['recorded_s']:.4f}", f"{run['cost']:+.2%}", f"{run['low']:+.2%} to {run['high']:+.2%}", run["pairs"], f"{promised:.0%}: {run['promise']}"])
            if run["cost"] > promised:
                bad.append(f"{job}: recording costs {run['cost']:.2%}, promised are {promised:.0%}")
            print(f"{job}: {run['cost']:+.2%} ({r['wall_s']} s in all)", flush=True)
            c.save(a.name, doc)
    print(f"\nSeconds an iteration, medians, recorded and not by turns in one process; {doc['gpu']}, driver {doc['driver']}")
    print(c.table(["job", "not recorded", "recorded", "cost", "95 % range", "pairs", "promised"], rows))
    doc["problems"] = bad
    c.save(a.name, doc)
    for b in bad:
        print("NOT in order: " + b)
    if doc["skipped"]:
        print("skipped for the deadline:", ", ".join(doc["skipped"]))
    return 1 if bad else 0


if __name__ == "__main__":
    c.main(body)
