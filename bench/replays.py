"""Do launches of training jobs do the same when they are issued again? (needs nvcc)

    python3 bench/replays.py [--jobs gpt2m,resnet152,...] [--beside gpt2m,llama1b] [--deterministic]
    python3 bench/replays.py --costs

Each job is trained in memory with the probe of bench/probe/replays.h preloaded, which tries launches of one
iteration: inputs cloned, what they write moved, all memory summed before and after. For each function: launches,
how many were tried, how many were the same bit for bit, whether anything was written that the parameters do not
name, and where what was seen contradicts what names and first touches tell (a pointer that is called an input
and is written). Jobs of --beside then run beside such launches, again and again on a second stream.

Functions that end the context (or do not end) are found out: the job is run again without them, twice at most.
Results: bench/results/NAME.json, and with --out all trials. Exit status 1 when a job could not be tried.

--costs runs two programs of bench/probe instead: gate_latency.cu and vmm_readonly.cu. Results: replay-costs.json.
"""

import argparse
import collections
import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import _common as c

PROBE = c.BENCH / "probe"
HOOK_SOURCES = c.ROOT / "cabi" / "hook"
LIBRARY = c.ROOT / "lib" / "libreplays.so"

# Batches that leave room for clones, and for a block of each size, on a card of 80 GB.
BATCHES = {"gpt2m": 4, "gpt2l": 2, "llama1b": 2, "llama1b-lr": 2, "resnet152": 64, "moe": 2, "vitl": 32, "bertl": 8, "conformer": 16, "unet": 32}

BANNED = re.compile(
    r"embedding_backward|scatter|index_put|bprop|fmha_cutlassB|nll_loss_backward|multi_tensor|radix|onesweep|DeviceScan|DeviceReduce|DeviceSelect|unique"
    r"|GroupProblemShape|grouped|sum_and_scatter|compute_grad_weight|random_from_to|atomic|max_pool_backward",
    re.I,
)
LIBRARIES = re.compile(r"nvjet|cutlass|xmma|gemm|cudnn|cublas|fmha|sdpa|cask|convolve|conv", re.I)


def is_plain(name):
    """Not of a library for matrix products, convolutions or attention."""
    return not LIBRARIES.search(name)


def class_of(name):
    return "not to be repeated, by its name" if BANNED.search(name) else "plain" if is_plain(name) else "product, convolution, attention"


# ---- the build ----


def build():
    """The probe: the hook, with the probe's files in place of launch.c."""
    sources = [p.name for p in sorted(HOOK_SOURCES.glob("*.c")) if p.name != "launch.c"] + [str(p) for p in sorted(PROBE.glob("replays*.c"))]
    if not shutil.which("make"):
        raise c.Refused("there is no make: build lib/libreplays.so with --build-only where there is one, and bring it along")
    r = subprocess.run(["make", "-s", "-C", HOOK_SOURCES, f"OUT={LIBRARY}", "SRC=" + " ".join(sources)], capture_output=True, text=True, timeout=300)
    if r.returncode:
        raise c.Refused(f"the probe was not built: {c.tail(r.stdout + r.stderr)}")


def compile_sums(folder):
    out = Path(folder) / "replays_sums.fatbin"
    c.compile_cuda("probe/replays_sums.cu", out, "-fatbin")
    return out


# ---- what the trials say ----


def inferred(name, fresh, twice, stats):
    """What names and first touches tell of each block of a launch: "r", "w" or "rw"."""
    vectorized = "vectorized_elementwise_kernel" in name or ("unrolled_elementwise_kernel" in name and "multi_outputs" not in name)
    elementwise = "18elementwise_kernelILi" in name or "elementwise_kernelILi128" in name
    any_fresh, roles = any(fresh), []
    for i, now in enumerate(fresh):
        share = stats[i][0] / stats[i][1] if i < len(stats) and stats[i][1] else 0
        if now:
            role = "w"
        elif "multi_tensor" in name:
            role = "rw"
        elif vectorized:
            role = ("rw" if twice[0] else "w") if i == 0 else "r"
        elif (elementwise and any_fresh) or (0.02 < share < 0.5 and any_fresh):
            role = "r"
        elif share > 0.02:
            role = "rw"
        else:
            role = "r"
        roles.append(role)
    if not any("w" in r for r in roles):
        roles = ["r" if elementwise and i else "rw" for i in range(len(roles))]
    return roles


