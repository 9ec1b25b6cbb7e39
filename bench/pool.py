"""Device memory when everything fits: PyTorch's allocators beside Penstock's pool alone (`penstock run --engine none`).

    python3 bench/pool.py [--parts stitch,latency,memory,batch] [--models ...] [--iters N] [--name pool]

The parts, about six minutes together; --parts and --name split them over several calls:

  stitch   what mapping memory a second time costs on this card, by size of the handles
  latency  allocation and free from C++ threads, 1 and 8, median and p99 (needs g++ and CUDA's headers)
  memory   peak reserved over peak requested after the second iteration, seconds per iteration, losses;
           llama1b-lengths draws the sequence lengths anew for each iteration. One process trains all
           the models with an allocator, one after the other, and empties its caches in between
  batch    how little device memory is enough for a batch, and which batch trains where the pool trains that one

Four allocators: PyTorch's default, expandable_segments, cudaMallocAsync, and the pool.
All runs use deterministic algorithms, so that losses can be compared bit for bit.
Exit status 1 when a run failed, a figure is not as promised, or one is missing.
"""

import argparse
import ctypes
import glob
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import _common as c

ITERATIONS = {"gpt2l": 9, "llama1b": 24, "llama1b-lr": 14, "llama1b-r": 12, "moe": 30, "resnet152": 24, "llama1b-lengths": 16}
MODELS = tuple(ITERATIONS)
PARTS = ("stitch", "latency", "memory", "batch")
STOCK = {"default": "", "expandable": "expandable_segments:True", "async": "backend:cudaMallocAsync"}
ALLOCATORS = (*STOCK, "pool")
WARM_UP = 2
STATIC_PERCENT, SLOWER_PERCENT = 1.0, 1.0
ALLOWED_PERCENT = {"moe": 3.0, "llama1b-lengths": None}  # else STATIC_PERCENT; None: compared with expandable segments
SOON = 6  # iteration in which a plan is followed at the latest
GMLAKE_US = 80.0  # a stitched chunk of 2 MiB, as its users report
BATCH_MODEL, BATCH, BATCH_ITERS, BATCH_RATIOS = "llama1b", 4, 4, (1.0035, 1.01, 1.015, 1.02, 1.04, 1.08, 1.16)


def parse():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--parts", default=",".join(PARTS))
    p.add_argument("--models", default=",".join(MODELS))
    p.add_argument("--allocators", default=",".join(ALLOCATORS))
    p.add_argument("--iters", type=int, help=f"of each model; default: {', '.join(f'{m} {n}' for m, n in ITERATIONS.items())}")
    p.add_argument("--timeout", type=float, default=200, help="seconds a run may take")
    p.add_argument("--deadline", type=float, default=540, help="no run is started that could not end within so many seconds of the start")
    p.add_argument("--name", default="pool", help="results go to bench/results/NAME.json")
    p.add_argument("--latency-child", metavar="LIBRARY", help=argparse.SUPPRESS)
    a = p.parse_args()
    a.parts = c.chosen(p, a.parts, PARTS, "part")
    a.models = c.chosen(p, a.models, MODELS, "model")
    a.allocators = c.chosen(p, a.allocators, ALLOCATORS, "allocator")
    if a.iters is not None and a.iters <= WARM_UP + 1:
        p.error(f"more than {WARM_UP + 1} iterations: the first {WARM_UP} are not counted")
    return a


