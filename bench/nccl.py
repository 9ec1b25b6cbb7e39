"""Several GPUs and NCCL under the explicit engine: the same losses as in memory.

    python3 bench/nccl.py [--wraps ddp,fsdp] [--budget 3GiB] [--iters 8] [--deadline 150]

Runs nccl_job.py (GPT-2 medium, DistributedDataParallel and fully_shard, a process for each of two GPUs) in memory and
with a budget for each GPU. Losses of every rank and checksums of its parameters must be the same, bit for bit. Plain device
memory and pinned host memory only; no managed memory. Exit status 1 when they differ or a run failed, 2 with less than two GPUs.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import _common as c

JOB = c.BENCH / "nccl_job.py"


def parse():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--wraps", default="ddp,fsdp")
    p.add_argument("--budget", default="3GiB", help="of each GPU")
    p.add_argument("--host-budget", default="16GiB", help="of each process")
    p.add_argument("--iters", type=int, default=8)
    p.add_argument("--timeout", type=float, default=80, help="seconds a run may take")
    p.add_argument("--deadline", type=float, default=300, help="no run is started after so many seconds")
    p.add_argument("--name", default="nccl", help="results go to bench/results/NAME.json")
    return p.parse_args()


def gpus():
    try:
        r = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return 0
    return sum(line.startswith("GPU ") for line in r.stdout.splitlines())


def train(a, wrap, penstock, folder):
    report = Path(folder) / f"{wrap}.json"
    command = [sys.executable, JOB, str(a.iters), "--wrap", wrap]
    if penstock:
        command = c.penstock_argv(command, budget=a.budget, host_budget=a.host_budget, engine="explicit", report=report)
    r = c.run(command, c.environment(), a.timeout)
    ranks = sorted((x for x in c.json_lines(r["stdout"]) if "rank" in x), key=lambda x: x["rank"])
    run = {"wrap": wrap, "penstock": penstock, "rc": r["rc"], "wall_s": r["wall_s"], "ranks": ranks, "error": None}
    if r["rc"] != 0 or len(ranks) != 2:
        run["error"] = f"rc {r['rc']}, timed out: {r['timed_out']}, {len(ranks)} ranks: {c.tail(r['stderr'], 8)}"
    if penstock and not run["error"]:
        run["reports"] = [c._load(report.with_name(report.name + f".{x['rank']}")) for x in ranks]
        if any(not x or x.get("engine") != "explicit" or not x.get("h2d_bytes") for x in run["reports"]):
            run["error"] = "a rank has no report, or nothing was moved"
    return run


def body():
    a = parse()
    c.require_build()
    card = c.Card()
    card.require_free()
    if gpus() < 2:
        raise c.Refused("two GPUs are needed")
    document = {**c.header(card), "runs": []}
    rows, bad, began = [], [], time.monotonic()
    with tempfile.TemporaryDirectory(prefix="penstock-nccl-") as folder:
        for wrap in a.wraps.split(","):
            runs = {}
            for penstock in (False, True):
                if time.monotonic() - began > a.deadline:
                    bad.append(f"{wrap}: not started, the deadline has passed")
                    continue
                run = runs[penstock] = train(a, wrap, penstock, folder)
                document["runs"].append(run)
                if run["error"]:
                    bad.append(f"{wrap} {'penstock' if penstock else 'stock'}: {run['error']}")
                c.save(a.name, document)
            if len(runs) < 2 or any(r["error"] for r in runs.values()):
                continue
            for stock, ours in zip(runs[False]["ranks"], runs[True]["ranks"]):
                equal = [repr(x) for x in stock["loss"]] == [repr(x) for x in ours["loss"]] and stock["parameter_checksums"] == ours["parameter_checksums"]
                if not equal:
                    bad.append(f"{wrap} rank {stock['rank']}: losses or parameters differ")
                report = runs[True]["reports"][stock["rank"]]
                rows.append([
                    wrap, stock["rank"], f"{stock['peak_allocated_bytes'] / c.GIB:.2f}", f"{report['resident_peak_bytes'] / c.GIB:.2f}", c.fmt(c.median(c.steady(stock["iter_s"]))), c.fmt(c.median(c.steady(ours["iter_s"]))),
                    f"{report['h2d_bytes'] / 1e9:.1f} / {report['d2h_bytes'] / 1e9:.1f}", "bit-equal" if equal else "DIFFER",
                ])  # fmt: skip
    document["problems"] = bad
    c.save(a.name, document)
    print(f"GPT-2 medium on two GPUs over NCCL, {a.budget} for each under the explicit engine; {document['gpu']}, driver {document['driver']}")
    print(c.table(["wrap", "rank", "peak GiB in memory", "resident GiB", "stock s/it", "penstock s/it", "in / out GB in all", "losses, parameters"], rows))
    for b in bad:
        print("NOT in order: " + b)
    return 1 if bad else 0


if __name__ == "__main__":
    c.main(body)
