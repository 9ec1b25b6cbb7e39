"""What the launch hook costs: CPU time of launching an empty kernel, median and p99, over stock.

    python3 bench/launch_overhead.py [--launches 200000] [--rounds 3] [--cudart static,shared] [--only recorded]

Compiles launch_overhead.cu with nvcc, once with the static and once with the
shared CUDA runtime, and runs each variant in interleaved rounds. Exit status 1
when a run failed or a median or p99 is more than 0.5 us over stock.
"""

import argparse
import glob
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import _common as c

ALLOWED_NS = 500
BUDGET = "4GiB"
MODES = {"OFF": 0, "OBSERVE": 1, "GATED": 2}

# name, program mode, preload the hook, budget, mode the hook must be in (None: no engine), recorded to a trace
VARIANTS = (
    ("stock", "stock", False, None, None, False),
    ("hook preloaded, no engine", "stock", True, None, None, False),
    ("engine, no budget", "engine", True, None, MODES["OFF"], False),
    ("engine, no budget, recorded", "engine", True, None, MODES["OBSERVE"], True),
    ("engine, OBSERVE", "observe", True, BUDGET, MODES["OBSERVE"], False),
    ("engine, GATED", "gated", True, BUDGET, MODES["GATED"], False),
    ("engine, GATED, recorded", "gated", True, BUDGET, MODES["GATED"], True),
)


def parse():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--launches", type=int, default=200_000)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--cudart", default="static,shared")
    p.add_argument("--only", default="", help="variants whose name has this, beside stock, and what they are compared with")
    p.add_argument("--timeout", type=float, default=60)
    p.add_argument("--name", default="launch-overhead", help="results go to bench/results/NAME.json")
    return p.parse_args()


def variants(only):
    """Those asked for; with a recorded one also the same without recording."""
    if not only:
        return VARIANTS
    wanted = {v[0] for v in VARIANTS if only in v[0]}
    wanted |= {v.removesuffix(", recorded") for v in wanted}
    return [v for v in VARIANTS if v[0] == "stock" or v[0] in wanted]


def find_nvcc():
    for path in (shutil.which("nvcc"), os.environ.get("CUDA_HOME", "/usr/local/cuda") + "/bin/nvcc", *sorted(glob.glob("/usr/local/cuda-*/bin/nvcc"))):
        if path and os.access(path, os.X_OK):
            return path
    raise c.Refused("nvcc was not found on PATH, in CUDA_HOME or in /usr/local/cuda")


def shared_runtime(nvcc, build):
    """A folder with libcudart.so and one to load it from; a link is made where only libcudart.so.N exists."""
    toolkit = Path(os.path.realpath(nvcc)).parent.parent
    named = Path(nvcc).parent.parent
    folders = [t / d for t in (named, toolkit) for d in ("lib64", "targets/x86_64-linux/lib", "lib")]
    for folder in folders:
        if (folder / "libcudart.so").exists():
            return folder
    for folder in folders:
        for versioned in sorted(folder.glob("libcudart.so.*")):
            (build / "libcudart.so").symlink_to(versioned)
            (build / versioned.name).symlink_to(versioned)
            return build
    return None


def compile_program(nvcc, build, kind):
    """The program, or an error text."""
    program = build / f"launch_overhead_{kind}"
    cmd = [nvcc, "-O2", "-std=c++17", "-gencode=arch=compute_75,code=compute_75", "-gencode=arch=compute_90,code=sm_90", "-o", program, c.BENCH / "launch_overhead.cu", "-cudart", kind, "-ldl"]
    if kind == "shared":
        folder = shared_runtime(nvcc, build)
        if folder is None:
            return None, "no libcudart.so beside nvcc"
        cmd += ["-L", folder, "-Xlinker", f"-rpath={folder}"]
    r = subprocess.run([str(x) for x in cmd], capture_output=True, text=True, timeout=180)
    if r.returncode:
        return None, c.tail(r.stdout + r.stderr)
    return program, None


