"""The verdict's oracle beside the bound of a recording that was made in memory.

    python3 bench/verdict_bound.py [--models gpt2m,resnet152] [--ratios 1.5,2] [--name verdict_bound]

Each model trains in memory, as it is and recorded (the explicit engine with room for everything), and then inside its peak over
each ratio. What the report says at the end of that (oracle_seconds) stands beside what `penstock simulate --policy
oracle` makes of the recording at the same budget, over the same bus and, where the report has it, with the same CPU time
from launch to launch; its estimate of the speed in memory stands beside the seconds that were measured there.

Exit status 1 when a run failed, there is no verdict, the two bounds differ by more than 5 %, or a share is above 100 %.
"""

import argparse
import json
import subprocess
import tempfile
import time
from pathlib import Path

import _common as c

AGREEMENT = 0.05
ITERATIONS = 10  # that are simulated
ROUNDING = 0.001


def parse():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--models", default="gpt2m,resnet152")
    p.add_argument("--ratios", default="1.5,2", help="peak over budget")
    p.add_argument("--iters", type=int, default=24)
    p.add_argument("--recorded", type=int, default=8, help="iterations of the recording")
    p.add_argument("--room", default="40GiB", help="budget of the recording, in which everything has to fit")
    p.add_argument("--host-budget", default="60GiB")
    p.add_argument("--timeout", type=float, default=180, help="seconds a run may take")
    p.add_argument("--deadline", type=float, default=570, help="no run is started after so many seconds")
    p.add_argument("--name", default="verdict_bound", help="results go to bench/results/NAME.json")
    a = p.parse_args()
    a.models, a.ratios = a.models.split(","), [float(x) for x in a.ratios.split(",")]
    return a


def simulate(trace, budget, explicit, launch_cost=None):
    """The bound of a recording: the simulation's result, or why there is none."""
    bus = [explicit[f"oracle_bus_{way}_gb_per_second"] for way in ("in", "out", "both") if explicit.get(f"oracle_bus_{way}_gb_per_second")]
    command = [
        c.PENSTOCK, "simulate", "--trace", trace, "--budget", budget, "--policy", "oracle", "--engine", "explicit",
        "--bus", ",".join(map(repr, bus)), "--iterations", ITERATIONS, "--json",
    ]  # fmt: skip
    if launch_cost:
        command += ["--launch-cost", f"{launch_cost * 1e9:.0f}ns"]
    try:
        r = subprocess.run([str(x) for x in command], capture_output=True, text=True, timeout=120, check=False)
    except subprocess.TimeoutExpired:
        return {"error": "the simulation took more than 120 s"}
    if r.returncode:
        return {"error": c.tail(r.stderr, 3, 400)}
    return {**json.loads(r.stdout), "notes": c.tail(r.stderr, 4, 600)}


def beside(verdict, bound, measured):
    """Two bounds of the same job."""
    return {"verdict_seconds": verdict, "recording_seconds": bound, "differ": verdict / bound - 1, "verdict_share": verdict / measured, "recording_share": bound / measured}


def judge(model, ratio, run, trace, budget, in_memory):
    s = {"model": model, "ratio": ratio, "budget": budget, "command": run["command"], "error": run["error"], "in_memory_seconds": in_memory, "wrong": []}
    if run["error"]:
        s["wrong"].append(run["error"].splitlines()[0][:120])
        return s
    x = s["explicit"] = c.report_of(run).get("explicit") or {}
    s["seconds"] = c.median(c.steady(run["result"]["iter_s"]))
    if not x.get("oracle_seconds"):
        s["wrong"].append(f"no oracle: {x.get('oracle_why')}")
        return s
    measured = x["oracle_iteration_seconds"]
    for name, key, cost in (("gpu", "oracle_seconds", None), ("cpu", "oracle_cpu_seconds", x.get("launch_cost_seconds"))):
        if not x.get(key):
            continue
        s[f"simulated_{name}"] = bound = simulate(trace, budget, x, cost)
        if bound.get("error"):
            s["wrong"].append(bound["error"])
            continue
        s[name] = b = beside(x[key], bound["iteration_seconds"], measured)
        if name == "gpu" and abs(b["differ"]) > AGREEMENT:
            s["wrong"].append(f"the bounds differ by {100 * b['differ']:+.1f} %")
        if b["verdict_share"] > 1 + ROUNDING:
            s["wrong"].append(f"the {name} share is {100 * b['verdict_share']:.1f} %")
    s["in_memory_differ"] = x["in_memory_seconds_estimated"] / in_memory - 1
    return s


