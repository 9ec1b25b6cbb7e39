"""Whether PyTorch's operators compute under Penstock, short of memory, what they compute without it.

    python3 bench/operators.py [--engines explicit,managed] [--budget 768MiB] [--pressure 1536]

Runs each operator of operator_catalogue.py in one process (operators_job.py), under stock PyTorch twice and under
`penstock run` with each engine. Between making inputs and using them, between forward and backward, and
before results are read, memory of its own is touched that does not fit beside, so that inputs, what is saved for
backward and results have left the device and come back. What an operator computes must be the same bytes as
under stock; of operators that PyTorch says are not deterministic, or that stock did not repeat, the sums of absolute
values must be within 1 %. An operator that fails must fail with stock as well. Under the managed engine the budget is a
software cap: the card itself is not full.
Exit status 1 when anything differs.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

import _common as c

JOB = c.BENCH / "operators_job.py"
MOST_RESTARTS = 12
TOLERANCE = 0.01  # of sums, where bytes cannot be compared


def parse():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--engines", default="explicit,managed")
    p.add_argument("--budget", default="768MiB")
    p.add_argument("--pressure", type=int, default=1536, metavar="MIB")
    p.add_argument("--only", default="", help="operators whose name has this in it")
    p.add_argument("--verify", action="store_true", help="PENSTOCK_VERIFY=1: every move is checked")
    p.add_argument("--timeout", type=float, default=150, help="seconds a run may take")
    p.add_argument("--name", default="operators", help="results go to bench/results/NAME.json")
    a = p.parse_args()
    a.engines = c.chosen(p, a.engines, c.ENGINES, "engine")
    return a


def run_all(a, card, engine):
    """All operators, in as many processes as it takes: {operator: line}, and what else is known of the run."""
    lines, pressure, reports, crashes, first, seconds = {}, [], [], [], 0, 0.0
    for _ in range(MOST_RESTARTS):
        card.require_free()
        with tempfile.TemporaryDirectory(prefix="penstock-bench-") as d:
            report = Path(d) / "report.json"
            argv = [sys.executable, JOB, "--pressure", a.pressure, "--first", first, "--only", a.only]
            if engine:
                argv = c.penstock_argv(argv, a.budget, report=report, engine=engine)
            extra = {"PENSTOCK_VERIFY": "1"} if engine and a.verify else None
            r = c.run(argv, c.environment(extra), a.timeout)
            if report.exists():
                reports.append(json.loads(report.read_text()))
        found = c.json_lines(r["stdout"])
        seconds += r["wall_s"]
        lines.update({x["operator"]: x for x in found if "operator" in x})
        pressure += [x["pressure"] for x in found if "pressure" in x]
        last = max((x["index"] for x in found if "operator" in x), default=first - 1)
        if r["rc"] == 0:
            break
        why = "timed out" if r["timed_out"] else f"exit status {r['rc']}"
        crashes.append({"after": last, "why": why, "stderr_tail": c.tail(r["stderr"], 6, 1500)})
        first = last + 1 if r["rc"] == 3 else last + 2  # after 3 the operator that failed has a line, else it has none
    moved = [(x.get("h2d_bytes") or 0, x.get("d2h_bytes") or 0) for x in reports]
    return lines, {
        "engine": engine or "stock", "operators": len(lines), "wall_s": round(seconds, 1), "crashes": crashes, "pressure": pressure,
        "brought_in": sum((x.get("brought_in_bytes") or 0) > 0 for x in lines.values()),
        "h2d_bytes": sum(m[0] for m in moved), "d2h_bytes": sum(m[1] for m in moved), "faults": sum(x.get("faults") or 0 for x in reports),
    }  # fmt: skip


def scatters(name, stock, again):
    """Whether stock need not compute the same each time."""
    line = stock[name]
    return line.get("scatters") or line["digests"] != again.get(name, {}).get("digests")


def compare(stock, again, ours):
    """(operator, what is wrong) of those that differ; and how many were compared as bytes."""
    wrong, compared = [], 0
    for name, line in stock.items():
        mine = ours.get(name)
        if mine is None:
            wrong.append((name, "the process ended in it"))
        elif bool(mine["error"]) != bool(line["error"]):
            wrong.append((name, mine["error"] or f"does not fail as it does with stock: {line['error']}"))
        elif line["error"]:
            continue
        elif scatters(name, stock, again):
            pairs = zip(mine["sizes"], line["sizes"])
            if len(mine["sizes"]) != len(line["sizes"]) or any(abs(x - y) > TOLERANCE * abs(y) for x, y in pairs):
                wrong.append((name, f"sums of absolute values are {mine['sizes']}, not about {line['sizes']}"))
        else:
            compared += 1
            if mine["digests"] != line["digests"]:
                which = [i for i, (x, y) in enumerate(zip(mine["digests"], line["digests"])) if x != y]
                wrong.append((name, f"results {which} of {len(line['digests'])} differ"))
    return wrong, compared


def body():
    a = parse()
    c.require_build()
    card = c.Card()
    document = {**c.header(card, c.EXPLICIT_NOTE + " explicit; " + c.CAP_NOTE + " managed"), "budget": a.budget, "pressure_mib": a.pressure, "verify": a.verify, "runs": [], "differ": []}
    stock, first = run_all(a, card, None)
    again, second = run_all(a, card, None)
    document["runs"] += [first, second]
    scatter = sorted(n for n in stock if scatters(n, stock, again))
    failing = {n: x["error"] for n, x in stock.items() if x["error"]}
    document.update(not_repeatable=scatter, fail_with_stock=failing)
    print(f"{len(stock)} operators with stock, {first['wall_s']} s; {len(scatter)} need not repeat themselves, {len(failing)} fail: {', '.join(failing)}", flush=True)
    bad = len(first["crashes"]) > 0
    for engine in a.engines:
        ours, run = run_all(a, card, engine)
        wrong, run["compared"] = compare(stock, again, ours)
        if run["pressure"] != first["pressure"] and not run["crashes"]:
            wrong.append(("pressure", "memory that was changed and kept all the time differs at the end"))
        document["runs"].append(run)
        document["differ"] += [{"engine": engine, "operator": n, "what": w} for n, w in wrong]
        bad = bad or bool(wrong)
        print(
            f"{engine}: {run['compared']} compared as bytes, {run['brought_in']} had something to bring in, {len(wrong)} differ, {len(run['crashes'])} crashes, {run['h2d_bytes'] / 1e9:.1f} GB in, {run['d2h_bytes'] / 1e9:.1f} GB out, {run['wall_s']} s", flush=True
        )
        for n, w in wrong:
            print(f"    {n}: {w}", flush=True)
        for x in run["crashes"]:
            print(f"    after operator {x['after']}: {x['why']}: {x['stderr_tail'][-600:]}", flush=True)
        c.save(a.name, document)
    return 1 if bad else 0


if __name__ == "__main__":
    c.main(body)