def read_trials(path):
    functions, launches, trials, failed = {}, [], [], None
    with open(path) as f:
        for text in f:
            try:
                line = json.loads(text)
            except ValueError:
                continue  # the last line of a process that ended early
            if "function" in line:
                functions[line["function"]] = line["name"]
            elif "launch" in line:
                launches.append(line)
            elif "trial" in line:
                trials.append(line)
            elif "failed" in line:
                failed = line
    return functions, launches, trials, failed


def summary(path):
    """By function what the trials of a job say."""
    functions, launches, trials, failed = read_trials(path)
    stats = {}
    for x in launches:
        places = stats.setdefault((x["launch"], len(x["fresh"])), [[0, 0] for _ in x["fresh"]])
        for place, fresh in zip(places, x["fresh"]):
            place[0] += fresh == "1"
            place[1] += 1
    rows = {}
    for x in launches:
        row = rows.setdefault(x["launch"], {"launches": 0, "not_tried": collections.Counter(), "tried": 0})
        row["launches"] += 1
        if x["not"]:
            row["not_tried"][x["not"]] += 1
    for t in trials:
        row, name = rows[t["trial"]], functions[t["trial"]]
        row["tried"] += 1
        count = collections.Counter()
        fresh, changed = [x == "1" for x in t["fresh"]], [x == "1" for x in t["changed"]]
        sizes, twice = [b[0] for b in t["blocks"]], [b[2] > 1 for b in t["blocks"]]
        same = "0" not in t["same"] + t["again"]
        count["same"] = same
        count["direct_same"] = "0" not in t["direct"]
        count["written_bytes"] = sum(n for n, w in zip(sizes, changed) if w)
        count["same_bytes"] = sum(n for n, w, a, b in zip(sizes, changed, t["same"], t["again"]) if w and a == b == "1")
        count["needs_old"] = any(w and z == "0" for w, z in zip(changed, t["zeros"])) and same
        count["writes_nothing_seen"] = not any(changed)
        count["writes_unnamed"] = t["unnamed"] > 0
        count["replay_strays"] = t["stray"] > 0
        count["names_host_memory"] = t["host"] > 0
        count["names_foreign_memory"] = any(b[3] for b in t["blocks"])
        roles = inferred(name, fresh, twice, stats[(t["trial"], len(fresh))])
        for i, (role, wrote) in enumerate(zip(roles, changed)):
            count["blocks"] += 1
            if wrote and "w" not in role:
                count["called_input_but_written"] += 1
                row.setdefault("wrong_places", collections.Counter())[str(i)] += 1
            elif not wrote and role != "r":
                count["called_written_but_unchanged"] += 1
            if wrote and role == "w" and t["zeros"][i] == "0" and same:
                count["called_output_but_keeps_some"] += 1
        maps = t.get("maps") or []
        count["tensor_maps"] = len(maps)
        count["tensor_maps_equal"] = sum(m["error"] == 0 and m["equal"] for m in maps)
        for name_, n in count.items():
            row[name_] = row.get(name_, 0) + int(n)
        row["attributes"] = sorted(set(row.get("attributes", [])) | set(t["attributes"]))
    table = [{"name": functions[f], "class": class_of(functions[f]), **row} for f, row in rows.items()]
    return sorted(table, key=lambda r: -r.get("written_bytes", 0)), failed


