"""GPT-2 medium (peak about 5.9 GiB) inside budgets of 4 and 3 GiB: stock, naive demand paging, Penstock.

    python3 bench/gpt2m_budget.py [--budgets 4GiB,3GiB] [--policies naive,penstock] [--iters 20] [--naive-iters 8]

All runs are deterministic; the losses must be those of the stock run, bit for
bit. Stock runs twice: if it does not repeat itself, the comparison says so.
Exit status 1 when a run failed or losses differ, 2 when nothing could be run.
The budget is a software cap; the card is never full (see _common.py).
Used memory of the card over time is above it: the driver keeps the memory of
blocks that have left the GPU, and counts it as used, until somebody asks for
memory. It cannot pass the managed memory that there is (PENSTOCK_MANAGED_LIMIT),
plain memory and the CUDA context together.
"""

import argparse
import time

import _common as c

POLICIES = ("naive", "lru", "deepum", "penstock")
STARTUP_S = 15  # roughly what a run takes beside its iterations


def parse():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--budgets", default="4GiB,3GiB")
    p.add_argument("--policies", default="naive,penstock", help=f"some of {','.join(POLICIES)}")
    p.add_argument("--iters", type=int, default=20)
    p.add_argument("--naive-iters", type=int, default=8, help="iterations of the naive policy, which is slow")
    p.add_argument("--timeout", type=float, default=150, help="seconds a run may take")
    p.add_argument("--deadline", type=float, default=570, help="no run is started that could not end within so many seconds of the start")
    p.add_argument("--stock-runs", type=int, default=2)
    p.add_argument("--name", default="gpt2m-budget", help="results go to bench/results/NAME.json")
    a = p.parse_args()
    a.budgets = a.budgets.split(",")
    a.policies = c.chosen(p, a.policies, POLICIES, "policy")
    if a.stock_runs < 1 or a.iters < 2 or a.naive_iters < 2:
        p.error("at least one stock run and two iterations")
    return a


def parse_bytes(text):
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if text.endswith(unit):
            return int(float(text[: -len(unit)]) * factor)
    raise c.Refused(f"{text!r} is not a budget: write it as 3GiB or 3500MiB")


def available(value):
    """None for what could not be had: penstock.stats() says None, the report -1."""
    return None if value is None or value == -1 else value


def deltas(result, key):
    """What each iteration added to a counter; [] when it is unavailable."""
    snapshots = [result.get("stats_before") or {}, *(result.get("stats") or [])]
    values = [available(s.get(key, 0 if i == 0 else None)) for i, s in enumerate(snapshots)]
    if len(values) < 2 or any(v is None for v in values[1:]):
        return []
    values[0] = values[0] or 0
    return [b - a for a, b in zip(values, values[1:])]


def first_learned(result):
    """The first iteration after which an iteration length was known, or None."""
    return next((i for i, s in enumerate(result.get("stats") or []) if s.get("iteration_launches", 0) > 0), None)


def summarise(record, stock):
    """The figures of one run, from its raw record."""
    s = {"name": record["name"], "policy": record["policy"], "budget": record["budget"], "error": record["error"]}
    result = record.get("result")
    if record["error"] and not (result and result.get("iter_s")):
        return s
    report = c.report_of(record)
    s["iterations"] = len(result["iter_s"])
    s["seconds_per_iteration"] = c.median(c.steady(result["iter_s"]))
    s["first_iteration_s"] = result["iter_s"][0]
    s["complete"] = s["iterations"] == record["iterations_asked"]
    if stock:
        expected, got = stock["result"]["loss"], result["loss"]
        n = min(len(expected), len(got))
        s["losses_compared"] = n
        s["losses_equal"] = [repr(x) for x in got[:n]] == [repr(x) for x in expected[:n]]
        if not s["losses_equal"]:
            s["first_difference"] = next(i for i in range(n) if repr(got[i]) != repr(expected[i]))
        if s["iterations"] == len(expected) and "parameter_checksums" in result:
            s["parameters_equal"] = result["parameter_checksums"] == stock["result"].get("parameter_checksums")
    for name in ("h2d_bytes", "d2h_bytes", "faults", "faulted_bytes", "stall_seconds"):
        per = deltas(result, name) if record["penstock"] else []
        s[name + "_each_iteration"] = per
        s[name + "_steady"] = c.median(c.steady(per))
    s["faults_total"] = available(report.get("faults"))
    faults = s["faults_each_iteration"]
    learned = first_learned(result)
    s["learned_after_iteration"] = learned
    s["faults_before_learning"] = max(faults[: learned + 1], default=None) if learned is not None else None
    s["prediction_hit_rate"] = available(report.get("prediction_hit_rate"))
    s["resident_peak_bytes"] = report.get("resident_peak_bytes")
    s["dropped_events"] = available(report.get("dropped_events"))
    s["late_launches"] = report.get("late_launches")
    if record["nvml"]:
        s["nvml_peak_over_idle_bytes"] = max(x[1] for x in record["nvml"]) - record["idle_used_bytes"]
        s["nvml_over_idle_bytes_tenths"] = over_time(record["nvml"], record["idle_used_bytes"])
    return s


