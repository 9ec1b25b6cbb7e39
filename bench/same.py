#!/usr/bin/env python3
"""Check that a change changes no simulated result and no plan.

    bench/same.py [--base REV] [--quick] [TRACE...]

Builds bin/penstock of the tree and that of another commit (HEAD unless --base says
another), has both make the same tables, and compares them byte by byte: the demo's
table and page, `penstock plan` of every trace, and every row that simulated_policies.py
has of it. Where bench/results/simulated-policies.json has the row, it must be the
same, too. Without traces it is the one that comes with Penstock. --quick leaves out the
rows but for the policy penstock at 2x.
Every number is simulated, no GPU is used. Exits with 0 when all is the same, else with 1.
"""

import argparse
import difflib
import hashlib
import itertools
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from simulated_policies import DEFAULT_RATIOS, EXPLICIT, POLICIES, RATIOS, simulate

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILDS = ROOT / "build" / "same"
TRACE = ROOT / "testdata" / "traces" / "gpt2m.tsv.gz"
RESULTS = ROOT / "bench" / "results" / "simulated-policies.json"


def run(*command, cwd=ROOT):
    done = subprocess.run(command, cwd=cwd, capture_output=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: exit {done.returncode}: {done.stderr.decode().strip()}")
    return done.stdout.decode()


def build(source, out):
    run("go", "build", "-buildvcs=false", "-trimpath", "-o", str(out), "./cmd/penstock", cwd=source)
    return out


def build_of(revision):
    """The command as it was at a commit."""
    commit = run("git", "rev-parse", "--verify", revision + "^{commit}").strip()
    out = BUILDS / commit / "penstock"
    if not out.exists():
        with tempfile.TemporaryDirectory() as source:
            archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True)
            subprocess.run(["tar", "x"], cwd=source, input=archive.stdout, check=True)
            out.parent.mkdir(parents=True, exist_ok=True)
            os.replace(build(source, out.with_suffix(".new")), out)
    return out


def demo(penstock):
    """The demo's table and its page."""
    with tempfile.TemporaryDirectory() as folder:
        page = pathlib.Path(folder, "demo.html")
        table = run(penstock, "demo", "--html", str(page)).replace(str(page), "demo.html")
        return table + page.read_text()


def plan(penstock, trace):
    """What is said of a plan, but for the time it took, and the plan."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder, "plan.json")
        said = json.loads(run(penstock, "plan", "--trace", str(trace), "--json", "--out", str(out)))
        del said["plan_seconds"]
        return json.dumps(said, indent=1) + "\n" + out.read_text()


def kept(penstock, what, make):
    """What the base makes: the same each time, so it is kept beside the command."""
    file = penstock.with_name(what + ".txt")
    if not file.exists():
        file.write_text(make())
    return file.read_text()


def name_of(trace):
    return trace.name.split(".")[0]


def rows_of(trace, quick):
    """The rows of the tables: ratio, policy and engine."""
    if quick:
        return [(2, "penstock", engine) for engine in ("managed", "explicit")]
    ratios = RATIOS.get(name_of(trace), DEFAULT_RATIOS)
    return [(r, p, e) for r in ratios for e, policies in (("managed", POLICIES), ("explicit", EXPLICIT)) for p in policies]


def row(penstock, trace, ratio, policy, engine):
    return json.dumps(simulate(penstock, trace, ratio, policy, engine), indent=1)


def committed():
    """The rows of the results in the repository, as text by trace, ratio, policy and engine."""
    rows = json.loads(RESULTS.read_text())["results"]
    return {(r["trace"], r["ratio"], r["policy"], r.get("engine", "managed")): json.dumps(r, indent=1) for r in rows}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", default="HEAD", metavar="REV")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("traces", nargs="*", type=pathlib.Path, metavar="TRACE")
    args = parser.parse_args()

    base, tree = build_of(args.base), build(ROOT, ROOT / "bin" / "penstock")
    published = committed()
    different = 0

    def compare(what, before, after):
        nonlocal different
        if before != after:
            different += 1
            print(f"{what} differs:")
            print("\n".join(itertools.islice(difflib.unified_diff(before.splitlines(), after.splitlines(), args.base, "tree", n=1, lineterm=""), 40)))

    compared = 1
    compare("the demo", kept(base, "demo", lambda: demo(base)), demo(tree))
    for trace in args.traces or [TRACE]:
        # By its contents: another file may have the name.
        digest = hashlib.sha256(trace.read_bytes()).hexdigest()[:16]
        compare(f"the plan of {name_of(trace)}", kept(base, f"plan-{digest}", lambda: plan(base, trace)), plan(tree, trace))
        compared += 1
        for ratio, policy, engine in rows_of(trace, args.quick):
            what = f"{name_of(trace)} {ratio:g}x, {policy} ({engine})"
            print(what, file=sys.stderr)
            after = row(tree, trace, ratio, policy, engine)
            compare(what, kept(base, f"{digest}-{ratio:g}-{policy}-{engine}", lambda: row(base, trace, ratio, policy, engine)), after)
            key = (name_of(trace), ratio, policy, engine)
            if key in published:
                compare(f"{what} in {RESULTS.name}", published[key], after)
            compared += 1
    print(f"{compared} tables compared with those of {args.base}: " + (f"{different} differ" if different else "all the same"))
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
