#!/usr/bin/env python3
"""Time the offline planner on placement problems and recorded runs, and check what it says.

    bench/plan.py [--penstock bin/penstock] [--time 60s] [--out bench/results] FILE...

A FILE NAME.CAPACITY.csv is placed within CAPACITY, another .csv as low as can be
(both id,lower,upper,size), anything else is planned as a trace. Every placement of
a CSV file is read back and checked for overlaps by this script, on its own. Writes
plan.json and plan.md. No GPU is used.
"""

import argparse
import csv
import datetime
import heapq
import json
import os
import pathlib
import platform
import resource
import subprocess
import sys
import tempfile


def overlaps(requests, offsets):
    """Pairs of requests that are alive together and overlap: a sweep over time, comparing with all that is alive."""
    moments = sorted((lower, upper, name) for name, (lower, upper, _) in requests.items())
    alive, ends, found = {}, [], []
    for lower, upper, name in moments:
        while ends and ends[0][0] <= lower:
            alive.pop(heapq.heappop(ends)[1], None)
        begin, end = offsets[name], offsets[name] + requests[name][2]
        found += [(name, other) for other, (b, e) in alive.items() if begin < e and b < end]
        if begin < end:
            alive[name] = (begin, end)
            heapq.heappush(ends, (upper, name))
    return found


def check(path, placements):
    with open(path, newline="") as f:
        requests = {r["id"]: (int(r["lower"]), int(r["upper"]), int(r["size"])) for r in csv.DictReader(f)}
    with open(placements, newline="") as f:
        offsets = {r["id"]: int(r["offset"]) for r in csv.DictReader(f)}
    if requests.keys() != offsets.keys() or min(offsets.values()) < 0:
        sys.exit(f"{path}: the placements are not those of the requests")
    bad = overlaps(requests, offsets)
    if bad:
        sys.exit(f"{path}: {bad[0][0]} and {bad[0][1]} overlap, and {len(bad) - 1} other pairs")
    return max(offsets[i] + r[2] for i, r in requests.items())


def run(penstock, path, limit, folder):
    command = [penstock, "plan", "--json", "--time", limit]
    capacity = None
    if path.suffix == ".csv":
        out = folder / "placements.csv"
        command += ["--csv", str(path), "--out", str(out)]
        parts = path.name.split(".")
        if len(parts) == 3 and parts[1].isdigit():
            capacity = int(parts[1])
            command += ["--capacity", str(capacity)]
    else:
        command += ["--trace", str(path)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit {done.returncode}")
    row = json.loads(done.stdout)
    row["input"] = path.name
    row["cpu_seconds"] = round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 2)
    if path.suffix == ".csv":
        top = check(path, out)
        if top != row["planned_bytes"]:
            sys.exit(f"{path}: {row['planned_bytes']} bytes said, {top} needed")
        row["checked"] = True
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--penstock", default="bin/penstock")
    parser.add_argument("--time", default="60s", help="limit of each search (60s)")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("bench/results"))
    parser.add_argument("files", nargs="+", type=pathlib.Path, metavar="FILE")
    args = parser.parse_args()

    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for path in args.files:
            row = run(args.penstock, path, args.time, pathlib.Path(folder))
            rows.append(row)
            print(f"{row['input']}: {row['planned_over_peak']:.5f} of the peak, {row['plan_seconds']:.2f} s", file=sys.stderr)
    version = subprocess.run([args.penstock, "version"], capture_output=True, text=True, check=False).stdout.strip()
    about = {
        "command": "bench/plan.py --time " + args.time + " " + " ".join(p.name for p in args.files),
        "version": version, "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores", "load_average_after": os.getloadavg()[0], "rows": rows,
    }
    lines = [
        "# The offline planner", "",
        f"`{about['command']}`, {version}, {about['date']}, {about['machine']}, load average {about['load_average_after']:.1f} at the end.",
        "Peak is the most bytes alive at once, as requested: no plan can need less. Placements of CSV files were checked for overlaps by the script.", "",
        "| input | requests | peak bytes | planned bytes | planned over peak | fits | seconds | CPU seconds |", "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for r in rows:
        fits = "-" if "capacity_bytes" not in r else "yes" if r["fits"] else "**no**"
        lines.append(f"| {r['input']} | {r['requests']} | {r['peak_live_bytes']} | {r['planned_bytes']} | {r['planned_over_peak']:.5f} | {fits} | {r['plan_seconds']:.2f} | {r['cpu_seconds']:.2f} |")
    hard = [r for r in rows if "capacity_bytes" in r]
    if hard:
        lines += ["", f"With a capacity: {sum(r['fits'] for r in hard)} of {len(hard)} fit, {sum(r['plan_seconds'] for r in hard):.1f} s together, {sum(r['cpu_seconds'] for r in hard):.1f} s of CPU time."]
    text = "\n".join(lines) + "\n"
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "plan.json").write_text(json.dumps(about, indent=1) + "\n")
    (args.out / "plan.md").write_text(text)
    print(text)
    return 0 if all(r["fits"] for r in hard) else 1


if __name__ == "__main__":
    sys.exit(main())