def over_time(samples, idle, parts=10):
    """The most that was used over idle in each tenth of the time that the card was in use; None where no sample was taken."""
    busy = [i for i, (_, used) in enumerate(samples) if used > idle]
    if not busy:
        return [0] * parts
    begin, end = samples[busy[0]][0], samples[busy[-1]][0]
    most = [None] * parts
    for seconds, used in samples[busy[0] : busy[-1] + 1]:
        i = min(parts - 1, int((seconds - begin) / max(end - begin, 0.001) * parts))
        most[i] = max(most[i] or 0, used - idle)
    return most


def gb(value):
    return None if value is None else value / 1e9


def gib(value):
    return None if value is None else value / c.GIB


def rows(summaries):
    naive = {s["budget"]: s.get("seconds_per_iteration") for s in summaries if s["policy"] == "naive" and not s["error"]}
    for s in summaries:
        if "seconds_per_iteration" not in s:
            yield [s["name"], "FAILED: " + s["error"].splitlines()[0][:90], *[""] * 12]
            continue
        base, own = naive.get(s["budget"]), s["seconds_per_iteration"]
        over = base / own if base and own and s["budget"] else None
        equal = {True: "yes", False: "NO", None: "-"}[s.get("losses_equal")]
        if equal == "NO":
            equal += f" (from {s['first_difference']})"
        if s.get("parameters_equal") is False:
            equal += ", parameters differ"
        n = f"{s['iterations']}" + ("" if s["complete"] else " (cut)")
        managed = s["budget"] is not None
        yield [
            s["name"], n, c.fmt(own), c.fmt(over, ".2f", "x") if managed else "-", equal,
            *((c.fmt(gb(s["h2d_bytes_steady"]), ".2f"), c.fmt(gb(s["d2h_bytes_steady"]), ".2f"), c.fmt(s["faults_total"], "d"),
               c.fmt(s["faults_before_learning"], "d"), c.fmt(s["faults_steady"], ".0f"), c.fmt(s["stall_seconds_steady"], ".3f"),
               c.fmt(s["prediction_hit_rate"], ".1%")) if managed else ["-"] * 7),
            f"{c.fmt(gib(s['resident_peak_bytes']), '.2f')} of {s['budget']}" if managed else "-",
            c.fmt(gib(s.get("nvml_peak_over_idle_bytes")), ".2f"),
        ]  # fmt: skip


HEAD = [
    "run", "iterations", "s/iteration", "over naive", "losses = stock", "h2d GB/it", "d2h GB/it", "faults", "before learning", "steady/it",
    "stall s/it", "predicted", "resident peak GiB", "NVML peak GiB",
]  # fmt: skip


def context_bytes(stock):
    """What a stock run has on the card beside PyTorch's memory: CUDA context, kernels, library handles."""
    peak = max((x[1] for x in stock["nvml"]), default=None)
    reserved = stock["result"].get("peak_reserved_bytes")
    return None if peak is None or reserved is None else peak - stock["idle_used_bytes"] - reserved


def checks(summaries, context):
    """The lines of the verdict: what was promised, and what came out."""
    by = {(s["policy"], s["budget"]): s for s in summaries if "seconds_per_iteration" in s}
    for (policy, budget), s in by.items():
        if policy != "penstock":
            continue
        naive = by.get(("naive", budget))
        if naive:
            yield f"{budget}: {naive['seconds_per_iteration'] / s['seconds_per_iteration']:.2f} times as fast as naive (asked at 3GiB: 3)"
            a, b = naive["faults_steady"], s["faults_steady"]
            down = "n/a" if a is None or b is None or a == 0 else f"down {1 - b / a:.1%} (asked: 95 %)"
            yield f"{budget}: faults per steady iteration {c.fmt(a, '.0f')} naive, {c.fmt(b, '.0f')} penstock: {down}"
        a, b = s["faults_before_learning"], s["faults_steady"]
        if a:
            yield f"{budget}: penstock's own faults per iteration, most before learning {a}, steady {b:.0f}: down {1 - b / a:.1%}"
        resident = s.get("resident_peak_bytes")
        if resident is not None:
            over = resident - parse_bytes(budget)
            yield f"{budget}: resident peak {gib(resident):.3f} GiB: " + (f"{over / (1 << 20):.0f} MiB OVER the cap" if over > 0 else "within the cap")
        peak = s.get("nvml_peak_over_idle_bytes")
        if peak is not None and context is not None:
            over = peak - context - parse_bytes(budget)
            yield (
                f"{budget}: NVML peak {peak / c.GIB:.2f} GiB over idle, of it about {context / c.GIB:.2f} GiB CUDA context and libraries "
                f"(from the stock run): {abs(over) / c.GIB:.2f} GiB {'OVER' if over > 0 else 'under'} the cap "
                f"(the driver keeps what has left; the bound is {c.MANAGED_LIMIT} of managed memory, and plain memory)"
            )


