#!/usr/bin/env python3
"""The table of the explicit engine's measured runs, beside what the simulator says of them.

    bench/explicit_table.py [--traces FOLDER] [RESULT.json...]

Reads what bench/explicit.py wrote (bench/results/explicit*.json when none is named)
and writes bench/results/explicit.md. With --traces, a folder of launch logs named
after the models (gpt2l.tsv.gz), each run gets the time of the oracle and of the
policy on the simulated H200 at the same budget, the share of the oracle's speed
that was measured, and by how much the simulation was off. No GPU is needed.
Exit status 1 when a run failed, its losses differ, or it is below the share that
is aimed at; 2 when there is nothing to read.
"""

import argparse
import gzip
import json
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
GIB = 1 << 30
SHARE = 0.8  # of the oracle's speed, the aim
AGREEMENT = 0.15  # between simulated and measured times, the aim
SIMULATED_CARD = "h200"  # whose runs alone stand beside what the simulator says
ITERATIONS = 10  # that are simulated: runs on hardware report the last half of 8 to 20
CPU_BOUND = 1.2  # times the GPU's time, from which on an iteration in memory is its CPU's


def budget_bytes(text):
    for unit, factor in (("GiB", GIB), ("MiB", 1 << 20)):
        if str(text).endswith(unit):
            return int(float(text[: -len(unit)]) * factor)
    return int(text)


