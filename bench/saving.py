"""Saving and resuming a fine-tune in memory and inside a budget: what is it that a checkpoint takes?

    python3 bench/saving.py [JOB[:BUDGET,...] ...] [--ways torch.save,dcp,save_pretrained,safetensors]
    python3 bench/saving.py --tiny [--device cpu]

Jobs are those of finetune.py (llama3b unless named), with checkpointing, AdamW and 8 k tokens a step. A row is a process of its own (saving_job.py) that
trains, saves, trains a step, loads and makes that step again. It says how long saving and loading take, how much of the host's memory came on top of what
the job had, and what Penstock moved meanwhile, each way. Parameters and states that were loaded must be those that were saved, and the loss of the step the
same. Files go to --folder, and are removed. Results are written to bench/results/NAME.json, each row as soon as it is there.
Exit status 1 when a row failed or something is not the same, 2 when nothing could be run.
"""

import argparse
import re
import sys
import time

import _common as c
import finetune as f
from saving_job import WAYS

JOB = c.BENCH / "saving_job.py"
HEAD = ["row", "saved GiB", "save s", "host GiB", "in GiB", "out GiB", "load s", "host GiB", "in GiB", "out GiB", "state"]


def parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("jobs", nargs="*", metavar="JOB[:BUDGET,...]", help="of " + ", ".join(f.JOBS) + "; llama3b unless named")
    p.add_argument("--ways", default=",".join(WAYS))
    p.add_argument("--rows", default="", metavar="REGEX", help="rows whose name this is found in")
    p.add_argument("--steps", type=int, default=3, help="before it saves")
    p.add_argument("--folder", default=None, help="where there is room for the files; the usual one for temporary files unless given")
    p.add_argument("--timeout", type=float, default=280, help="seconds a row may take")
    p.add_argument("--deadline", type=float, default=560, help="seconds of all rows: the last is cut to what is left, and none is started with less than 30")
    p.add_argument("--host-budget", default="90GiB", help="of Penstock")
    p.add_argument("--host-limit", type=float, default=100, metavar="GIB", help="a row that takes more of the host is ended")
    p.add_argument("--tiny", action="store_true", help="a small model and few tokens")
    p.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help="cpu: in memory only")
    p.add_argument("--json", action="store_true", help="print the results as JSON instead of the table")
    p.add_argument("--name", default="saving", help="results go to bench/results/NAME.json")
    a = p.parse_args()
    a.ways = c.chosen(p, a.ways, WAYS, "way")
    jobs, a.length, a.tokens = f.TINY[a.device] if a.tiny else (["llama3b"], 2048, "8k")
    a.jobs = f.budgets_of(p, a.jobs or jobs[:1])
    a.batch = f.tokens(p, a.tokens, a.length) // a.length
    return a


def attempt(a, card, row, timeout_s):
    flags = ["--way", row["way"], "--batch", a.batch, "--length", a.length, "--device", a.device, "--host-limit", a.host_limit, *(["--folder", a.folder] if a.folder else [])]
    ours = dict(penstock=True, engine="explicit", budget=row["budget"], host_budget=a.host_budget) if row["budget"] else {}
    record = c.train(card, row["job"], a.steps, timeout_s, deterministic=True, sample=a.device == "cuda", flags=[str(x) for x in flags], workloads=JOB, extra=f.python_path(), **ours)
    result = record.get("result") or {}
    row.update({key: result[key] for key in ("iter_s", "loss", "saved_bytes", "save", "load", "loaded_equal", "resumed_equal") if key in result}, command=record["command"], wall_s=record["wall_s"])
    if record["nvml"]:
        row["nvml_peak_over_idle_bytes"] = max(x[1] for x in record["nvml"]) - record["idle_used_bytes"]
    if record["error"]:
        row.update(state=f.state_of(record), error=record["error"], stderr_tail=record["stderr_tail"])
    else:
        row["state"] = "equal" if row["loaded_equal"] and row["resumed_equal"] else "DIFFERS"


def cells(row):
    gib = lambda v: c.fmt(None if v is None else v / c.GIB, ".2f")  # noqa: E731
    parts = []
    for what in ("save", "load"):
        m = row.get(what) or {}
        parts += [c.fmt(m.get("seconds"), ".2f"), *(gib(m.get(key)) for key in ("host_bytes", "h2d_bytes", "d2h_bytes"))]
    return [row["name"], gib(row.get("saved_bytes")), *parts, row["state"]]


def body():
    a = parse()
    todo = [
        {"name": f"{job} {budget or 'in memory'}, {way}", "job": job, "budget": budget, "way": way}
        for job, budgets in a.jobs.items() for budget in ["", *(budgets if a.device == "cuda" else [])] for way in a.ways
    ]  # fmt: skip
    todo = [row for row in todo if re.search(a.rows, row["name"])]
    if not todo:
        raise c.Refused(f"no row has {a.rows!r} in its name")
    card, name, document = f.opened(a, "safetensors")
    document["not_run"] = [row["name"] for row in todo]
    began, said = time.monotonic(), sys.stderr if a.json else sys.stdout
    for row in todo:
        left = a.deadline - (time.monotonic() - began)
        if left < min(30, a.timeout):
            continue
        attempt(a, card, row, min(a.timeout, left))
        document["rows"].append(row)
        document["not_run"].remove(row["name"])
        c.save(name, document)
        print(f"{time.monotonic() - began:6.0f} s  " + "  ".join(cells(row)), file=said, flush=True)
        if row.get("error"):
            print(row["error"], row["stderr_tail"], sep="\n", file=said, flush=True)
    f.told(a, document, HEAD, cells)
    return 1 if any(row["state"] != "equal" for row in document["rows"]) else 0


if __name__ == "__main__":
    c.main(body)
