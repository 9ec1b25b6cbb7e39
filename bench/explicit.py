"""The explicit engine: jobs inside budgets far below what they need, at full size.

    python3 bench/explicit.py gpt2l:43GiB,36GiB,27GiB,15GiB llama1b:1.5,2,3 [--iters 20]

Each JOB is a workload of bench/workloads.py or bench/changing.py and its budgets, in GiB or as a ratio
of the peak that the in-memory run reports, or `ckpt`: the peak of the model with its own
activation checkpointing (MODEL-ckpt), which then trains in memory beside it. The in-memory run comes first; losses
and parameter checksums must be its own, bit for bit. Device memory is taken by
plain allocations (cuMemCreate) up to the budget; no managed memory is used.

Each iteration is compared with the same one in memory as well, which tells more than medians do where shapes change: the median of these
ratios, and the ratio that a tenth of them reach.

Algorithms are deterministic. PyTorch then also fills all uninitialised memory, to
show who reads it, which no job does that is not looking for that: here only with --fill
(as in the results up to 2026-11-23). --plain is for times: nothing is deterministic, and
losses are not compared.
Exit status 1 when a run failed or losses differ, 2 when nothing could be run.
"""

import argparse
import time

import _common as c
import changing

GPU_PAGE = 2 << 20


def parse():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("jobs", nargs="+", metavar="MODEL:BUDGET,BUDGET")
    p.add_argument("--iters", type=int, default=20)
    p.add_argument("--timeout", type=float, default=200, help="seconds a run may take")
    p.add_argument("--deadline", type=float, default=570, help="no run is started after so many seconds")
    p.add_argument("--host-budget", default="90GiB")
    p.add_argument("--engine", default="explicit")
    p.add_argument("--policy", default=None)
    p.add_argument("--verify", action="store_true", help="PENSTOCK_VERIFY=1: every move is checked")
    p.add_argument("--on-device", action="store_true", help="models are built where they are trained, which is faster")
    p.add_argument("--no-stock", action="store_true", help="no in-memory run: budgets must be in GiB, losses are not compared")
    p.add_argument("--repeat-stock", action="store_true", help="a second in-memory run, to show that the model repeats itself")
    p.add_argument("--fill", action="store_true", help="PyTorch fills uninitialised memory")
    p.add_argument("--plain", action="store_true", help="nothing is deterministic, losses are not compared")
    p.add_argument("--no-gc", action="store_true", help="Python's cyclic garbage collector is off after the first iteration")
    p.add_argument("--optimizer", default="loop", choices=["loop", "foreach", "fused"], help="how that of language models works, see bench/workloads.py")
    p.add_argument("--captured", action="store_true", help="each step is a CUDA graph, also in memory: mlp, resnet50, resnet152")
    p.add_argument("--compile", metavar="MODE", help="the model is compiled, also in memory: default, reduce-overhead, max-autotune")
    p.add_argument("--against", action="append", default=[], metavar="NAME=VALUE[,...]", help="each run is followed by one with this in its environment; may be repeated")
    p.add_argument("--set", type=c.settings, default={}, metavar="NAME=VALUE[,...]", help="in the environment of every run inside a budget")
    p.add_argument("--name", default="explicit", help="results go to bench/results/NAME.json")
    a = p.parse_args()
    a.against = {"": {}, **{word: c.settings(word) for word in a.against}}  # the runs in each budget: as it is, and with each of these
    return a


def budget_bytes(text, peak, checkpointing_peak=None):
    if text == "ckpt":
        if not checkpointing_peak:
            raise c.Refused("there is no run with the model's own checkpointing to take the peak from")
        return checkpointing_peak // GPU_PAGE * GPU_PAGE
    for unit, factor in (("GiB", c.GIB), ("MiB", 1 << 20)):
        if text.endswith(unit):
            return int(float(text[: -len(unit)]) * factor)
    if not peak:
        raise c.Refused(f"{text!r} is a ratio, and there is no in-memory run to take the peak from")
    return int(peak / float(text)) // GPU_PAGE * GPU_PAGE


