"""A fine-tune that saves and resumes, in one of the ways that people do: how long that takes, and what of the host's memory.

    python3 saving_job.py JOB STEPS --way WAY [--folder F] [--batch 4] [--length 2048] [--device cuda] [--progress FILE] [--deterministic]

Trains some steps, saves model and optimizer, does a step more, goes back to what was saved, and does that step again, which must be the same. Jobs, weights
and tokens are those of finetune_job.py, with checkpointing. Prints a JSON line.
"""

import argparse
import gc
import json
import os
import sys
import tempfile
import threading
import time
from pathlib import Path

import finetune_job
from workloads import checksums


class TorchSave:
    """torch.save and torch.load of both state dicts."""

    def save(self, model, optimizer, folder):
        import torch

        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, folder / "saved.pt")

    def load(self, model, optimizer, folder):
        import torch

        state = torch.load(folder / "saved.pt", map_location="cpu", mmap=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])


class Distributed:
    """torch.distributed.checkpoint of both state dicts."""

    def state(self, model, optimizer):
        from torch.distributed.checkpoint.state_dict import get_state_dict

        return dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))

    def save(self, model, optimizer, folder):
        import torch.distributed.checkpoint as dcp

        dcp.save(self.state(model, optimizer), checkpoint_id=folder)

    def load(self, model, optimizer, folder):
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.state_dict import set_state_dict

        state = self.state(model, optimizer)
        dcp.load(state, checkpoint_id=folder)
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


class Pretrained:
    """The model by save_pretrained, which is safetensors in shards, and from_pretrained; the optimizer by torch.save."""

    def save(self, model, optimizer, folder):
        import torch

        model.save_pretrained(folder)
        torch.save(optimizer.state_dict(), folder / "optimizer.pt")

    def load(self, model, optimizer, folder):
        import torch

        model.load_state_dict(type(model).from_pretrained(folder, dtype=model.dtype).state_dict())
        optimizer.load_state_dict(torch.load(folder / "optimizer.pt", map_location="cpu", mmap=True))


class Safetensors:
    """safetensors of the model, whole, and of the optimizer's tensors."""

    def tensors(self, optimizer):
        return {f"{i}.{key}": value for i, state in optimizer.state_dict()["state"].items() for key, value in state.items()}

    def save(self, model, optimizer, folder):
        from safetensors.torch import save_file, save_model

        save_model(model, str(folder / "model.safetensors"))
        save_file(self.tensors(optimizer), str(folder / "optimizer.safetensors"))

    def load(self, model, optimizer, folder):
        from safetensors import safe_open
        from safetensors.torch import load_model

        load_model(model, str(folder / "model.safetensors"))
        with safe_open(str(folder / "optimizer.safetensors"), "pt") as f:
            for name, tensor in self.tensors(optimizer).items():
                tensor.copy_(f.get_tensor(name))


WAYS = {"torch.save": TorchSave, "dcp": Distributed, "save_pretrained": Pretrained, "safetensors": Safetensors}


def resident():
    """Bytes of the host's memory that this process has."""
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measured(f, running):
    """Seconds, the host's memory that came on top at most, and bytes that were moved each way."""
    gc.collect()
    before, most, over = resident(), 0, threading.Event()

    def watch():
        nonlocal most
        while not over.wait(0.01):
            most = max(most, resident())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    stats, began = running.stats() if running else {}, time.perf_counter()
    f()
    seconds, after = time.perf_counter() - began, running.stats() if running else {}
    over.set()
    watcher.join()
    return {"seconds": seconds, "host_bytes": max(most - before, 0), **{key: after[key] - stats[key] for key in ("h2d_bytes", "d2h_bytes") if key in after}}


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("job", choices=finetune_job.JOBS)
    p.add_argument("steps", type=int)
    p.add_argument("--way", choices=WAYS, default="torch.save")
    p.add_argument("--folder", default=None, help="where a folder is made for what is saved, and removed")
    p.add_argument("--batch", type=int, default=4)
    p.add_argument("--length", type=int, default=2048)
    p.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    p.add_argument("--host-limit", type=float, default=100, metavar="GIB")
    p.add_argument("--progress", help="not used: what is measured comes at the end")
    p.add_argument("--deterministic", action="store_true")
    a = p.parse_args()
    a.accumulate = 1
    finetune_job.guard_host(int(a.host_limit * 2**30))
    if a.deterministic:
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # read when cuBLAS starts

    import torch

    if a.deterministic:
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False
    script = finetune_job.Checkpointing(a)
    model = script.build()
    finetune_job.materialise(model, a.device, a.device)
    script.begin(model)
    running = sys.modules.get("penstock") if "penstock._runtime" in sys.modules else None
    before = running.stats() if running else None
    seconds, losses = [], []

    def step(i):
        began = time.perf_counter()
        ids = torch.randint(0, model.config.vocab_size, (a.batch, a.length), generator=torch.Generator().manual_seed(i)).to(a.device)
        loss = script.loss(ids)
        script.backward(loss)
        script.step()
        losses.append(float(loss.detach()))
        seconds.append(time.perf_counter() - began)

    def waited(f):
        """Saving and loading end when the GPU has done what they asked of it."""

        def both():
            f()
            if a.device == "cuda":
                torch.cuda.synchronize()

        return measured(both, running)

    def sums():
        return [checksums(model.parameters()), checksums(v for state in script.optimizer.state.values() for v in state.values() if v.numel() > 1)]

    for i in range(a.steps):
        step(i)
    way, saved = WAYS[a.way](), sums()
    with tempfile.TemporaryDirectory(prefix="penstock-saving-", dir=a.folder) as folder:
        save = waited(lambda: way.save(model, script.optimizer, Path(folder)))
        size = sum(f.stat().st_size for f in Path(folder).rglob("*") if f.is_file())
        step(a.steps)
        load = waited(lambda: way.load(model, script.optimizer, Path(folder)))
        loaded = sums()
        step(a.steps)
    result = {
        "model": a.job, "way": a.way, "iter_s": seconds, "loss": losses, "saved_bytes": size, "save": save, "load": load, "loaded_equal": loaded == saved, "resumed_equal": losses[-1] == losses[-2],
        "penstock_loaded": running is not None,
    }  # fmt: skip
    if running:
        result.update(stats_before=before, stats=[running.stats()])
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