HEAD = ["model", "ratio", "s/it", "oracle s", "recording's", "differ", "share", "with CPU s", "recording's", "share", "GPU s", "in memory est.", "measured", "timed", "give or take", "wrong"]


def row(s):
    x, gpu, cpu = s.get("explicit") or {}, s.get("gpu") or {}, s.get("cpu") or {}
    percent = lambda v, spec=".1f": c.fmt(None if v is None else 100 * v, spec, " %")  # noqa: E731
    return [
        s["model"], s["ratio"], c.fmt(x.get("oracle_iteration_seconds"), ".4f"),
        c.fmt(gpu.get("verdict_seconds"), ".4f"), c.fmt(gpu.get("recording_seconds"), ".4f"), percent(gpu.get("differ"), "+.1f"), percent(gpu.get("verdict_share")),
        c.fmt(cpu.get("verdict_seconds"), ".4f"), c.fmt(cpu.get("recording_seconds"), ".4f"), percent(cpu.get("verdict_share")),
        c.fmt(x.get("gpu_iteration_seconds"), ".4f"), c.fmt(x.get("in_memory_seconds_estimated"), ".4f"), c.fmt(s["in_memory_seconds"], ".4f"),
        x.get("timed_launches", "n/a"), percent(x.get("timed_error")), "; ".join(s["wrong"]) or "nothing",
    ]  # fmt: skip


def measure(card, model, a, folder, late):
    """The rows of a model, each as soon as it is there."""
    flags = ("--no-fill", "--on-device")
    trace = Path(folder) / f"{model}.pstrace"
    stock = c.train(card, model, a.iters, a.timeout, deterministic=True, flags=flags)
    recorded = c.train(card, model, a.recorded, a.timeout, penstock=True, engine="explicit", budget=a.room, host_budget=a.host_budget, trace=trace, deterministic=True, flags=flags)
    for what, run in (("in memory", stock), ("recorded", recorded)):
        if run["error"]:
            raise c.Refused(f"{model} {what}: {run['error']}")
    report = c.report_of(recorded)
    if report["h2d_bytes"] or report["d2h_bytes"]:
        raise c.Refused(f"{model}: something was moved while it was recorded, in {a.room}: give --room more")
    in_memory = c.median(c.steady(stock["result"]["iter_s"]))
    for ratio in a.ratios:
        if late():
            return
        budget = f"{int(report['allocated_peak_bytes'] / ratio) >> 20}MiB"
        run = c.train(card, model, a.iters, a.timeout, penstock=True, engine="explicit", budget=budget, host_budget=a.host_budget, deterministic=True, flags=flags)
        yield judge(model, ratio, run, trace, budget, in_memory)
    trace.unlink()


def body():
    a = parse()
    c.require_build()
    card = c.Card()
    document = {**c.header(card, c.EXPLICIT_NOTE), "rows": []}
    ends = time.monotonic() + a.deadline
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        for model in a.models:
            for s in measure(card, model, a, folder, lambda: time.monotonic() > ends):
                document["rows"].append(s)
                c.save(a.name, document)
                print(f"{model} at {s['ratio']}x: {'; '.join(s['wrong']) or 'in order'}", flush=True)
    rows = document["rows"]
    print(f"{document['gpu']}, driver {document['driver']}; oracle's seconds are simulated")
    print(c.table(HEAD, [row(s) for s in rows]))
    missing = len(a.models) * len(a.ratios) - len(rows)
    if missing:
        print(f"{missing} runs were not begun by the deadline")
    return 1 if missing or any(s["wrong"] for s in rows) else 0


if __name__ == "__main__":
    c.main(body)