def body():
    a = parse()
    for b in a.budgets:
        if parse_bytes(b) > c.MANAGED_LIMIT_BYTES:
            raise c.Refused(f"a budget of {b} is above the managed limit of {c.MANAGED_LIMIT}")
    c.require_build()
    card = c.Card()
    card.require_free()
    plan = [(f"stock {i + 1}" if i else "stock", None, None, a.iters) for i in range(a.stock_runs)]
    for budget in a.budgets:
        plan += [(f"{p} {budget}", p, budget, a.naive_iters if p == "naive" else a.iters) for p in a.policies]
    document = {**c.header(card), "model": "gpt2m", "runs": [], "summaries": [], "skipped": []}
    began, stock = time.monotonic(), None
    for name, policy, budget, iters in plan:
        left = a.deadline - (time.monotonic() - began)
        if left < STARTUP_S * 2:
            document["skipped"].append(name)
            print(f"{name}: skipped, the deadline of {a.deadline:.0f} s is near", flush=True)
            continue
        record = c.train(
            card, "gpt2m", iters, min(a.timeout, left), penstock=policy is not None, budget=budget, policy=policy, deterministic=True, sample=True
        )
        record["name"] = name
        if not record["error"] and policy:
            r = c.report_of(record)
            if r.get("engine") != "managed" or r.get("policy") != policy or r.get("budget_bytes") != parse_bytes(budget):
                record["error"] = f"asked for managed/{policy}/{budget}, the report says {r.get('engine')}/{r.get('policy')}/{r.get('budget_bytes')}"
        document["runs"].append(record)
        if stock is None and policy is None and not record["error"]:
            stock = record
            document.update({k: record["result"].get(k) for k in ("torch", "cuda", "transformers")})
        s = summarise(record, stock)
        document["summaries"].append(s)
        # On a line of its own, so that progress is seen while the rest runs.
        state = f"{c.fmt(s.get('seconds_per_iteration'))} s/iteration" + (f"; {record['error']}" if record["error"] else "")
        print(f"{name}: {state} ({record['wall_s']} s in all)", flush=True)
        if record["error"]:
            print(c.tail(record["stderr_tail"]), flush=True)
        c.save(a.name, document)
    summaries = document["summaries"]
    context = context_bytes(stock) if stock else None
    document["context_bytes"] = context
    document["verdict"] = list(checks(summaries, context))
    c.save(a.name, document)
    print(f"\nGPT-2 medium, deterministic, {c.CAP_NOTE}; medians of the last half of the iterations; {document['gpu']}, driver {document['driver']}")
    print(c.table(HEAD, list(rows(summaries))))
    print("\nNVML's used memory over idle, GiB, the most in each tenth of the time that it was in use (every sample is in the results):")
    timed = [s for s in summaries if s.get("nvml_over_idle_bytes_tenths")]
    print(c.table(["run", *range(1, 11)], [[s["name"], *(c.fmt(gib(x), ".2f") for x in s["nvml_over_idle_bytes_tenths"])] for s in timed]))
    for line in document["verdict"]:
        print(line)
    controls = [s for s in summaries if s["policy"] is None and s is not summaries[0] and "losses_equal" in s]
    if any(not s["losses_equal"] for s in controls):
        print("stock did NOT repeat its own losses: equality with it proves nothing here")
    elif not controls:
        print("stock was not repeated: nothing shows that its losses are reproducible")
    bad = [s["name"] for s in summaries if s["error"] or s.get("losses_equal") is False or s.get("parameters_equal") is False]
    if bad or document["skipped"]:
        print("NOT in order: " + ", ".join([*bad, *(f"{x} (skipped)" for x in document["skipped"])]))
    return 1 if bad or document["skipped"] else 0


if __name__ == "__main__":
    c.main(body)