def compare(result, stock):
    expected, got = stock["loss"], result["loss"]
    n = min(len(expected), len(got))
    equal = [repr(x) for x in got[:n]] == [repr(x) for x in expected[:n]]
    first = None if equal else next(i for i in range(n) if repr(got[i]) != repr(expected[i]))
    sums = None
    if len(expected) == len(got) and "parameter_checksums" in result:
        sums = result["parameter_checksums"] == stock.get("parameter_checksums")
    return {"losses_compared": n, "losses_equal": equal, "first_difference": first, "parameters_equal": sums}


def counters(snapshot):
    """What the engine counts, in a snapshot of its statistics: no rates and no states."""
    engine = snapshot.get("explicit") or {}
    workers = {f"{k}_worker_seconds": v for k, v in (engine.get("worker_seconds") or {}).items()}
    copied = {f"copied_{k}": v for k, v in (engine.get("copied_bytes_because") or {}).items()}
    counts = {k: v for k, v in engine.items() if isinstance(v, (int, float)) and not k.endswith("_per_second") and not k.startswith(("host_", "plain_"))}
    return {**counts, **copied, **workers}


def deltas(result, key):
    snapshots = [result.get("stats_before") or {}, *(result.get("stats") or [])]
    values = [s.get(key) or counters(s).get(key) or 0 for s in snapshots]
    return [b - a for a, b in zip(values, values[1:])]


def steady_counts(result):
    """What an iteration adds to each of the engine's counters, by the median."""
    keys = {key for snapshot in result.get("stats") or [] for key in counters(snapshot)}
    return {key: c.median(c.steady(deltas(result, key))) for key in sorted(keys)}


