#!/usr/bin/env python3
"""Replay recordings of jobs whose shapes change on the simulated GPU and write the table.

    bench/simulated_changing.py [--penstock bin/penstock] [--out bench/results] TRACE...

No two iterations of such a recording are alike: what is compared is the mean of the later half,
as often as each is there. Writes simulated-changing.json and simulated-changing.md. Every number
is simulated: nothing is measured on a GPU.
"""

import json

from simulated_policies import EXPLICIT, EXPLICIT_SHARE, POLICIES, arguments, cases, geometric_mean, simulation


def seconds(row):
    return row["iteration_seconds"]


def misses(name, managed, explicit):
    """What is not as it is to be."""
    e, m, bound = explicit["penstock"], managed["penstock"], explicit["oracle"]
    if seconds(bound) < EXPLICIT_SHARE * seconds(e):
        yield f"{name}: the explicit engine has {seconds(bound) / seconds(e) * 100:.0f} % of the bound's speed"
    if seconds(e) > seconds(explicit["lru"]):
        yield f"{name}: lru is faster on the explicit engine, {seconds(explicit['lru']):.4f} s against {seconds(e):.4f}"
    if seconds(e) > seconds(m):
        yield f"{name}: the managed engine is faster than the explicit one, {seconds(m):.4f} s against {seconds(e):.4f}"
    for p in ("naive", "lru", "deepum"):
        if seconds(m) > seconds(managed[p]):
            yield f"{name}: {p} is faster on the managed engine, {seconds(managed[p]):.4f} s against {seconds(m):.4f}"


def main():
    args = arguments(__doc__)
    rows, lines, missed, share, gain = [], [], [], [], []
    for trace, name, ratio in cases(args.traces):
        managed, explicit = (
            {p: simulation(args.penstock, trace, ratio, p, engine) for p in policies}
            for engine, policies in (("managed", POLICIES), ("explicit", EXPLICIT)))
        rows += [*managed.values(), *explicit.values()]
        missed += misses(f"{name} {ratio:g}x", managed, explicit)
        share.append(seconds(explicit["oracle"]) / seconds(explicit["penstock"]))
        gain.append(seconds(managed["penstock"]) / seconds(explicit["penstock"]))
        lines.append("| " + " | ".join([
            name, f"{ratio:g}x", f"{explicit['oracle']['compute_seconds']:.3f}",
            *(f"{seconds(row):.3f}" for row in (explicit["oracle"], explicit["penstock"], explicit["lru"], *(managed[p] for p in ("penstock", "lru", "deepum", "naive")))),
            f"{share[-1] * 100:.0f} %", f"{explicit['penstock']['prediction_hit_rate'] * 100:.0f} %",
            " / ".join(f"{explicit['penstock'][b] / 1e9:.1f} ({explicit['oracle'][b] / 1e9:.1f})" for b in ("h2d_bytes", "d2h_bytes")),
        ]) + " |")

    command = "bench/simulated_changing.py TRACE..."
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "simulated-changing.json").write_text(json.dumps({
        "simulated": True, "date": args.date, "command": command, "gpu_profile": "h200",
        "summary": {"explicit_share_of_bound_geometric_mean": geometric_mean(share), "explicit_share_of_bound_least": min(share),
                    "explicit_over_managed_geometric_mean": geometric_mean(gain), "missed": missed},
        "results": rows}, indent=1) + "\n")
    (args.out / "simulated-changing.md").write_text("\n".join([
        "# Jobs whose shapes change, on the simulated H200", "",
        f"Every number here is **simulated** (profile `h200`, {args.date}, `{command}`): seconds an iteration, the mean of the later half of each",
        "recording, of which no two iterations are alike. `bound` is the oracle of the explicit engine. Shares are of the explicit engine.", "",
        "| recording | ratio | compute | bound | explicit | explicit, lru | managed | managed, lru | deepum | naive | of the bound | predicted exactly | in / out GB (the bound's) |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        *lines, "",
        f"The explicit engine reaches {geometric_mean(share) * 100:.0f} % of its bound's speed, geometric mean (least {min(share) * 100:.0f} %), and is "
        f"{geometric_mean(gain):.2f} times as fast as the managed one (least {min(gain):.2f}).", "",
        "Not reached:", "", *([f"- {x}" for x in missed] or ["- (nowhere)"]),
    ]) + "\n")


if __name__ == "__main__":
    main()
