"""Several GPUs and NCCL under the explicit engine: the same losses as in memory.

    python3 bench/nccl.py [--wraps ddp,fsdp,...] [--cases stock,none,roomy,tight,stopped,killed] [--ranks N] [--budget 3GiB] [--iters 8] [--deadline 300]

Runs nccl_job.py (a language model alone on the last of the GPUs, and in each way of nccl_wraps.py with a process for each GPU)
as it is (stock), with the hook and the pool alone (--engine none), under the explicit engine with room for everything (roomy: nothing
leaves the device) and with less (tight: half of what the rank with least has in stock, or --budget). Losses of every rank and checksums of its
parameters must be those of stock, bit for bit, also where a rank stands still for a minute (stopped: tight). Where one is killed (killed: tight) the others must
end when they are told to. Plain device memory and pinned host memory only; no managed memory. Exit status 1 when anything of that is not so or a run failed, 2 with
less than two GPUs.
"""

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import _common as c
import nccl_wraps

JOB = c.BENCH / "nccl_job.py"
ROOMY = "24GiB"  # nothing leaves the device
CASES = ("stock", "none", "roomy", "tight", "stopped", "killed")
STOP_S, KILLED = 60, 256 - signal.SIGKILL  # the exit status of who was killed


def parse():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--wraps", default=",".join(nccl_wraps.WRAPS))
    p.add_argument("--cases", default=",".join(CASES))
    p.add_argument("--ranks", type=int, help="GPUs (all)")
    p.add_argument("--budget", help="of each GPU in the tight case (half the peak of the rank that needs least)")
    p.add_argument("--host-budget", default="16GiB", help="of each process")
    p.add_argument("--iters", type=int, default=8)
    p.add_argument("--timeout", type=float, default=60, help="seconds a run may take")
    p.add_argument("--deadline", type=float, default=300, help="no run is started after so many seconds")
    p.add_argument("--name", default="nccl", help="results go to bench/results/NAME.json")
    return p.parse_args()


def gpus():
    try:
        r = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return 0
    return sum(line.startswith("GPU ") for line in r.stdout.splitlines())


def train(a, wrap, case, folder, stock):
    report, ranks = Path(folder) / f"{wrap}-{case}.json", 1 if wrap == "alone" else a.ranks
    limit = a.timeout + (STOP_S if case == "stopped" else 0)
    command = [sys.executable, JOB, str(a.iters), "--wrap", wrap, "--ranks", str(a.ranks), "--limit", str(limit)]
    command += ["--stop", f"{ranks - 1}:{STOP_S}"] if case == "stopped" else ["--kill", str(ranks - 1)] if case == "killed" else []
    budget = None
    if case == "none":
        command = c.penstock_argv(command, engine="none", report=report)
    elif case != "stock":
        budget = ROOMY if case == "roomy" else a.budget or f"{min(x['peak_allocated_bytes'] for x in stock['ranks']) // 2 >> 20}MiB"
        command = c.penstock_argv(command, budget=budget, host_budget=a.host_budget, engine="explicit", report=report)
    r = c.run(command, c.environment(), limit + 40)
    done = sorted((x for x in c.json_lines(r["stdout"]) if "rank" in x), key=lambda x: x["rank"])
    run = {"wrap": wrap, "case": case, "budget": budget, "rc": r["rc"], "wall_s": r["wall_s"], "ranks": done, "error": None}
    if case == "killed":
        if r["rc"] != KILLED or done:
            run["error"] = f"rc {r['rc']}, {len(done)} ranks had gone on"
    elif r["rc"] != 0 or len(done) != ranks:
        run["error"] = f"rc {r['rc']}, {len(done)} ranks"
    if run["error"]:
        run["stderr"] = c.tail(r["stderr"], 400, 24000)
    if case in ("roomy", "tight", "stopped"):
        run["reports"] = [c._load(report.with_stem(report.stem + ("" if wrap == "alone" else f".rank{x['rank']}"))) for x in done]
        if any(not x or x.get("engine") != "explicit" or (case == "roomy") == bool(x.get("h2d_bytes")) for x in run["reports"]):
            run["error"] = run["error"] or "a rank has no report, or moved something it need not, or nothing"
    return run


def compare(stock, run):
    """One line for each rank, and what is wrong."""
    for i, ours in enumerate(run["ranks"]):
        of = stock["ranks"][i] if stock and i < len(stock["ranks"]) else None
        equal = of and [repr(x) for x in of["loss"]] == [repr(x) for x in ours["loss"]] and of["parameter_checksums"] == ours["parameter_checksums"]
        report = run["reports"][i] if run.get("reports") else None
        yield equal, [
            run["wrap"], run["case"], ours["rank"], f"{ours['peak_allocated_bytes'] / c.GIB:.2f}", f"{report['resident_peak_bytes'] / c.GIB:.2f}" if report else "-",
            c.fmt(c.median(c.steady(ours["iter_s"]))), f"{report['h2d_bytes'] / 1e9:.1f} / {report['d2h_bytes'] / 1e9:.1f}" if report else "-", "bit-equal" if equal else "DIFFER" if of else "-",
        ]  # fmt: skip


def body():
    a = parse()
    c.require_build()
    card = c.Card()
    card.require_free()
    a.ranks = a.ranks or gpus()
    if not 2 <= a.ranks <= gpus():
        raise c.Refused(f"two GPUs are needed, and as many as --ranks says: there are {gpus()}")
    document = {**c.header(card, c.EXPLICIT_NOTE), "runs": []}
    rows, bad, began = [], [], time.monotonic()
    with tempfile.TemporaryDirectory(prefix="penstock-nccl-") as folder:
        for wrap in a.wraps.split(","):
            stock = None
            for case in a.cases.split(","):
                if time.monotonic() - began > a.deadline:
                    bad.append(f"{wrap} {case}: not started, the deadline has passed")
                    continue
                if case != "stock" and stock is None:
                    bad.append(f"{wrap} {case}: not started without a stock run")
                    continue
                run = train(a, wrap, case, folder, stock)
                document["runs"].append(run)
                c.save(a.name, document)
                print(f"{wrap} {case}: {run['error'] or 'ran'}, {run['wall_s']} s", flush=True)
                if run["error"]:
                    bad.append(f"{wrap} {case}: {run['error']}")
                    print(c.tail(run.get("stderr", ""), 60, 5000), flush=True)
                    continue
                stock = run if case == "stock" else stock
                for equal, row in compare(stock, run):
                    rows.append(row)
                    if stock and not equal:
                        bad.append(f"{wrap} {case} rank {row[2]}: losses or parameters differ")
    document["problems"] = bad
    c.save(a.name, document)
    print(f"A model of the size of GPT-2 medium on {a.ranks} GPUs, NCCL; tight: {a.budget or 'half of the peak'} for each; {document['gpu']}, driver {document['driver']}")
    print(c.table(["wrap", "case", "rank", "peak GiB", "resident GiB", "s/it", "in / out GB in all", "losses, parameters"], rows))
    for b in bad:
        print("NOT in order: " + b)
    return 1 if bad else 0


if __name__ == "__main__":
    c.main(body)