class Session:
    """The results so far, and the time that is left."""

    def __init__(self, card, options):
        self.card, self.options, self.began = card, options, time.monotonic()
        self.document = {**c.header(card), "warm_up": WARM_UP, "runs": [], "skipped": []}
        self.wrong, self.undecided = [], []  # what is not as promised, and what could not be compared

    def left(self):
        return self.options.deadline - (time.monotonic() - self.began)

    def run(self, what, command, allocator, needed_s=25):
        """Runs a Python program under an allocator; its last JSON line, or None."""
        if self.left() < needed_s:
            self.document["skipped"].append(f"{what} {allocator}")
            print(f"{what} {allocator}: skipped, no time left", flush=True)
            return None
        self.card.require_free()
        extra = {"PENSTOCK_BENCH_STATS": "1"}
        with tempfile.TemporaryDirectory(prefix="penstock-bench-") as d:
            argv, report = [sys.executable, *command], Path(d) / "report.json"
            if allocator == "pool":
                argv = [c.PENSTOCK, "run", "--engine", "none", "--report", report, "--", *argv]
            elif STOCK[allocator]:
                extra["PYTORCH_CUDA_ALLOC_CONF"] = extra["PYTORCH_ALLOC_CONF"] = STOCK[allocator]
            r = c.run(argv, c.environment(extra), min(self.options.timeout, self.left()))
            lines = c.json_lines(r["stdout"])
            loaded = c._load(report) if allocator == "pool" else None
        record = {"what": what, "allocator": allocator, "rc": r["rc"], "wall_s": r["wall_s"], "timed_out": r["timed_out"],
                  "results": lines, "report": loaded, "stderr_tail": c.tail(r["stderr"], 20, 3000)}  # fmt: skip
        error = None
        if r["timed_out"]:
            error = f"timed out after {r['wall_s']} s"
        elif r["rc"] != 0 or not lines:
            error = f"exit status {r['rc']}: {c.tail(r['stderr'], 3, 300)}"
        elif allocator == "pool" and (not loaded or loaded.get("engine") != "plain"):
            error = "the report does not say that the pool served the job"
        record["error"] = error
        self.document["runs"].append(record)
        self.save()
        print(f"{what} {allocator}: {error or 'done'} ({r['wall_s']} s)", flush=True)
        if error:
            self.wrong.append(f"{what} {allocator} failed")
            print(record["stderr_tail"], flush=True)
            return record if lines else None
        if "torch" not in self.document and lines[-1].get("torch"):
            self.document["torch"] = lines[-1]["torch"]
        return record

    def save(self):
        c.save(self.options.name, self.document)

    def table(self, title, head, rows):
        text = f"\n{title}\n{c.table(head, rows)}"
        self.document.setdefault("tables", []).append(text)
        print(text, flush=True)
        self.save()


# ---- stitch ----


def stitch(s):
    r = c.run([c.PENSTOCK, "bench", "stitch", "--json"], c.environment(), 60)
    if r["rc"] != 0:
        s.wrong.append("bench stitch failed")
        print(f"bench stitch: {c.tail(r['stderr'], 3)}", flush=True)
        return
    rows = s.document["stitch"] = json.loads(r["stdout"])
    us = lambda ns: f"{ns / 1e3:.1f}"  # noqa: E731
    s.table(
        f"Stitching existing memory, us (GMLake: {GMLAKE_US:.0f} us for each chunk of 2 MiB)",
        ["handle", "handles", "map", "set access", "set access, each call", "stitch a handle", "stitch per 2 MiB", "create", "unmap", "release"],
        [[f"{m['handle_bytes'] >> 20} MiB", m["handles"], us(m["map_ns"]), us(m["set_access_ns"]), us(m["set_access_each_ns"]), us(m["stitch_per_handle_ns"]),
          us(m["stitch_per_2mib_ns"]), us(m["create_ns"]), us(m["unmap_ns"]), us(m["release_ns"])] for m in rows],
    )  # fmt: skip
    if any(m["stitch_per_2mib_ns"] > GMLAKE_US * 1e3 for m in rows):
        s.wrong.append("stitching is slower than GMLake's")


# ---- latency ----

SIZES = {
    "up to 1 MiB": [512 * k for k in (1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610, 987, 1597, 2048)],
    "2 to 32 MiB": [(1 << 20) * k + 512 * j for k, j in ((2, 0), (3, 5), (4, 0), (5, 9), (6, 3), (8, 0), (10, 7), (12, 0), (16, 11), (20, 1), (24, 13), (32, 0))],
}
ROUNDS, KEPT = {1: 40_000, 8: 6_000}, 24