def try_job(card, job, module, folder, a):
    began, ban, record = time.monotonic(), [], {"job": job, "batch": BATCHES.get(job), "banned": []}
    for attempt in range(3):
        out = Path(folder) / f"{job}.jsonl"
        out.unlink(missing_ok=True)
        ban_file = Path(folder) / f"{job}.ban"
        ban_file.write_text("\n".join(ban))
        argv = [sys.executable, c.BENCH / "replays_job.py", job, LIBRARY, module, out, "--each", str(a.each), "--seconds", str(a.seconds), "--ban", ban_file]
        if BATCHES.get(job):
            argv += ["--batch", str(BATCHES[job])]
        if a.deterministic:
            argv.append("--deterministic")
        if job in a.beside:
            argv += ["--beside", "12"]
        extra = {"LD_PRELOAD": str(LIBRARY)}
        if a.deterministic:
            extra["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
        r = c.run(argv, c.environment(extra), a.timeout)
        failed = None
        if out.exists():
            record["functions"], failed = summary(out)
        if not (failed and failed["name"]) or failed["name"] in ban or attempt == 2:
            break
        ban.append(failed["name"])
        record["banned"].append(failed)
    record.update(rc=r["rc"], seconds=round(time.monotonic() - began, 1), failed=failed, said=c.json_lines(r["stdout"]), stderr_tail=c.tail(r["stderr"], 6, 1500))
    if a.out and out.exists():
        with open(out, "rb") as f, gzip.open(Path(a.out) / f"trials-{job}.jsonl.gz", "wb") as g:
            shutil.copyfileobj(f, g)
    return record


def shown(record):
    """A line for each class of function, and the functions that need a look."""
    rows, worst = [], []
    for kind in ("plain", "product, convolution, attention", "not to be repeated, by its name"):
        of = [f for f in record.get("functions", []) if f["class"] == kind]
        total = collections.Counter()
        for f in of:
            for name, n in f.items():
                if isinstance(n, int):
                    total[name] += n
        gib = total["written_bytes"] / c.GIB
        rows.append([record["job"], kind, len(of), total["launches"], total["tried"], total["same"], f"{gib:.2f}", f"{total['same_bytes'] / c.GIB:.2f}", total["called_input_but_written"], total["writes_unnamed"], total["replay_strays"], f"{total['tensor_maps_equal']}/{total['tensor_maps']}"])
        for f in of:
            if kind[0] != "n" and f["tried"] and (f["same"] < f["tried"] or f.get("called_input_but_written") or f.get("writes_unnamed") or f.get("replay_strays")):
                worst.append(f"  {record['job']}: {f['same']} of {f['tried']} the same, input written {f.get('called_input_but_written', 0)}, unnamed {f.get('writes_unnamed', 0)}, strays {f.get('replay_strays', 0)}: {f['name'][:150]}")
    return rows, worst


def costs(card):
    """What the two programs print, and whether they ended well."""
    document, well = c.header(card, "the driver alone"), True
    with tempfile.TemporaryDirectory(prefix="penstock-replays-") as folder:
        for program in ("gate_latency", "vmm_readonly"):
            r = c.run([c.compile_cuda(f"probe/{program}.cu", Path(folder) / program, "-lcuda")], c.environment(), 240)
            document[program] = c.json_lines(r["stdout"])
            well = well and r["rc"] == 0
            print(r["stdout"], c.tail(r["stderr"]), sep="\n", flush=True)
    c.save("replay-costs", document)
    return 0 if well else 1


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--jobs", default="gpt2m,gpt2l,llama1b,resnet152,moe,llama1b-lr,vitl,bertl,conformer,unet")
    p.add_argument("--beside", default="", metavar="JOBS", help="of the jobs: those to run beside replays as well")
    p.add_argument("--deterministic", action="store_true", help="PyTorch's deterministic algorithms")
    p.add_argument("--each", type=int, default=2, help="launches of a function, grid and block that are tried")
    p.add_argument("--seconds", type=float, default=25, help="of a job, after which no launch is tried any more")
    p.add_argument("--timeout", type=float, default=120, help="seconds that a job may take")
    p.add_argument("--deadline", type=float, default=560, help="no job is started after so many seconds")
    p.add_argument("--name", default="replays", help="results go to bench/results/NAME.json")
    p.add_argument("--out", help="a folder for the trials themselves")
    p.add_argument("--costs", action="store_true", help="what sums that are waited for cost, and memory for reading only")
    p.add_argument("--build-only", action="store_true", help="build lib/libreplays.so, for a machine without make")
    a = p.parse_args()
    a.beside = a.beside.split(",") if a.beside else []
    if a.build_only:
        build()
        return 0
    card, began, records = c.Card(), time.monotonic(), []
    if a.costs:
        return costs(card)
    if not LIBRARY.exists():
        build()
    with tempfile.TemporaryDirectory(prefix="penstock-replays-") as folder:
        module = compile_sums(folder)
        if a.out:
            os.makedirs(a.out, exist_ok=True)
        for job in a.jobs.split(","):
            if time.monotonic() - began > a.deadline:
                records.append({"job": job, "failed": "not begun: no time was left"})
                continue
            records.append(try_job(card, job, module, folder, a))
            rows, worst = shown(records[-1])
            head = ["job", "functions", "n", "launches", "tried", "same", "GiB written", "GiB same", "input written", "unnamed", "strays", "maps equal"]
            print(c.table(head, rows), *worst, sep="\n", flush=True)
            print(records[-1].get("rc"), records[-1].get("failed"), *records[-1].get("said", []), sep="\n", flush=True)
            if records[-1].get("rc"):
                print(records[-1]["stderr_tail"], flush=True)
            c.save(a.name, {**c.header(card, "in memory, no Penstock engine"), "jobs": records})
    return 1 if any(r.get("rc") != 0 for r in records) else 0


if __name__ == "__main__":
    c.main(main)
