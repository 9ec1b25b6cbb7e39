#!/usr/bin/env python3
"""What the explicit engine makes again instead of moving it, on the simulated GPU.

    bench/simulated_replay_engine.py [--penstock bin/penstock] [--out bench/results] TRACE...

Runs the explicit engine on launch logs, with replay and without, each last iteration repeated
until a job would be at rest, and writes simulated-replay-engine.json and
simulated-replay-engine.md. Every number is simulated.
"""

import json

from simulated_policies import arguments, cases, geometric_mean, simulation

ITERATIONS = 12


def line(row):
    made = row["replay"]
    compute, before, after = row["compute_seconds"], made["swap_seconds"], row["iteration_seconds"]
    return "| " + " | ".join([
        row["trace"], f"{row['ratio']:g}x", f"{compute:.3f}", f"{before:.3f}", f"{after:.3f}",
        f"{compute / before * 100:.0f}, {compute / after * 100:.0f} %",
        f"{made['bytes'] / 1e9:.1f}", f"{row['h2d_bytes'] / 1e9:.1f} / {row['d2h_bytes'] / 1e9:.1f}",
        f"{made['launches']} in {made['seconds'] * 1e3:.1f} ms", str(len(made["functions"])), made["roles"],
    ]) + " |"


def main():
    args = arguments(__doc__)
    rows = [simulation(args.penstock, trace, ratio, "penstock", "explicit", "--replay=on", f"--iterations={ITERATIONS}")
            for trace, _, ratio in cases(args.traces)]
    faster = {ratio: geometric_mean([r["replay"]["swap_seconds"] / r["iteration_seconds"] for r in rows if r["ratio"] == ratio])
              for ratio in sorted({r["ratio"] for r in rows})}
    command = "bench/simulated_replay_engine.py TRACE..."
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "simulated-replay-engine.json").write_text(json.dumps(
        {"simulated": True, "date": args.date, "command": command, "iterations": ITERATIONS, "gpu_profile": "h200", "faster_geometric_mean": faster,
         "results": rows}, indent=1) + "\n")
    (args.out / "simulated-replay-engine.md").write_text("\n".join([
        "# The explicit engine with --replay on, on the simulated H200", "",
        f"Every number here is **simulated** (profile `h200`, {args.date}, `{command}`): seconds of the last of {ITERATIONS} iterations of each launch log.",
        "Launches that are issued again delay the job's own by as much as they take. [How it works, and what a GPU has seen of it](../../docs/replay.md).", "",
        "| log | ratio | compute | moved only | with replay | speed in memory, before and after | GB made again | GB in / out | launches issued again | functions | roles |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        *map(line, rows),
        "", "Faster, geometric mean: " + ", ".join(f"{v:.2f} at {k:g}x" for k, v in faster.items()) + ".",
    ]) + "\n")


if __name__ == "__main__":
    main()
