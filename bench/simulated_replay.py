#!/usr/bin/env python3
"""What making memory again instead of moving it would give, on the simulated GPU.

    bench/simulated_replay.py [--penstock bin/penstock] [--out bench/results] TRACE...

Runs the oracle of the explicit engine on launch logs, with replay and without, and
writes simulated-replay.json and simulated-replay.md. Every number is simulated: no
engine makes anything again yet.
"""

import argparse
import datetime
import json
import math
import pathlib
import subprocess
import sys

# The largest launch of llama1b-lr touches 5.9 of 9.6 GiB, so it cannot go lower.
RATIOS = {"llama1b-lr": [1.25, 1.5]}
DEFAULT_RATIOS = [1.5, 2, 3]


def simulate(penstock, trace, ratio):
    command = [penstock, "simulate", "--trace", str(trace), "--ratio", f"{ratio:g}", "--policy", "oracle", "--engine", "explicit", "--gpu", "h200", "--replay=on", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit {done.returncode}: {done.stderr.strip()}")
    return {**json.loads(done.stdout), "ratio": ratio}


def geometric_mean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def line(row):
    made = row["replay"]
    compute = row["compute_seconds"] - made["seconds"]
    return "| " + " | ".join([
        row["trace"], f"{row['ratio']:g}x", f"{compute:.3f}", f"{made['swap_seconds']:.3f}", f"{row['iteration_seconds']:.3f}",
        f"{compute / made['swap_seconds'] * 100:.0f}, {compute / row['iteration_seconds'] * 100:.0f} %",
        f"{made['bytes'] / 1e9:.1f}", f"{row['h2d_bytes'] / 1e9:.1f} / {row['d2h_bytes'] / 1e9:.1f}",
        f"{made['launches']} in {made['seconds'] * 1e3:.1f} ms", str(len(made["functions"])), made["roles"],
    ]) + " |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--penstock", default="bin/penstock")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("bench/results"))
    parser.add_argument("--date", default=datetime.date.today().isoformat())
    parser.add_argument("traces", nargs="+", type=pathlib.Path, metavar="TRACE")
    args = parser.parse_args()

    rows = []
    for trace in args.traces:
        name = trace.name.split(".")[0]
        for ratio in RATIOS.get(name, DEFAULT_RATIOS):
            print(f"{name} {ratio:g}x", file=sys.stderr)
            rows.append(simulate(args.penstock, trace, ratio))
    faster = {ratio: geometric_mean([r["replay"]["swap_seconds"] / r["iteration_seconds"] for r in rows if r["ratio"] == ratio])
              for ratio in sorted({r["ratio"] for r in rows})}
    command = "bench/simulated_replay.py TRACE..."
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "simulated-replay.json").write_text(json.dumps(
        {"simulated": True, "date": args.date, "command": command, "gpu_profile": "h200", "faster_geometric_mean": faster, "results": rows}, indent=1) + "\n")
    (args.out / "simulated-replay.md").write_text("\n".join([
        "# Made again instead of moved, on the simulated H200", "",
        f"Every number here is **simulated** (profile `h200`, {args.date}, `{command}`), and **no engine makes anything again yet**:",
        "seconds of the last iteration of each launch log under the oracle of the explicit engine. Launches that are issued again are on the job's own time line,",
        "charged in full. [How it works](../../docs/replay.md).", "",
        "| log | ratio | compute | moved only | with replay | speed in memory, before and after | GB made again | GB in / out | launches issued again | functions | roles |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        *map(line, rows),
        "", "Faster, geometric mean: " + ", ".join(f"{v:.2f} at {k:g}x" for k, v in faster.items()) + ".",
    ]) + "\n")


if __name__ == "__main__":
    main()
