#!/usr/bin/env python3
"""What making memory again instead of moving it would give, on the simulated GPU.

    bench/simulated_replay.py [--penstock bin/penstock] [--out bench/results] TRACE...

Runs the oracle of the explicit engine on launch logs, with replay and without, and
writes simulated-replay.json and simulated-replay.md. Every number is simulated.
simulated_replay_engine.py does the same with the engine itself.
"""

import json

from simulated_policies import arguments, cases, geometric_mean, simulation


def line(row, compute):
    made = row["replay"]
    return "| " + " | ".join([
        row["trace"], f"{row['ratio']:g}x", f"{compute:.3f}", f"{made['swap_seconds']:.3f}", f"{row['iteration_seconds']:.3f}",
        f"{compute / made['swap_seconds'] * 100:.0f}, {compute / row['iteration_seconds'] * 100:.0f} %",
        f"{made['bytes'] / 1e9:.1f}", f"{row['h2d_bytes'] / 1e9:.1f} / {row['d2h_bytes'] / 1e9:.1f}",
        f"{made['launches']} in {made['seconds'] * 1e3:.1f} ms", str(len(made["functions"])), made["roles"],
    ]) + " |"


def write(args, name, command, title, text, rows, compute, **more):
    """Writes the rows of simulations with replay to name.json and name.md. compute gives what the kernels of the job take in one;
    more goes into the JSON."""
    faster = {ratio: geometric_mean([r["replay"]["swap_seconds"] / r["iteration_seconds"] for r in rows if r["ratio"] == ratio])
              for ratio in sorted({r["ratio"] for r in rows})}
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / f"{name}.json").write_text(json.dumps(
        {"simulated": True, "date": args.date, "command": command, **more, "gpu_profile": "h200", "faster_geometric_mean": faster, "results": rows}, indent=1) + "\n")
    (args.out / f"{name}.md").write_text("\n".join([
        f"# {title}", "", *text, "",
        "| log | ratio | compute | moved only | with replay | speed in memory, before and after | GB made again | GB in / out | launches issued again | functions | roles |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        *(line(r, compute(r)) for r in rows),
        "", "Faster, geometric mean: " + ", ".join(f"{v:.2f} at {k:g}x" for k, v in faster.items()) + ".",
    ]) + "\n")


def main():
    args = arguments(__doc__)
    rows = [simulation(args.penstock, trace, ratio, "oracle", "explicit", "--replay=on") for trace, _, ratio in cases(args.traces)]
    command = "bench/simulated_replay.py TRACE..."
    write(args, "simulated-replay", command, "Made again instead of moved, on the simulated H200", [
        f"Every number here is **simulated** (profile `h200`, {args.date}, `{command}`); what the engine itself makes of it: [simulated-replay-engine.md](simulated-replay-engine.md). These are",
        "seconds of the last iteration of each launch log under the oracle of the explicit engine. Launches that are issued again are on the job's own time line,",
        "charged in full. [How it works](../../docs/replay.md).",
    ], rows, lambda r: r["compute_seconds"] - r["replay"]["seconds"])  # here, what is issued again counts as compute


if __name__ == "__main__":
    main()
