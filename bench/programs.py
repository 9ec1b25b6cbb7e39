"""Whether ordinary programs compute the same inside half their peak as in memory, under both engines.

    python3 bench/programs.py [--jobs 6] [--only REGEX] [--minutes M] [--shard I/N] [--resume] [--ways explicit,managed]

The programs (program_jobs.py): trainers of Hugging Face, PEFT, Lightning, Accelerate, DistributedDataParallel and FSDP2, torch.compile in its modes,
CUDA graphs, generation, torch.func, mathematics, optimizers, checkpoints, loaders, other libraries. Each runs with stock PyTorch and under each engine in half of
the peak that stock had; figures and tensors must be the same bytes, as in zoo.py. Under the managed engine the budget is a software cap; two at a time run
with a limit of 4 GiB of managed memory each. Exit status 1 when anything is wrong, dies or does not end.
"""

import importlib.util
import tempfile
import threading

import _common as c
import _gate as g
from zoo import judged

IMPORTS = ("torch", "torch._dynamo", "torch.utils.checkpoint", "torch.distributed", "numpy", "scipy", "transformers", "transformers.modeling_utils", "transformers.models.llama.modeling_llama", "transformers.generation", "torchvision", "program_jobs")
SHARE = 0.5
LEAST_MIB = 96  # a budget below this has no room for the workspaces of cuBLAS
MIB = 1 << 20
MANAGED_LIMIT, MANAGED_AT_ONCE = "4GiB", 2  # together MANAGED_LIMIT of _common.py
SLOW = 3  # times --timeout, for those that compile


def row(gate, a, programs, managed, name):
    p = programs[name]
    arguments = {"name": name, "device": a.device}
    timeout_s = a.timeout * (SLOW if p.slow else 1)
    if p.needs and not importlib.util.find_spec(p.needs):
        return {"name": name, "ways": {"stock": {"state": "stock", "detail": f"{p.needs} is not installed", "wall_s": 0}}}

    with tempfile.TemporaryDirectory(prefix="penstock-gate-", ignore_cleanup_errors=True) as folder:

        def run(zygote, way, **env):
            # Each way compiles for itself, and leaves nothing in the user's cache.
            caches = {k: f"{folder}/{way}/{k}" for k in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")} | {"TORCHINDUCTOR_COMPILE_THREADS": g.THREADS}
            return zygote.run("program_jobs:run", arguments, timeout_s, {**caches, **env})

        stock = run(gate.stock, "stock")
        bad = g.failure(stock, None)
        if bad:
            return {"name": name, "ways": {"stock": g.record(stock, "stock", f"{bad[0]}: {bad[1]}")}}
        line = stock.line("result")
        result, again, ways = line["result"], None, {}

        def second():
            nonlocal again
            again = again or run(gate.stock, "again")
            return (again.line("result") or {}).get("result")

        if a.device == "cpu":
            ours = run(gate.stock, "again")
            return {"name": name, "ways": {"again": g.record(ours, *verdict(p, ours, result, lambda: None))}}
        budget = max(int(line["peak_bytes"] * SHARE) // MIB, LEAST_MIB)
        env = {"PENSTOCK_BUDGET": f"{budget}MiB", "PENSTOCK_HOST_BUDGET": g.HOST_BUDGET, **p.settings}
        for way in a.ways:
            if gate.late():
                return None
            if way == "managed":
                with managed:
                    ours = run(gate.penstock, way, PENSTOCK_ENGINE=way, **{**env, "PENSTOCK_MANAGED_LIMIT": MANAGED_LIMIT})
            else:
                ours = run(gate.penstock, way, PENSTOCK_ENGINE=way, **env)
            ways[way] = g.record(ours, *verdict(p, ours, result, second, way), budget_mib=budget)
    return {"name": name, "peak_bytes": line["peak_bytes"], "stock_wall_s": stock.wall_s, "ways": ways}


def verdict(p, ours, stock, second, engine=None):
    """(state, detail), as of judged, with what the program itself allows."""
    state, detail = judged(ours, stock, second, engine)
    if p.refused and state in ("FAILED", "cannot") and p.refused.search(ours.line("error")["message"] if ours.line("error") else ""):
        return "refused", detail
    if state == "WRONG" and p.near is not None and g.distance(ours.line("result")["result"]["losses"], stock["losses"]) <= p.near:
        return "near", detail
    return state, detail


def body():
    p = g.parser(__doc__, "programs", 6, 60)
    p.add_argument("--ways", default=",".join(reversed(c.ENGINES)))
    a = p.parse_args()
    a.ways = c.chosen(p, a.ways, c.ENGINES, "way")
    from program_jobs import PROGRAMS

    names = g.select([n for n in PROGRAMS if a.device == "cuda" or not PROGRAMS[n].card], a)
    names.sort(key=lambda n: not PROGRAMS[n].slow)  # those first that take long
    gate = g.Gate(a, IMPORTS, f"{c.EXPLICIT_NOTE}; {c.CAP_NOTE} managed")
    managed = threading.Semaphore(MANAGED_AT_ONCE)
    return gate.run(names, lambda name: row(gate, a, PROGRAMS, managed, name))


if __name__ == "__main__":
    c.main(body)
