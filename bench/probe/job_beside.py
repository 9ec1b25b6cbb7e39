"""What a training job feels of what goes on beside it: parts of what swapping does, one after the other.

    python3 bench/probe/job_beside.py [--model gpt2m] [--iterations 12] [--rounds 2] [--plain] [kind ...]

The job has all its memory, and what goes on beside is of no use to it (bench/probe/beside.h has the
kinds): copies each way, mapping, pauses, pages that are given back, arithmetic. Prints a JSON line for
each: seconds per iteration, of these how long it took to launch, and CPU seconds of the job's own threads.
1 GiB of plain device and of pinned memory beside the job's; nvcc is needed.
"""

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))


def library():
    with tempfile.TemporaryDirectory() as folder:
        so = folder + "/job_beside.so"
        subprocess.run(["nvcc", "-O1", "-std=c++17", "-shared", "-Xcompiler", "-fPIC", "-o", so, HERE / "job_beside.cu", "-lcuda"], check=True)
        lib = ctypes.CDLL(so)
    lib.beside_name.restype = ctypes.c_char_p
    return lib


def kinds(lib):
    names, i = {}, 0
    while name := lib.beside_name(i):
        names[name.decode()] = i
        i += 1
    return names


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("kinds", nargs="*")
    p.add_argument("--model", default="gpt2m")
    p.add_argument("--iterations", type=int, default=12)
    p.add_argument("--rounds", type=int, default=2)
    p.add_argument("--plain", action="store_true", help="nothing is deterministic")
    a = p.parse_args()
    lib = library()
    known = kinds(lib)
    if unknown := set(a.kinds) - set(known):
        p.error(f"{unknown.pop()!r} is unknown: choose from {', '.join(known)}")
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    import torch
    import workloads

    if not a.plain:
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False
    workloads.Settings.on_device = True
    _, step = workloads.MODELS[a.model]()
    for _ in range(5):
        step()
    torch.cuda.synchronize()
    for turn in range(a.rounds):
        for kind in a.kinds or known:
            lib.beside_start(known[kind])
            time.sleep(0.05)
            before, counted = workloads.work_of_threads(), workloads.disturbances()
            seconds, dispatched = [], []
            for _ in range(a.iterations):
                began = time.perf_counter()
                step()
                dispatched.append(time.perf_counter() - began)
                torch.cuda.current_stream().synchronize()
                seconds.append(time.perf_counter() - began)
            after = workloads.work_of_threads()
            disturbed = workloads.each_iteration(counted, workloads.disturbances(), a.iterations)
            in_rate, out_rate = ctypes.c_double(), ctypes.c_double()
            lib.beside_end(ctypes.byref(in_rate), ctypes.byref(out_rate))
            job = {n: w for n, w in workloads.busiest(before, after, a.iterations).items() if n.split()[0] == str(os.getpid()) or "autograd" in n}
            row = {
                "model": a.model, "round": turn, "beside": kind, "seconds_per_iteration": round(statistics.median(seconds), 4),
                "dispatch_seconds": round(statistics.median(dispatched), 4), "in_gb_per_s": round(in_rate.value, 1), "out_gb_per_s": round(out_rate.value, 1),
                "threads": job, "disturbances": disturbed,
            }  # fmt: skip
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