def check(result, variant, launches):
    """What makes a figure worthless, or None."""
    _, _, preload, _, expected, _ = variant
    if result["hook_present"] != preload:
        return f"hook present: {result['hook_present']}, expected {preload}"
    if expected is None:
        return None
    if result["hook_mode"] != expected:
        return f"hook mode {result['hook_mode']}, expected {expected}"
    if expected != MODES["OFF"] and result["hook_launches"] < launches:
        return f"the hook saw {result['hook_launches']} of {launches} launches"
    if result["hook_gated"] > launches // 100:
        return f"{result['hook_gated']} launches were gated although everything is resident"
    return None


def body():
    a = parse()
    c.require_build()
    card = c.Card()
    card.require_free()
    nvcc = find_nvcc()
    document = {**c.header(card), "nvcc": nvcc, "launches": a.launches, "runs": [], "summaries": [], "errors": []}
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as d:
        for kind in a.cudart.split(","):
            program, error = compile_program(nvcc, Path(d), kind)
            if error:
                document["errors"].append(f"{kind}: not built: {error}")
                continue
            for round_ in range(a.rounds):
                for variant in variants(a.only):
                    name, mode, preload, budget, _, recorded = variant
                    card.require_free()
                    extra = {"PENSTOCK_POLICY": "penstock"} if mode != "stock" else {}
                    if preload:
                        extra["LD_PRELOAD"] = str(c.HOOK)
                    if recorded:
                        extra["PENSTOCK_TRACE"] = str(Path(d) / "recorded.pstrace")
                    if budget:
                        extra["PENSTOCK_BUDGET"] = str(4 * c.GIB)
                    argv = [program, mode, "--launches", a.launches, "--engine", c.ENGINE]
                    r = c.run(argv, c.environment(extra), a.timeout)
                    results = c.json_lines(r["stdout"])
                    error = None if results else f"rc {r['rc']}, timed out: {r['timed_out']}: {c.tail(r['stderr'], 4)}"
                    error = error or check(results[-1], variant, a.launches)
                    if error:
                        document["errors"].append(f"{kind}, {name}, round {round_ + 1}: {error}")
                    document["runs"].append(
                        {"cudart": kind, "variant": name, "round": round_, "error": error, "stderr_tail": c.tail(r["stderr"]), **(results[-1] if results else {})}
                    )
    rows = []
    for kind in a.cudart.split(","):
        stock = None
        for name, *_ in VARIANTS:
            good = [r for r in document["runs"] if r["cudart"] == kind and r["variant"] == name and not r["error"]]
            if not good:
                continue
            s = {"cudart": kind, "variant": name, "rounds": len(good), **{k: c.median([r[k] for r in good]) for k in ("median_ns", "p99_ns", "p999_ns", "mean_ns", "timer_ns")}}
            s["gated"] = sum(r["hook_gated"] for r in good)
            stock = s if name == "stock" else stock
            if stock:
                s["over_stock_ns"] = {k: s[k] - stock[k] for k in ("median_ns", "p99_ns")}
            document["summaries"].append(s)
            over = s.get("over_stock_ns")
            us = [f"{s[k] / 1e3:.3f}" for k in ("median_ns", "p99_ns", "p999_ns", "mean_ns")]
            rows.append([kind, name, *us, *([f"{over[k] / 1e3:+.3f}" for k in ("median_ns", "p99_ns")] if over else ["n/a"] * 2), s["gated"], len(good)])
    c.save(a.name, document)
    print(f"Empty kernel, 4 pointers, {a.launches} launches a run, median of {a.rounds} rounds, us of CPU per launch, timer included; {c.CAP_NOTE}; {document['gpu']}")
    print(c.table(["cudart", "variant", "median", "p99", "p99.9", "mean", "median over stock", "p99 over stock", "gated", "rounds"], rows))
    for e in document["errors"]:
        print("FAIL: " + e)
    over = [
        f"{s['cudart']}, {s['variant']}: {k.removesuffix('_ns')} {v / 1e3:+.3f} us"
        for s in document["summaries"]
        for k, v in s.get("over_stock_ns", {}).items()
        if v > ALLOWED_NS
    ]
    for o in over:
        print(f"NOT in order: {o} over stock (allowed: {ALLOWED_NS / 1e3} us)")
    return 1 if document["errors"] or over or not rows else 0


if __name__ == "__main__":
    c.main(body)