def simulate(penstock, trace, budget, policy, launch_cost_s=None):
    """The simulation's result, or the reason why there is none."""
    command = [penstock, "simulate", "--trace", str(trace), "--budget", str(budget), "--policy", policy, "--engine", "explicit", "--gpu", SIMULATED_CARD, "--iterations", str(ITERATIONS), "--json"]
    if launch_cost_s:
        command += ["--launch-cost", f"{launch_cost_s * 1e6:.1f}us"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return None, done.stderr.strip()
    return json.loads(done.stdout), ""


def launches(trace):
    """Of the last iteration of a launch log."""
    counts = [0]
    with gzip.open(trace, "rt") as log:
        for event in log:
            if event[0] == "M":
                counts.append(0)
            elif event[0] in "KC":
                counts[-1] += 1
    return counts[-2]


def launch_cost(trace, in_memory_s, compute_s):
    """Seconds from one launch to the next of a job that its CPU keeps back in memory; None of another."""
    if not in_memory_s or in_memory_s < CPU_BOUND * compute_s:
        return None
    return in_memory_s / launches(trace)


def load(paths):
    """Each run of a card once: where several files have it, from the newest. Runs that check every move are slower by that."""
    documents = sorted(((path.name, json.loads(path.read_text())) for path in paths), key=lambda d: d[1].get("date", ""))
    documents = [d for d in documents if "--verify" not in d[1].get("command", "")]
    runs = {}
    for name, document in documents:
        in_memory = {row["model"]: row.get("seconds_per_iteration") for row in document.get("rows", []) if not row.get("budget")}
        for row in document.get("rows", []):
            runs[document.get("gpu"), row["name"]] = (name, document, row, in_memory.get(row["model"]))
    return sorted(runs.values(), key=lambda r: (str(r[1].get("gpu")), r[2]["model"], -budget_bytes(r[2].get("budget") or 1 << 60)))


def label(document, row, cards):
    """What a run is called: with its card, where there are several."""
    return row["name"] + (f", {document.get('gpu')}" if len(cards) > 1 else "")


def number(value, form=".3f"):
    return "-" if value is None else format(value, form)


def percent(share, form=".0f"):
    return "-" if share is None else format(share * 100, form) + " %"


def line(cells):
    return "| " + " | ".join(cells) + " |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=pathlib.Path)
    parser.add_argument("--penstock", default=str(HERE.parent / "bin" / "penstock"))
    parser.add_argument("--out", type=pathlib.Path, default=HERE / "results" / "explicit.md")
    parser.add_argument("results", nargs="*", type=pathlib.Path, metavar="RESULT.json")
    args = parser.parse_args()
    paths = args.results or sorted((HERE / "results").glob("explicit*.json"))
    runs = load(paths)
    if not runs:
        print("no results to read: run bench/explicit.py first, or name its files", file=sys.stderr)
        return 2

    first, cards = runs[0][1], sorted({str(document.get("gpu")) for _, document, _, _ in runs})
    names = sorted({name for name, _, _, _ in runs})
    dates = sorted({document["date"][:10] for _, document, _, _ in runs})
    lines = [
        "# The explicit engine on hardware", "",
        "Measured by `bench/explicit.py` (" + ", ".join(names) + "; " + ", ".join(dates) + "; "
        + ", ".join([*cards, *(str(first[k]) for k in ("driver", "torch") if first.get(k))]) + "). The newest run of each; the commit is",
        "beside it. The budget bounds plain device memory (cuMemCreate); seconds are medians of the last half of the iterations, and",
        "`x` is their ratio to the run in memory of the same call. `oracle` and `simulated` are **simulated** times at the same budget",
        f"from a launch log of the model, of the last iteration when it is played again until there are {ITERATIONS}; `of the oracle` is the oracle's time over the measured one. The oracle knows the GPU and the bus alone:",
        "a model that its CPU keeps back in memory (gpt2m, moe) cannot reach it. Where a run in memory took 1.2 times the GPU's time and more, `oracle with CPU` is that of one that",
        "is told, as the simulation is, what the job's CPU takes from launch to launch: its time in memory, in the same call, over its launches. What copies beside it cost the CPU it is not told.",
        "The machine's CPU differs between calls and within them (gpt2m in memory: 0.07 to 0.12 s).",
        "`stall` is what launches waited for with nothing before them left to run; from commit 872f7ae on that is also on their stream, for copies under way.", "",
        line(["run", "commit", "budget GiB", "s/iteration", "x", "losses", "in / out GB", "in / out GB/s", "stall s", "NVML peak GiB", "oracle s", "of the oracle", "oracle with CPU s", "of that", "simulated s", "off by"]),
        line(["---"] * 16),
    ]  # fmt: skip
    failed, below, off = [], [], []
    for _, document, row, in_memory in runs:
        measured, budget, explicit = row.get("seconds_per_iteration"), row.get("budget"), row.get("explicit") or {}
        name = label(document, row, cards)
        losses = {True: "bit-equal", False: "DIFFER", None: "-"}[row.get("losses_equal")]
        if measured is None or row.get("error") or row.get("losses_equal") is False:
            failed.append(name)
        oracle = with_cpu = simulated = None
        if budget and args.traces and measured and SIMULATED_CARD in str(document.get("gpu")).lower():
            trace = args.traces / f"{row['model']}.tsv.gz"
            if trace.exists():
                bound, why = simulate(args.penstock, trace, budget_bytes(budget), "oracle")
                if bound is None:
                    print(f"{name}: {why}", file=sys.stderr)
                else:
                    oracle = bound["iteration_seconds"]
                cost = bound and launch_cost(trace, in_memory, bound["compute_seconds"])
                if cost:
                    with_cpu = simulate(args.penstock, trace, budget_bytes(budget), "oracle", cost)[0]["iteration_seconds"]
                result, why = simulate(args.penstock, trace, budget_bytes(budget), "penstock", cost)
                if result is None:
                    print(f"{name}: {why}", file=sys.stderr)
                else:
                    simulated = result["iteration_seconds"]
        share = oracle / measured if oracle else None
        share_with_cpu = with_cpu / measured if with_cpu else None
        error = simulated / measured - 1 if simulated else None
        if share is not None and share < SHARE:
            below.append(f"{name} ({percent(share)}" + (f"; {percent(share_with_cpu)} of the oracle with the job's CPU)" if share_with_cpu else ")"))
        if error is not None and abs(error) > AGREEMENT:
            off.append(f"{name} ({percent(error, '+.0f')})")
        gb = lambda key: number(row[key] / 1e9, ".1f") if row.get(key) is not None else "-"  # noqa: E731
        nvml = row.get("nvml_peak_over_idle_bytes")
        lines.append(line([
            name + ("" if measured else " FAILED"), document["commit"], number(budget_bytes(budget) / GIB, ".1f") if budget else "-", number(measured),
            number(measured / in_memory if measured and in_memory and budget else None, ".2f"), losses,
            f"{gb('h2d_bytes_steady')} / {gb('d2h_bytes_steady')}" if budget else "-",
            f"{number(explicit.get('in_gb_per_second'), '.1f')} / {number(explicit.get('out_gb_per_second'), '.1f')}" if budget else "-",
            number(row.get("stall_seconds_steady"), ".2f") if budget else "-", number(nvml / GIB if nvml else None, ".1f"),
            number(oracle), percent(share), number(with_cpu), percent(share_with_cpu), number(simulated), percent(error, "+.0f"),
        ]))  # fmt: skip
    lines += ["", "Not reached:", ""]
    lines += [f"- failed, or losses differ: {x}" for x in failed] or ["- (no run failed)"]
    lines += [f"- below {SHARE * 100:.0f} % of the oracle's speed: {x}" for x in below] or ["- (none that could be compared is below the share of the oracle)"]
    lines += [f"- simulated and measured differ by more than {AGREEMENT * 100:.0f} %: {x}" for x in off] or ["- (simulated and measured times agree where they could be compared)"]
    args.out.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    return 1 if failed or below else 0


if __name__ == "__main__":
    sys.exit(main())