def cuda_headers():
    for pattern in (os.environ.get("CUDA_HOME", "/usr/local/cuda") + "/include", "/usr/local/cuda*/include", "/usr/local/cuda*/targets/*/include",
                    *(p + "/nvidia/*/include" for p in sys.path)):  # fmt: skip
        for folder in sorted(glob.glob(pattern)):
            if Path(folder, "cuda_runtime_api.h").exists() and Path(folder, "crt", "host_config.h").exists():
                return folder
    return None


def compile_latency(folder):
    """The library, or an error text."""
    headers = cuda_headers()
    if not headers or not shutil.which("g++"):
        return None, "no CUDA headers" if not headers else "no g++"
    found = subprocess.run([sys.executable, "-c", "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"],
                           capture_output=True, text=True, env=c.environment())  # fmt: skip
    if found.returncode:
        return None, "no torch"
    torch, out = Path(found.stdout.strip()), Path(folder) / "alloc_latency.so"
    for standard in ("c++20", "c++17"):
        r = subprocess.run(["g++", f"-std={standard}", "-O2", "-shared", "-fPIC", "-I", str(torch / "include"), "-I", headers, str(c.BENCH / "alloc_latency.cpp"),
                            "-o", str(out), "-L", str(torch / "lib"), "-lc10_cuda", "-lc10"], capture_output=True, text=True, timeout=120)  # fmt: skip
        if r.returncode == 0:
            return out, None
    return None, c.tail(r.stderr, 5)


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def latency_child(library):
    """Runs in the process whose allocator is timed."""
    import torch

    lib = ctypes.CDLL(library)
    torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    result = {"torch": torch.__version__}
    for name, sizes in SIZES.items():
        for threads, rounds in ROUNDS.items():
            n = threads * rounds
            times = [(ctypes.c_uint32 * n)() for _ in range(2)]
            failed = lib.measure(threads, ctypes.c_long(rounds), ctypes.c_long(rounds // 4), KEPT, (ctypes.c_int64 * len(sizes))(*sizes), len(sizes), *times)
            if failed:
                raise SystemExit("an allocation failed")
            result[f"{name}, {threads}"] = {k: {"median_ns": percentile(t, 0.5), "p99_ns": percentile(t, 0.99)} for k, t in zip(("alloc", "free"), times)}
    clock = (ctypes.c_uint32 * 20_000)()
    lib.measure_clock(ctypes.c_long(len(clock)), clock)
    result["clock_ns"] = percentile(clock, 0.5)
    print(json.dumps(result), flush=True)


def latency(s):
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as d:
        library, why = compile_latency(d)
        if not library:
            s.wrong.append(f"latency: not measured: {why}")
            print(s.wrong[-1], flush=True)
            return
        got = {}
        for allocator in [a for a in ("default", "pool") if a in s.options.allocators]:
            r = s.run("latency", [Path(__file__).resolve(), "--latency-child", library], allocator)
            if r:
                got[allocator] = r["results"][-1]
    s.document["latency"] = got
    if set(got) != {"default", "pool"}:
        s.undecided.append("latency: not both ran")
    rows = []
    for name in SIZES:
        for threads in ROUNDS:
            for what in ("alloc", "free"):
                cells = [f"{g[f'{name}, {threads}'][what]['median_ns']} / {g[f'{name}, {threads}'][what]['p99_ns']}" for g in got.values()]
                rows.append([name, threads, what, *cells])
                medians = {a: g[f"{name}, {threads}"][what]["median_ns"] for a, g in got.items()}
                if "pool" in medians and "default" in medians and medians["pool"] > medians["default"]:
                    s.wrong.append(f"latency of {what}, {name}, {threads} threads: {medians['pool']} ns, PyTorch's own {medians['default']}")
    clocks = ", ".join(f"{a} {g['clock_ns']}" for a, g in got.items())
    s.table(f"Allocation and free, ns, median / p99, with the clock in it ({clocks})", ["sizes", "threads", "call", *got], rows)


# ---- memory ----


def figures(results):
    """By allocator: peak reserved over requested, seconds, losses. Requests are the job's: the same for all, so one allocator's count serves those that keep none."""
    requested = next((r["peak_requested_bytes"] for a in ("default", "expandable", "pool") if (r := results.get(a)) and r.get("peak_requested_bytes")), None)
    out = {}
    for a, x in results.items():
        asked = x.get("peak_requested_bytes") or (x["peak_allocated_bytes"] if a == "pool" else requested)
        out[a] = {
            "reserved_bytes": x["peak_reserved_bytes"], "requested_bytes": asked, "over_percent": 100 * (x["peak_reserved_bytes"] / asked - 1) if asked else None,
            "seconds": c.median(x["iter_s"][WARM_UP + 1 :]), "first_s": x["iter_s"][0], "losses": [repr(v) for v in x["loss"]],
        }  # fmt: skip
        if a == "pool" and x.get("stats"):
            out[a]["plan"] = plan_of(x["stats_before"] or {}, x["stats"])
    return out


def plan_of(before, stats):
    """What the pool's own counters say of one model: differences, for the process trains several."""
    followed = [i + 1 for i, x in enumerate(stats) if x["plan_state"] == "followed"]
    counts = {k: stats[-1].get(k, 0) - before.get(k, 0) for k in ("planned_allocations", "unplanned_allocations", "stitches", "stitched_handles", "retries")}
    return {"followed_from": followed[0] if followed else None, "followed_at_end": stats[-1]["plan_state"] == "followed", "why_not": stats[-1].get("plan_why"), **counts}


def plan_text(p):
    if not p:
        return "n/a"
    use = f"from iteration {p['followed_from']}" if p["followed_from"] else f"none: {p['why_not']}"
    if p["followed_from"] and not p["followed_at_end"]:
        use += f", given up: {p['why_not']}"
    return f"{use}; {p['planned_allocations']} planned, {p['unplanned_allocations']} beside, {p['stitches']} stitches"


def compare(s, model, got):
    """One row of the table, and what is not as promised."""
    stock = {a: f for a, f in got.items() if a != "pool"}
    equal = "n/a"
    if "default" in got and len(got) > 1:
        different = [a for a, f in got.items() if f["losses"] != got["default"]["losses"]]
        equal = "NO: " + ", ".join(different) if different else "yes"
        if "pool" in different:
            s.wrong.append(f"{model}: the pool's losses are not stock's")
    else:
        s.undecided.append(f"{model}: losses")
    cells = ["not run" if a not in got else f"{c.fmt(got[a]['over_percent'], '+.2f', ' %')}  {got[a]['reserved_bytes'] / c.GIB:.2f} GiB  {got[a]['seconds']:.4f} s" for a in s.options.allocators]
    slower, pool, allowed = None, got.get("pool"), ALLOWED_PERCENT.get(model, STATIC_PERCENT)
    if not pool or not stock:
        s.undecided.append(f"{model}: the pool beside stock")
        return [model, *cells, c.fmt(slower, "+.2f", " %"), equal, plan_text(pool and pool.get("plan"))]
    slower = 100 * (pool["seconds"] / min(f["seconds"] for f in stock.values()) - 1)
    if allowed is not None:
        if slower > SLOWER_PERCENT:
            s.wrong.append(f"{model}: {slower:.2f} % slower than the best of stock")
        if not (pool["over_percent"] or 0) <= allowed:
            s.wrong.append(f"{model}: {pool['over_percent']:.2f} % reserved over what was asked for, {allowed} % allowed")
        if not (pool.get("plan") or {}).get("followed_at_end") or pool["plan"]["followed_from"] > SOON:
            s.wrong.append(f"{model}: no plan in use by iteration {SOON} and to the end")
    elif "expandable" not in got:
        s.undecided.append(f"{model}: beside expandable segments")
    elif pool["reserved_bytes"] > got["expandable"]["reserved_bytes"]:
        s.wrong.append(f"{model}: the pool reserves {pool['reserved_bytes']} bytes, expandable_segments {got['expandable']['reserved_bytes']}")
    return [model, *cells, c.fmt(slower, "+.2f", " %"), equal, plan_text(pool.get("plan"))]


def memory(s):
    models = s.options.models
    iters = [s.options.iters or ITERATIONS[m] for m in models]
    command = [c.WORKLOADS, ",".join(models), ",".join(map(str, iters)), "--deterministic", "--no-fill", "--on-device", "--warm-up", WARM_UP]
    by_model = {m: {} for m in models}
    for a in s.options.allocators:
        record = s.run("training", [str(x) for x in command], a, 20 + 10 * len(models))
        for x in record["results"] if record else []:
            by_model[x["model"]][a] = x
    s.document["memory"] = {m: figures(results) for m, results in by_model.items()}
    rows = [compare(s, m, got) for m, got in s.document["memory"].items()]
    head = ["model", *s.options.allocators, "pool over the best s", "losses equal", "the pool's plan"]
    s.table(f"Peak reserved over peak requested after {WARM_UP} iterations, peak reserved, median seconds per iteration", head, rows)


# ---- batch ----


def batch(s):
    got = {}
    caps = ",".join(map(str, (BATCH, *BATCH_RATIOS)))
    for a in [a for a in ("default", "expandable", "pool") if a in s.options.allocators]:
        r = s.run("caps", [str(c.WORKLOADS), BATCH_MODEL, str(BATCH_ITERS), "--on-device", "--caps", caps], a, 60)
        if r:
            got[a] = r["results"][-1]
    s.document["batch"] = got
    rows = []
    for a, x in got.items():
        enough = next((t["ratio"] for t in x["caps"] if t["message"] is None), None)
        rows.append([a, f"{x['requested_bytes'] / c.GIB:.3f} GiB", enough or f"more than {BATCH_RATIOS[-1]}", f"{x['cap_bytes'] / c.GIB:.3f} GiB", x["largest_batch"], (x["message"] or "")[:110]])
    s.table(
        f"Device memory for {BATCH_MODEL} with a batch of {BATCH}, and the largest batch up to that under {BATCH_RATIOS[1]} times what is asked for",
        ["allocator", "asked for", "least cap that is enough, times that", "cap", "largest batch under it", "what the allocator says of the next"], rows,
    )  # fmt: skip
    if set(got) != {"default", "expandable", "pool"}:
        s.undecided.append("a batch that only the pool trains: not all ran")
    elif got["pool"]["largest_batch"] < BATCH:
        s.wrong.append(f"the pool does not train a batch of {BATCH} in {BATCH_RATIOS[1]} times what it asks for")
    else:
        s.wrong += [f"{a} trains as large a batch as the pool" for a in ("default", "expandable") if got[a]["largest_batch"] >= BATCH]


def body():
    a = parse()
    if a.latency_child:
        return latency_child(a.latency_child)
    c.require_build()
    card = c.Card()
    card.require_free()
    s = Session(card, a)
    for name, part in (("stitch", stitch), ("latency", latency), ("memory", memory), ("batch", batch)):
        if name in a.parts:
            part(s)
    s.document.update(wrong=s.wrong, undecided=s.undecided)
    s.save()
    print(f"\n{s.document['gpu']}, driver {s.document['driver']}, {time.monotonic() - s.began:.0f} s")
    skipped = [f"{x} skipped" for x in s.document["skipped"]]
    if s.wrong or s.undecided or skipped:
        print("NOT in order: " + "; ".join([*s.wrong, *(f"undecided: {x}" for x in s.undecided), *skipped]))
        return 1
    print("All as promised.")
    return 0


if __name__ == "__main__":
    c.main(body)
