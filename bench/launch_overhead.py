"""What the launch hook costs: CPU time of launching an empty kernel, median and p99, over the driver's own function.

    python3 bench/launch_overhead.py [--rounds 1000] [--processes 3] [--only recorded]

Compiles launch_overhead.cu with nvcc. Within a process one thread, on one core,
launches through the driver's function and through the hook's wrapper in its
modes, in turns of 200 launches; a figure is the median over the rounds of the
difference of a round's two medians, with the 95 % confidence range of that median,
and its range over several processes. Exit status 1 when a run failed or a median is
more than 0.5 us over the driver's function.
"""

import argparse
import math
import tempfile
from pathlib import Path

import _common as c

ALLOWED_NS = 500
BUDGET = "4GiB"

# process, preload the hook, engine, budget, modes of the hook, recorded to a trace
PROCESSES = (
    ("without Penstock", False, False, None, "", False),
    ("hook alone", True, False, None, "off", False),
    ("engine, no budget", True, True, None, "off", False),
    ("engine, no budget, recorded", True, True, None, "off", True),  # nothing can fault: launches are not recorded
    ("engine, budget", True, True, BUDGET, "off,observe,gated", False),
    ("engine, budget, recorded", True, True, BUDGET, "observe,gated", True),
)


def parse():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--rounds", type=int, default=1000)
    p.add_argument("--processes", type=int, default=3, help="of each kind, one after another in turn")
    p.add_argument("--only", default="", help="kinds of process whose name has this")
    p.add_argument("--timeout", type=float, default=60)
    p.add_argument("--name", default="launch-overhead", help="results go to bench/results/NAME.json")
    return p.parse_args()


def check(result, modes):
    """What makes a figure worthless, or None."""
    launches = result["rounds"] * result["batch"]
    for v in result["variants"]:
        wanted = launches if v["name"] in ("observe", "gated") else 0
        if v["seen"] != wanted:
            return f"{v['name']}: the hook saw {v['seen']} launches, not {wanted}"
    if [v["name"] for v in result["variants"]] != (["real", *modes.split(",")] if modes else ["stock"]):
        return f"variants {[v['name'] for v in result['variants']]}"
    if result["gated"] > launches // 100:
        return f"{result['gated']} launches were gated although everything is resident"
    if result["dropped"]:
        return f"{result['dropped']} records were lost"
    return None


def confidence(values):
    """The 95 % range of the median, by order statistics."""
    ordered, n = sorted(values), len(values)
    reach = 0.98 * math.sqrt(n)
    return ordered[max(0, math.floor(n / 2 - reach))], ordered[min(n - 1, math.ceil(n / 2 + reach))]


def body():
    a = parse()
    c.require_build()
    card = c.Card()
    card.require_free()
    document = {**c.header(card), "nvcc": c.find_nvcc(), "rounds": a.rounds, "runs": [], "summaries": [], "errors": []}
    kinds = [k for k in PROCESSES if a.only in k[0]]
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as d:
        program = c.compile_cuda("launch_overhead.cu", Path(d) / "launch_overhead", "-ldl")
        for turn in range(a.processes):
            for name, preload, engine, budget, modes, recorded in kinds:
                card.require_free()
                extra = {"PENSTOCK_POLICY": "penstock"} if engine else {}
                if preload:
                    extra["LD_PRELOAD"] = str(c.HOOK)
                if recorded:
                    extra["PENSTOCK_TRACE"] = str(Path(d) / "recorded.pstrace")
                if budget:
                    extra["PENSTOCK_BUDGET"] = str(4 * c.GIB)
                argv = [program, "--rounds", a.rounds, *(["--engine", c.ENGINE] if engine else []), *(["--modes", modes] if modes else [])]
                r = c.run(argv, c.environment(extra), a.timeout)
                results = c.json_lines(r["stdout"])
                error = check(results[-1], modes) if results else f"rc {r['rc']}, timed out: {r['timed_out']}: {c.tail(r['stderr'], 4)}"
                if error:
                    document["errors"].append(f"{name}, process {turn + 1}: {error}")
                document["runs"].append({"process": name, "turn": turn, "error": error, "stderr_tail": c.tail(r["stderr"]), **(results[-1] if results else {})})
    rows = []
    for name, *_ in kinds:
        good = [r for r in document["runs"] if r["process"] == name and not r["error"]]
        for i in range(len(good[0]["variants"]) if good else 0):
            each = [r["variants"][i] for r in good]
            s = {"process": name, "variant": each[0]["name"], "processes": len(good), **{k: c.median([v[k] for v in each]) for k in ("median_ns", "p99_ns", "p999_ns")}}
            if i:
                base = [r["variants"][0] for r in good]
                over = [[x - y for x, y in zip(v["round_median_ns"], b["round_median_ns"])] for v, b in zip(each, base)]
                pooled = [x for o in over for x in o]
                s["over_real_ns"] = {
                    "median": c.median(pooled), "confidence_95": confidence(pooled), "by_process": [c.median(o) for o in over],
                    "p99": c.median([v["p99_ns"] - b["p99_ns"] for v, b in zip(each, base)]),
                }
            document["summaries"].append(s)
            over = s.get("over_real_ns")
            us = [f"{s[k] / 1e3:.3f}" for k in ("median_ns", "p99_ns", "p999_ns")]
            more = [f"{over['median'] / 1e3:+.3f}", " to ".join(f"{x / 1e3:+.3f}" for x in over["confidence_95"]), " ".join(f"{x / 1e3:+.3f}" for x in over["by_process"]), f"{over['p99'] / 1e3:+.3f}"] if over else [""] * 4
            rows.append([name, s["variant"], *us, *more])
    for run in document["runs"]:
        for v in run.get("variants", []):
            del v["round_median_ns"]  # thousands of numbers, and summed up above
    c.save(a.name, document)
    print(f"Empty kernel, 4 pointers, {a.processes} processes of {a.rounds} rounds, us of CPU per launch, timer included; {c.CAP_NOTE}; {document['gpu']}")
    print(c.table(["process", "variant", "median", "p99", "p99.9", "median over real", "95 %", "by process", "p99 over real"], rows))
    for e in document["errors"]:
        print("FAIL: " + e)
    over = [s for s in document["summaries"] if s.get("over_real_ns", {}).get("median", 0) > ALLOWED_NS]
    for s in over:
        print(f"NOT in order: {s['process']}, {s['variant']}: {s['over_real_ns']['median'] / 1e3:+.3f} us over the driver's function (allowed: {ALLOWED_NS / 1e3} us)")
    return 1 if document["errors"] or over or not rows else 0


if __name__ == "__main__":
    c.main(body)
