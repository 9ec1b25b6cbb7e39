"""Made again instead of moved, by hand: ResNet-152 whose ReLUs' results are made again, in a budget beside the usual one.

    python3 bench/by_hand.py [--ratios 2,3] [--iters 20]

What a ReLU leaves is computed again in backward from what its convolution left (bench/by_hand_job.py); what is saved
still, the explicit engine moves. Both models run in memory, then in each budget (a ratio of the usual model's peak):
seconds per iteration and bytes each way. Losses and parameters of all runs must be those of the usual model in memory,
bit for bit (deterministic algorithms). Exit status 1 when they are not or a run failed.
"""

import argparse
import time

import _common as c
import explicit

JOB = c.BENCH / "by_hand_job.py"
MODELS = ("resnet152", "resnet152-again")


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--ratios", default="2", help="how many times less than the peak the budgets are")
    p.add_argument("--iters", type=int, default=20)
    p.add_argument("--timeout", type=float, default=120, help="seconds a run may take")
    p.add_argument("--deadline", type=float, default=560, help="no run is started after so many seconds")
    p.add_argument("--host-budget", default="60GiB")
    p.add_argument("--name", default="by-hand", help="results go to bench/results/NAME.json")
    a = p.parse_args()
    c.require_build()
    card, began, stock, failed = c.Card(), time.monotonic(), None, False
    document = {**c.header(card, c.EXPLICIT_NOTE), "rows": []}
    for ratio in (None, *a.ratios.split(",")):
        for model in MODELS:
            if time.monotonic() - began > a.deadline or (ratio and not stock):
                failed = True
                continue
            how = {"deterministic": True, "sample": True, "flags": ["--on-device", "--no-fill"], "workloads": JOB}
            name = f"{model} in memory"
            if ratio:
                n = explicit.budget_bytes(ratio, stock["peak_allocated_bytes"])
                how.update(penstock=True, engine="explicit", budget=f"{n >> 20}MiB", host_budget=a.host_budget)
                name = f"{model} {n / c.GIB:.2f} GiB ({ratio}x)"
            record = {**c.train(card, model, a.iters, a.timeout, **how), "name": name}
            row = explicit.summarise(record, None)
            if stock and not record["error"]:
                row.update(explicit.compare(record["result"], stock))
            elif not record["error"]:
                stock = record["result"]
            failed = failed or bool(record["error"]) or row.get("losses_equal") is False or row.get("parameters_equal") is False
            document["rows"].append(row)
            c.save(a.name, document)
            print(c.table(explicit.HEAD, [explicit.row(row)]), record["error"] or "", sep="\n", flush=True)
    print(c.table(explicit.HEAD, [explicit.row(r) for r in document["rows"]]), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    c.main(main)
