#!/usr/bin/env python3
"""Simulate jobs that run several programs by turns and write what each switch costs.

    bench/simulated_switches.py [--before FILE] [--rows FILE] [--out bench/results] [LOG]

The jobs are made of one launch log (internal/schedule); `go run ./bench/switches` simulates them. --rows takes what that
printed instead, --before what it printed for the build that is compared. Writes simulated-switches.json and simulated-switches.md.
Every number is simulated: nothing is measured on a GPU.
"""

import argparse
import datetime
import json
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=pathlib.Path, help="rows of the build that is compared")
    parser.add_argument("--rows", type=pathlib.Path, help="rows of this build")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "bench" / "results")
    parser.add_argument("log", nargs="?", default="testdata/traces/gpt2m.tsv.gz")
    return parser.parse_args()


def rows_of(path):
    """The rows of a file, by job, ratio and engine."""
    rows = json.loads(path.read_text()) if path else []
    return {(r["schedule"], r["ratio"], r["engine"]): r for r in rows}


def mean(values):
    return sum(values) / len(values)


def turns(row):
    """Of each program: the iterations that follow another program's, and the others, in order."""
    first, others, last = {}, {}, None
    for program, turn in zip(row["programs"], row["each"], strict=True):
        (others if program == last else first).setdefault(program, []).append(turn)
        last = program
    return first, others


def later(all_of):
    return all_of[len(all_of) // 2:]


def seconds(of):
    return mean([t["seconds"] for t in of])


def predicted(of):
    return sum(t["predicted"] for t in of) / sum(t["operations"] for t in of)


def text(of, base=None):
    if not of:
        return "-"
    return f"{seconds(of) * 1000:.0f} ms, {predicted(of) * 100:.0f} %" + (f" ({(seconds(of) / base - 1) * 100:+.0f} %)" if base else "")


def lines_of(key, row, before):
    first, others = turns(row)
    was_first, was_others = turns(before) if before else ({}, {})
    for program in dict.fromkeys(row["programs"]):
        rest = min(t["seconds"] for t in first.get(program, []) + others.get(program, []) + was_first.get(program, []) + was_others.get(program, []))
        yield "| " + " | ".join([
            key[0], f"{key[1]:g}x", key[2], program, f"{rest * 1000:.0f} ms",
            *(text(later(of.get(program, [])), rest) for of in (was_first, first)), *(text(later(of.get(program, []))) for of in (was_others, others)),
        ]) + " |"


def main():
    args = arguments()
    command = f"bench/simulated_switches.py {args.log}"
    if not args.rows:
        args.rows = ROOT / "build" / "switches.json"
        args.rows.parent.mkdir(exist_ok=True)
        with args.rows.open("w") as out:
            subprocess.run(["go", "run", "./bench/switches", "-ratios", "2", args.log], cwd=ROOT, stdout=out, check=True)
    rows, before = rows_of(args.rows), rows_of(args.before)
    lines = [line for key, row in rows.items() for line in lines_of(key, row, before.get(key))]
    date = datetime.date.today().isoformat()
    (args.out / "simulated-switches.json").write_text(json.dumps({
        "simulated": True, "date": date, "command": command, "gpu_profile": "h200",
        "results": list(rows.values()), "before": [before[key] for key in rows if key in before]}) + "\n")
    (args.out / "simulated-switches.md").write_text("\n".join([
        "# Jobs that run several programs by turns, on the simulated H200", "",
        f"Every number here is **simulated** (profile `h200`, {date}, `{command}`). The jobs are made up of one launch log (`internal/schedule`).",
        "An entry says what an iteration takes, and how many of its operations came as predicted: the mean of the later half.", "",
        "`first` is an iteration right after one of another program, beside the fastest iteration of its program (in brackets). `others` follow their like.",
        "`before` is the build that did not search the log for programs (commit ed7dbf3).", "",
        "| job | ratio | engine | program | fastest | first, before | first | others, before | others |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        *lines,
    ]) + "\n")


if __name__ == "__main__":
    main()
