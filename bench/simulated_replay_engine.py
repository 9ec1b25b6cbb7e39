#!/usr/bin/env python3
"""What the explicit engine makes again instead of moving it, on the simulated GPU.

    bench/simulated_replay_engine.py [--penstock bin/penstock] [--out bench/results] TRACE...

Runs the explicit engine on launch logs, with replay and without, each last iteration repeated
until a job would be at rest, and writes simulated-replay-engine.json and
simulated-replay-engine.md. Every number is simulated.
"""

from simulated_policies import arguments, cases, simulation
from simulated_replay import write

ITERATIONS = 12


def main():
    args = arguments(__doc__)
    rows = [simulation(args.penstock, trace, ratio, "penstock", "explicit", "--replay=on", f"--iterations={ITERATIONS}")
            for trace, _, ratio in cases(args.traces)]
    command = "bench/simulated_replay_engine.py TRACE..."
    write(args, "simulated-replay-engine", command, "The explicit engine with --replay on, on the simulated H200", [
        f"Every number here is **simulated** (profile `h200`, {args.date}, `{command}`): seconds of the last of {ITERATIONS} iterations of each launch log.",
        "Launches that are issued again delay the job's own by as much as they take. [How it works, and what a GPU has seen of it](../../docs/replay.md).",
    ], rows, lambda r: r["compute_seconds"], iterations=ITERATIONS)


if __name__ == "__main__":
    main()
