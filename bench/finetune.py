"""Full fine-tuning of language models that do not fit: Penstock, and what people take instead.

    python3 bench/finetune.py llama3b:24GiB,14GiB [--tokens 8k,16k,32k] [--rows REGEX] [--steps 8]
    python3 bench/finetune.py --tiny [--device cpu]      # the whole of it on small models: does it work?

A row is a job, a way and the tokens of a step; each is a process of its own (finetune_job.py, which has the ways). Jobs are shapes of Llama 3.2 3B, Llama 3
8B and Qwen3 14B with random weights: AMP, or bf16 weights and states (-bf16). For each budget of a job there is Penstock (`penstock BUDGET`), which runs the
script of `checkpointing`, and `penstock-in-backward BUDGET`, that of `in-backward`. All but `stock` have the model's checkpointing on. Steps of --tokens are batches
of rows of --length tokens; with --micro they are summed over parts of so many rows, which the line and torchao's offloaded gradients cannot do.

Shares are of `checkpointing`, in memory, and losses are compared with it: with --deterministic ours have to be its own to the bit, parameters too. Seconds are
the median of the last half of the steps. GPU memory is what NVML counts above what was in use before, host memory the largest resident set. A row that would
take more of the host than --host-limit is ended. Lines are those of the script that are not in stock's.
Each row is written to bench/results/NAME.json as soon as it is there; --resume keeps the rows of the same card and commit.
Exit status 1 when a row of ours failed or lost equality, 2 when nothing could be run.
"""

import argparse
import importlib.util
import json
import os
import re
import sys
import time

import _common as c
import _gate as g
import explicit as e
from finetune_job import JOBS, WAYS, lines_changed

JOB = c.BENCH / "finetune_job.py"
BUDGETS = {"llama3b": "24GiB,14GiB", "llama8b": "72GiB", "llama8b-bf16": "24GiB", "qwen14b-bf16": "72GiB", "small": "768MiB", "small-bf16": "512MiB", "tiny": "128MiB", "tiny-bf16": "128MiB"}
TINY = {"cpu": (["tiny", "tiny-bf16"], 64, "128"), "cuda": (["small", "small-bf16"], 512, "4k")}  # jobs, tokens of a row, tokens of a step
BAD = ("FAILED", "TIMEOUT", "DIFFERS")
REFERENCE = "checkpointing"
LINE = {"penstock": "checkpointing", "penstock-in-backward": "in-backward"}  # the script that each runs
OURS = (REFERENCE, "in-backward", *LINE)  # of one result to the bit


def parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("jobs", nargs="*", metavar="JOB[:BUDGET,...]", help="of " + ", ".join(JOBS) + "; the four large ones unless named")
    p.add_argument("--rows", default="", metavar="REGEX", help="rows whose name this is found in; --list shows names")
    p.add_argument("--list", action="store_true", help="print the names of the rows and end")
    p.add_argument("--tokens", default="8k", metavar="N,N", help="tokens of a step; k is 1024")
    p.add_argument("--length", type=int, default=2048, help="tokens of a row of a batch")
    p.add_argument("--micro", type=int, default=0, help="rows of a forward pass, where a step has more of them")
    p.add_argument("--steps", type=int, default=8)
    p.add_argument("--timeout", type=float, default=240, help="seconds a row may take; it stops by itself a little before")
    p.add_argument("--deadline", type=float, default=560, help="seconds of all rows: the last is cut to what is left, and none is started with less than 30")
    p.add_argument("--host-budget", default="90GiB", help="of Penstock")
    p.add_argument("--host-limit", type=float, default=100, metavar="GIB", help="a row that takes more of the host is ended")
    p.add_argument("--deterministic", action="store_true", help="deterministic algorithms; results are compared to the bit")
    p.add_argument("--set", default="", metavar="NAME=VALUE[,...]", help="in the environment of Penstock's rows")
    p.add_argument("--tiny", action="store_true", help="small models and few tokens")
    p.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help="cpu: without Penstock's rows and those that need a GPU")
    p.add_argument("--resume", action="store_true", help="keep the rows that the results have of this card, commit and versions, but for those that failed")
    p.add_argument("--json", action="store_true", help="print the results as JSON instead of the table")
    p.add_argument("--name", default="finetune", help="results go to bench/results/NAME.json")
    a = p.parse_args()
    if a.tiny:
        jobs, a.length, a.tokens = TINY[a.device]
        a.jobs = a.jobs or jobs
    a.jobs = a.jobs or list(JOBS)[:4]
    a.jobs = budgets_of(p, a.jobs)
    a.tokens = [tokens(p, word, a.length) for word in a.tokens.split(",")]
    a.set = c.settings(a.set) if a.set else {}
    return a