def summarise(record, stock):
    s = {"name": record["name"], "model": record["model"], "budget": record["budget"], "error": record["error"], "rc": record["rc"], "wall_s": record["wall_s"]}
    s["stderr_tail"] = record["stderr_tail"][-6000:] if record["error"] else ""
    result = record.get("result")
    if not result or not result.get("iter_s"):
        return s
    s["iterations"] = len(result["iter_s"])
    s["seconds_per_iteration"] = c.median(c.steady(result["iter_s"]))
    s["iter_s"] = [round(x, 4) for x in result["iter_s"]]
    s["dispatch_seconds"] = c.median(c.steady(result.get("dispatch_s") or []))
    s["threads"] = result.get("threads")
    s["disturbances"] = result.get("disturbances")
    s["peak_allocated_bytes"] = result.get("peak_allocated_bytes")
    if stock and record["penstock"]:
        s.update(compare(result, stock))
        ratios = sorted(c.steady([a / b for a, b in zip(result["iter_s"], stock["iter_s"])]))
        s["ratio_to_memory"], s["ratio_slowest_tenth"] = c.median(ratios), ratios[len(ratios) * 9 // 10]
    report = c.report_of(record)
    if record["penstock"]:
        for key in ("h2d_bytes", "d2h_bytes", "clean_bytes", "stall_seconds", "space_stall_seconds", "lock_wait_seconds"):
            s[key + "_steady"] = c.median(c.steady(deltas(result, key)))
        s["explicit"] = report.get("explicit")
        s["steady"] = steady_counts(result)
        s["resident_peak_bytes"] = report.get("resident_peak_bytes")
        s["prediction_hit_rate"] = report.get("prediction_hit_rate")
        s["iteration_launches"] = report.get("iteration_launches")
        s["failure"] = report.get("failure")
    if record["nvml"]:
        s["nvml_peak_over_idle_bytes"] = max(x[1] for x in record["nvml"]) - record["idle_used_bytes"]
    return s


def row(s):
    if "seconds_per_iteration" not in s:
        return [s["name"], "FAILED: " + (s["error"] or "").splitlines()[0][:100], *[""] * 12]
    e = s.get("explicit") or {}
    gb = lambda v: c.fmt(None if v is None else v / 1e9, ".2f")  # noqa: E731
    return [
        s["name"], c.fmt(s["seconds_per_iteration"]), "" if "ratio_to_memory" not in s else f"{s['ratio_to_memory']:.2f} ({s['ratio_slowest_tenth']:.2f})", s["iterations"],
        {True: "equal", False: f"DIFFER at {s.get('first_difference')}", None: ""}[s.get("losses_equal")],
        gb(s.get("h2d_bytes_steady")), gb(s.get("d2h_bytes_steady")), gb(s.get("clean_bytes_steady")),
        c.fmt(e.get("in_gb_per_second"), ".1f"), c.fmt(e.get("out_gb_per_second"), ".1f"),
        c.fmt(s.get("dispatch_seconds")), c.fmt(s.get("stall_seconds_steady")), c.fmt(s.get("lock_wait_seconds_steady")),
        c.fmt((s.get("nvml_peak_over_idle_bytes") or 0) / c.GIB, ".2f"),
    ]  # fmt: skip


HEAD = ["run", "s/it", "of memory", "its", "losses", "in GB", "out GB", "clean GB", "in GB/s", "out GB/s", "dispatch s", "stall s", "lock s", "NVML GiB"]


def body():
    a = parse()
    c.require_build()
    card = c.Card()
    flags = ["--on-device"] if a.on_device else []
    if a.no_gc:
        flags.append("--no-gc")
    if a.captured:
        flags.append("--captured")
    if a.compile:
        flags += ["--compile", a.compile]
    if a.optimizer != "loop":
        flags += ["--optimizer", a.optimizer]
    if not a.fill and not a.plain:
        flags.append("--no-fill")
    began = time.monotonic()
    document = {**c.header(card, c.EXPLICIT_NOTE), "rows": []}
    failed = False
    for job in a.jobs:
        model, _, budgets = job.partition(":")
        stock = None
        checkpointing_peak = None
        runs = [] if a.no_stock else [("stock", None, "")] * (1 + a.repeat_stock)
        if "ckpt" in budgets.split(","):
            runs.append(("checkpointing", None, ""))
        runs += [(a.engine, b, setting) for b in budgets.split(",") if b for setting in a.against]
        for kind, budget, setting in runs:
            if time.monotonic() - began > a.deadline:
                print(f"{model} {budget}: not started, the deadline has passed", flush=True)
                continue
            if kind == "stock":
                record = c.train(card, model, a.iters, a.timeout, deterministic=not a.plain, sample=True, flags=flags, workloads=changing.script(model))
                record["name"] = f"{model} in memory" if budgets else model  # what is taken instead of Penstock has its own way
            elif kind == "checkpointing":
                record = c.train(card, model + "-ckpt", a.iters, a.timeout, deterministic=not a.plain, sample=True, flags=flags, workloads=changing.script(model))
                record["name"] = f"{model} with its own checkpointing, in memory"
                checkpointing_peak = (record.get("result") or {}).get("peak_allocated_bytes")
            else:
                n = budget_bytes(budget, stock and stock.get("peak_allocated_bytes"), checkpointing_peak)
                extra = {**({"PENSTOCK_VERIFY": "1"} if a.verify else {}), **a.set, **a.against[setting]}
                record = c.train(
                    card, model, a.iters, a.timeout, penstock=True, budget=f"{n // (1 << 20)}MiB", policy=a.policy, deterministic=not a.plain, sample=True,
                    engine=kind, host_budget=a.host_budget, extra=extra, flags=flags, workloads=changing.script(model),
                )  # fmt: skip
                record["name"] = f"{model} {kind} {n / c.GIB:.2f} GiB" + ("" if budget.endswith("B") else f" ({budget})" if budget == "ckpt" else f" ({budget}x)") + (f" {setting}" if setting else "")
            s = summarise(record, None if a.plain else stock)
            if kind == "stock" and stock is None and not record["error"]:
                stock = record["result"]
            failed = failed or bool(s["error"]) or s.get("losses_equal") is False
            document["rows"].append(s)
            c.save(a.name, document)
            print(c.table(HEAD, [row(s)]), flush=True)
            if s["error"]:
                print(s["error"], s.get("stderr_tail"), sep="\n", flush=True)
    print(c.table(HEAD, [row(s) for s in document["rows"]]), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    c.main(body)
