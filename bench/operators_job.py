"""Runs operators of operator_catalogue.py under memory pressure: the job of operators.py.

    python3 operators_job.py [--device cuda] [--pressure MIB] [--first N] [--only NAME] ...

Memory that it fills, changes and checks again is used by turns with the operators': between making
inputs and using them, between forward and backward, and before results are read, all of it is touched
once, so that whatever a budget leaves no room for has to leave. One JSON line for each operator:
{"operator", "index", "digests", "sizes", "scatters", "brought_in_bytes", "error"}; digests are CRCs of outputs as bytes on
the host, sizes the sums of their absolute values, scatters says that PyTorch itself says that the operator is not deterministic,
brought_in_bytes is what came to the device under Penstock while the operator ran (forward). A last line has the
digests of the pressure's own memory.
Exit status 3 when the GPU cannot be used any more after an error; what is left can be run by --first.
"""

import argparse
import json
import os
import sys
import warnings
import zlib

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
from operator_catalogue import OPERATORS, Maker
from torch import nn

BALLAST_BYTES = 64 << 20


class Pressure:
    """Memory that is touched again and again."""

    def __init__(self, device, mib):
        words = BALLAST_BYTES // 4
        self.blocks = [torch.arange(words, dtype=torch.int32, device=device) * (i + 1) for i in range((mib << 20) // BALLAST_BYTES)]

    def __call__(self):
        for b in self.blocks:
            b.add_(1)

    def digests(self):
        return [digest(b) for b in self.blocks]


def tensors(x):
    """All tensors in a result, in order."""
    if isinstance(x, torch.Tensor):
        return [x]
    if isinstance(x, nn.Module):
        return [p for p in x.parameters()]
    if isinstance(x, (tuple, list)):
        return [t for y in x for t in tensors(y)]
    return []


def dense(t):
    """The dense tensors that are a tensor's contents."""
    t = t.detach()
    if t.layout == torch.sparse_coo:
        t = t.coalesce()
        return [t.indices(), t.values()]
    if t.layout in (torch.sparse_csr, torch.sparse_csc):
        return [t.values()]
    return [t]


def crc(t):
    t = t.resolve_conj().resolve_neg().contiguous().reshape(-1)
    if t.is_complex():
        t = torch.view_as_real(t)
    return zlib.crc32(t.cpu().reshape(-1).view(torch.uint8).numpy())


def digest(t):
    return [crc(x) for x in dense(t)]


def size(t):
    """The sum of its absolute values, of those that are numbers."""
    return sum(float((x if x.dtype == torch.bool else x.abs()).to(torch.float64).nan_to_num(0, 0, 0).sum()) for x in dense(t))


def differentiable(inputs):
    """Leaves among the inputs, which get gradients from now on."""
    leaves = [t for t in tensors(inputs) if t.is_floating_point() or t.is_complex()]
    for t in leaves:
        t.requires_grad_()
    return leaves


def came_in():
    """Bytes that Penstock has brought to the device, or None under stock."""
    penstock = sys.modules.get("penstock")
    if not penstock:
        return None
    torch.cuda.synchronize()
    return penstock.stats().get("h2d_bytes")


def run(name, device, press):
    make, compute, grad = OPERATORS[name]
    inputs = tuple(make(Maker(device, zlib.crc32(name.encode()))))
    leaves = differentiable(inputs) if grad else []
    press()
    torch.manual_seed(1)
    before = came_in()
    with torch.set_grad_enabled(grad):
        outputs = tensors(compute(*inputs))
    brought_in = None if before is None else came_in() - before
    press()
    if grad:
        wanted = [t for t in outputs if t.requires_grad]
        torch.autograd.backward(wanted, [torch.cos(t.detach()) if not t.is_complex() else t.detach() for t in wanted])
        outputs += [t.grad for t in leaves if t.grad is not None]
        press()
    return {"digests": [digest(t) for t in outputs], "sizes": [size(t) for t in outputs], "brought_in_bytes": brought_in}


def main():
    p = argparse.ArgumentParser(description="Run operators under memory pressure.")
    p.add_argument("--device", default="cuda")
    p.add_argument("--pressure", type=int, default=1536, metavar="MIB")
    p.add_argument("--first", type=int, default=0)
    p.add_argument("--only", default="", help="those whose name has this in it")
    a = p.parse_args()
    torch.set_warn_always(True)  # PyTorch's own are given once else
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.backends.cudnn.benchmark = False
    press = Pressure(a.device, a.pressure)
    for index, name in enumerate(OPERATORS):
        if index < a.first or a.only not in name:
            continue
        line = {"operator": name, "index": index, "digests": None, "error": None}
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                line.update(run(name, a.device, press))
            except Exception as e:  # whatever an operator raises is its result
                line["error"] = f"{type(e).__name__}: {str(e).strip().splitlines()[0][:300] if str(e).strip() else ''}"
        line["scatters"] = any("does not have a deterministic" in str(w.message) for w in said)
        print(json.dumps(line), flush=True)
        if line["error"] and a.device == "cuda":
            try:
                torch.cuda.synchronize()
            except Exception:
                sys.exit(3)
    print(json.dumps({"pressure": press.digests()}), flush=True)


if __name__ == "__main__":
    main()