def budgets_of(parser, words):
    """The budgets of each job, of words such as llama3b:24GiB,14GiB."""
    found = {}
    for job, _, budgets in (x.partition(":") for x in words):
        if job not in JOBS:
            parser.error(f"unknown job {job!r}: choose from {', '.join(JOBS)}")
        found[job] = (budgets or BUDGETS[job]).split(",")
    return found


def tokens(parser, word, length):
    n = int(word[:-1]) * 1024 if word[:-1].isdigit() and word.endswith("k") else int(word) if word.isdigit() else 0
    if n < length or n % length:
        parser.error(f"--tokens {word}: it takes a number such as 8k, a multiple of --length {length}")
    return n


def rows(a):
    """What there is to run, in the order of running: the reference of a job's tokens comes first."""
    for job, budgets in a.jobs.items():
        for n in a.tokens:
            batch = n // a.length
            micro = a.micro if a.micro and batch % a.micro == 0 else batch
            ways = [REFERENCE, *(w for w in WAYS if w != REFERENCE)] + [f"{w} {b}" for b in budgets for w in LINE]
            for way in ways:
                size = f"{batch} x {a.length}" if micro == batch else f"{batch // micro} x {micro} x {a.length}"
                yield {"name": f"{job} {way} {size}", "job": job, "way": way, "size": size, "tokens": n, "batch": micro, "accumulate": batch // micro, "length": a.length}


def impossible(row, device):
    """(state, why) of a row that need not be tried."""
    name, _, budget = row["way"].partition(" ")
    way = WAYS[LINE.get(name, name)]
    if way.needs and not importlib.util.find_spec(way.needs):
        return "not installed", way.needs
    if device == "cpu" and (way.card or budget):
        return "no GPU", "it does nothing without one"
    if row["accumulate"] > 1 and not way.parts:
        return "refused", "gradients are not summed over parts: they are gone as soon as they are used"
    return None


STATES = (("HOST MEMORY", "host memory"), ("OutOfMemoryError", "out of memory"), ("CUDA out of memory", "out of memory"))


def state_of(record):
    """What became of a process that ended in an error."""
    text = record["error"] + record["stderr_tail"]
    return next((state for sign, state in STATES if sign in text), "TIMEOUT" if record["timed_out"] else "FAILED")


def python_path():
    """The package of this checkout, and what this process has: peers may be carried there."""
    return {"PYTHONPATH": os.pathsep.join([str(c.ROOT / "python"), *filter(None, [os.environ.get("PYTHONPATH")])])}


def attempt(a, card, row, timeout_s):
    name, _, budget = row["way"].partition(" ")
    script = LINE.get(name, name)
    flags = ["--way", script, "--batch", row["batch"], "--length", row["length"], "--accumulate", row["accumulate"], "--device", a.device, "--seconds", int(timeout_s * 0.85), "--host-limit", a.host_limit]
    ours = dict(penstock=True, engine="explicit", budget=budget, host_budget=a.host_budget) if budget else {}
    record = c.train(
        card, row["job"], a.steps, timeout_s, deterministic=a.deterministic, sample=a.device == "cuda", flags=[str(x) for x in flags], workloads=JOB, extra={**python_path(), **(a.set if budget else {})}, **ours,
    )  # fmt: skip
    record["name"] = row["name"]
    result = record.get("result") or {}
    row.update(e.summarise(record, None), command=record["command"], lines_changed=lines_changed(WAYS[script]), state="ok")
    for key in ("loss", "host_peak_bytes", "built_s", "parameters", "parameter_checksums"):
        if key in result:
            row[key] = result[key]
    if "seconds_per_iteration" in row:
        row["tokens_per_second"] = round(row["tokens"] / row["seconds_per_iteration"], 1)
    if record["error"]:
        row["state"] = state_of(record)


def compare(row, reference, deterministic):
    """Adds how a row stands beside the same steps in memory."""
    if not reference or "seconds_per_iteration" not in row or "seconds_per_iteration" not in reference:
        return
    row["share_of_memory"] = round(reference["seconds_per_iteration"] / row["seconds_per_iteration"], 4)
    n = min(len(row["loss"]), len(reference["loss"]))
    row["loss_distance"] = g.distance(row["loss"][:n], reference["loss"][:n])
    if deterministic and row["way"].partition(" ")[0] in OURS:
        found = e.compare(row, reference)
        row.update(found)
        if found["losses_equal"] is False or found["parameters_equal"] is False:
            row["state"] = "DIFFERS"


HEAD = ["row", "s/step", "tokens/s", "of memory", "GPU GiB", "host GiB", "lines", "losses", "state"]


def cells(row):
    gib = lambda v: c.fmt(None if v is None else v / c.GIB, ".1f")  # noqa: E731
    if row.get("losses_equal"):
        losses = "equal" + (", parameters too" if row.get("parameters_equal") else "")
    else:
        losses = c.fmt(row.get("loss_distance"), ".0e")
    return [
        row["name"], c.fmt(row.get("seconds_per_iteration")), c.fmt(row.get("tokens_per_second"), ",.0f"), c.fmt(row.get("share_of_memory"), ".0%"),
        gib(row.get("nvml_peak_over_idle_bytes")), gib(row.get("host_peak_bytes")), row.get("lines_changed", ""), losses, row["state"] + (f": {row['why']}" if row.get("why") else ""),
    ]  # fmt: skip


def failed(row):
    """Whether a row is not as it ought to be: in memory, or peers, may run out of it."""
    name, _, budget = row["way"].partition(" ")
    return row["state"] in BAD and name in OURS or budget != "" and row["state"] in ("out of memory", "host memory")


def opened(a, *packages):
    """The card, the name of the results and their beginning: what finetune.py and saving.py begin with."""
    if a.device == "cuda":
        c.require_build()
    card = c.Card() if a.device == "cuda" else g.NoCard()
    name = a.name if a.device == "cuda" else f"{a.name}-cpu"  # which git ignores
    return card, name, {**c.header(card, c.EXPLICIT_NOTE), "versions": g.versions(*packages), "not_run": [], "rows": []}


def told(a, document, head, cells):
    """Prints what there is in the end."""
    if a.json:
        print(json.dumps(document))
        return
    print(c.table(head, [cells(row) for row in document["rows"]]))
    if document["not_run"]:
        print("not run: " + "; ".join(document["not_run"]))


def kept(a, document, name):
    old = c._load(c.BENCH / "results" / f"{name}.json") or {}
    alike = a.resume and all(old.get(k) == document[k] for k in ("gpu", "commit", "versions"))
    return {r["name"]: r for r in old["rows"] if r["deterministic"] == a.deterministic and r["state"] not in BAD} if alike else {}


def body():
    a = parse()
    todo = [row for row in rows(a) if re.search(a.rows, row["name"])]
    if a.list:
        print("\n".join(row["name"] for row in todo))
        return 0
    if not todo:
        raise c.Refused(f"no row has {a.rows!r} in its name: --list shows them")
    card, name, document = opened(a, "torchao", "deepspeed")
    document["not_run"] = [row["name"] for row in todo]
    done = kept(a, document, name)
    document["rows"] = list(done.values())
    began, said = time.monotonic(), sys.stderr if a.json else sys.stdout
    for row in todo:
        if row["name"] not in done:
            left = a.deadline - (time.monotonic() - began)
            no = impossible(row, a.device)
            if no:
                row["state"], row["why"] = no
            elif left < min(30, a.timeout):
                continue
            else:
                attempt(a, card, row, min(a.timeout, left))
            row.update(date=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), deterministic=a.deterministic)
            done[row["name"]] = row
            document["rows"].append(row)
            compare(row, done.get(f"{row['job']} {REFERENCE} {row['size']}"), a.deterministic)
            print(f"{time.monotonic() - began:6.0f} s  " + "  ".join(map(str, cells(row))), file=said, flush=True)
            if row["state"] in BAD:
                print(row.get("error"), row.get("stderr_tail"), sep="\n", file=said, flush=True)
        document["not_run"].remove(row["name"])
        c.save(name, document)
    told(a, document, HEAD, cells)
    return 1 if any(failed(row) for row in document["rows"]) else 0


if __name__ == "__main__":
    c.main(body)
