#!/usr/bin/env python3
"""Replay launch logs under every policy on the simulated GPU and write the table.

    bench/simulated_policies.py [--penstock bin/penstock] [--out bench/results] TRACE...

Writes simulated-policies.json and simulated-policies.md. Every number is
simulated: nothing is measured on a GPU.
"""

import argparse
import datetime
import json
import math
import pathlib
import subprocess
import sys

POLICIES = ["naive", "lru", "deepum", "penstock", "oracle"]
EXPLICIT = ["lru", "penstock", "oracle"]  # what the explicit engine has
ITERATIONS = 10  # under the explicit engine, which comes to rest after more than logs have
EXPLICIT_SHARE = 0.8  # of the bound's speed: what the explicit engine is to reach
# The largest launches of these touch 5.9 of 9.6 and 4.4 of 6.3 GiB, so they cannot go much lower.
RATIOS = {"llama1b-lr": [1.25, 1.5], "graph": [1.2, 1.3]}
DEFAULT_RATIOS = [1.5, 2, 3]


def simulate(penstock, trace, ratio, policy, engine="managed"):
    return simulation(penstock, trace, ratio, policy, engine, *(["--iterations", str(ITERATIONS)] if engine == "explicit" else []))


def simulation(penstock, trace, ratio, policy, engine, *flags):
    command = [penstock, "simulate", "--trace", str(trace), "--ratio", f"{ratio:g}", "--policy", policy, "--engine", engine, "--gpu", "h200", "--json", *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: exit {done.returncode}: {done.stderr.strip()}")
    row = json.loads(done.stdout)
    row["ratio"] = ratio
    return row


def geometric_mean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def arguments(description):
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--penstock", default="bin/penstock")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("bench/results"))
    parser.add_argument("--date", default=datetime.date.today().isoformat())
    parser.add_argument("traces", nargs="+", type=pathlib.Path, metavar="TRACE")
    return parser.parse_args()


def cases(traces):
    """Each trace with its name and each of its ratios, said as it is begun."""
    for trace in traces:
        name = trace.name.split(".")[0]
        for ratio in RATIOS.get(name, DEFAULT_RATIOS):
            print(f"{name} {ratio:g}x", file=sys.stderr)
            yield trace, name, ratio


def main():
    args = arguments(__doc__)
    rows, table = [], []
    for trace, name, ratio in cases(args.traces):
        by = {p: simulate(args.penstock, trace, ratio, p) for p in POLICIES}
        explicit = {p: simulate(args.penstock, trace, ratio, p, "explicit") for p in EXPLICIT}
        rows += [*by.values(), *explicit.values()]
        table.append((name, ratio, by, explicit))

    def seconds(by, p):
        return by[p]["iteration_seconds"]

    gain = [seconds(by, "naive") / seconds(by, "penstock") for _, _, by, _ in table]
    deepum = [seconds(by, "naive") / seconds(by, "deepum") for _, _, by, _ in table]
    bound = [seconds(by, "penstock") / seconds(by, "oracle") for _, _, by, _ in table]
    slower = [f"{n} {r:g}x ({p} {seconds(by, p):.4f} s, penstock {seconds(by, 'penstock'):.4f} s, {(seconds(by, 'penstock') / seconds(by, p) - 1) * 100:.2f} % more)"
              for n, r, by, _ in table for p in ("naive", "lru", "deepum") if seconds(by, p) < seconds(by, "penstock")]
    above = [f"{n} {r:g}x ({seconds(by, 'penstock') / seconds(by, 'oracle'):.2f})"
             for n, r, by, _ in table if seconds(by, "penstock") > 1.25 * seconds(by, "oracle")]
    share = [seconds(x, "oracle") / seconds(x, "penstock") for _, _, _, x in table]
    swap_gain = [seconds(by, "penstock") / seconds(x, "penstock") for _, _, by, x in table]
    below = [f"{n} {r:g}x ({s * 100:.0f} %)" for (n, r, _, _), s in zip(table, share) if s < EXPLICIT_SHARE]

    command = "bench/simulated_policies.py TRACE..."
    summary = {
        "penstock_over_naive_geometric_mean": geometric_mean(gain), "penstock_over_naive_least": min(gain),
        "deepum_over_naive_geometric_mean": geometric_mean(deepum),
        "penstock_to_bound_geometric_mean": geometric_mean(bound), "penstock_to_bound_most": max(bound),
        "another_policy_is_faster": slower, "more_than_1.25_of_the_bound": above,
        "explicit_share_of_bound_geometric_mean": geometric_mean(share), "explicit_share_of_bound_least": min(share),
        "explicit_over_managed_geometric_mean": geometric_mean(swap_gain), "explicit_below_0.8_of_the_bound": below,
    }
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "simulated-policies.json").write_text(json.dumps(
        {"simulated": True, "date": args.date, "command": command, "gpu_profile": "h200", "summary": summary, "results": rows}, indent=1) + "\n")

    lines = [
        "# Policies on the simulated H200", "",
        f"Every number here is **simulated** (profile `h200`, {args.date}, `{command}`): seconds of the last",
        f"iteration of each launch log (explicit engine: the last, played again until there are {ITERATIONS}), the card's memory being the budget. `bound` is the managed oracle (no software",
        "cost, all of the future known), `explicit` the bound with both copy engines.", "",
        "## Managed engine", "",
        "| log | ratio | naive | lru | deepum | penstock | bound | explicit | penstock, of the bound | naive / penstock | in / out GB | faults |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, ratio, by, explicit in table:
        r = by["penstock"]
        lines.append("| " + " | ".join([
            name, f"{ratio:g}x", *(f"{seconds(by, p):.3f}" for p in POLICIES), f"{seconds(explicit, 'oracle'):.3f}",
            f"{seconds(by, 'oracle') / seconds(by, 'penstock') * 100:.0f} %", f"{seconds(by, 'naive') / seconds(by, 'penstock'):.1f}",
            f"{r['h2d_bytes'] / 1e9:.1f} / {r['d2h_bytes'] / 1e9:.1f}", str(r["faults"]),
        ]) + " |")
    lines += [
        "", f"Penstock over naive, geometric mean: {geometric_mean(gain):.1f} (least {min(gain):.1f}). DeepUM over naive: {geometric_mean(deepum):.1f}.",
        f"Penstock's time over the bound's: {geometric_mean(bound):.2f} (most {max(bound):.2f}).", "",
        "Not reached:", "",
        *([f"- another policy is faster: {x}" for x in slower] or ["- (nowhere is another policy faster)"]),
        *([f"- more than 1.25 of the bound: {x}" for x in above] or ["- (nowhere above 1.25 of the bound)"]),
        "", "`lru` and `deepum` run on the same engine as `penstock`: they too see what is queued, hold launches back until their",
        "memory has come, and never move dead memory. That makes them faster here than the systems they are named after.",
        "", "## Explicit engine", "",
        "| log | ratio | lru | penstock | bound | penstock, of the bound | of the managed engine's time | in / out GB |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, ratio, by, explicit in table:
        r = explicit["penstock"]
        lines.append("| " + " | ".join([
            name, f"{ratio:g}x", *(f"{seconds(explicit, p):.3f}" for p in EXPLICIT),
            f"{seconds(explicit, 'oracle') / seconds(explicit, 'penstock') * 100:.0f} %", f"{seconds(explicit, 'penstock') / seconds(by, 'penstock') * 100:.0f} %",
            f"{r['h2d_bytes'] / 1e9:.1f} / {r['d2h_bytes'] / 1e9:.1f}",
        ]) + " |")
    lines += [
        "", f"The explicit engine reaches {geometric_mean(share) * 100:.0f} % of its bound's speed, geometric mean (least {min(share) * 100:.0f} %), and is "
        f"{geometric_mean(swap_gain):.2f} times as fast as the managed one (least {min(swap_gain):.2f}).", "",
        "Not reached:", "",
        *([f"- less than {EXPLICIT_SHARE * 100:.0f} % of the bound's speed: {x}" for x in below] or [f"- (nowhere below {EXPLICIT_SHARE * 100:.0f} % of the bound's speed)"]),
    ]
    (args.out / "simulated-policies.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
