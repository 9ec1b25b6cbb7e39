"""A training script on several GPUs, as a user would write it: it knows nothing of memory tricks.

    python3 nccl_job.py ITERS [--ranks 2] [--wrap ddp|fsdp] [--layers 24]

GPT-2 medium in bfloat16 with deterministic algorithms, one process for each GPU, over NCCL: DistributedDataParallel,
or fully_shard (FSDP2) of each layer. Prints a JSON line for each rank: losses, seconds and checksums of its parameters.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import time

from workloads import checksums


def parse():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("iters", type=int)
    p.add_argument("--ranks", type=int, default=2)
    p.add_argument("--wrap", choices=("ddp", "fsdp"), default="ddp")
    p.add_argument("--layers", type=int, default=24)
    return p.parse_args()


def launch(ranks):
    """Starts this script once for each rank. The exit status is that of the first that failed."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    children = []
    for rank in range(ranks):
        env = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        if env.get("PENSTOCK_REPORT"):
            env["PENSTOCK_REPORT"] += f".{rank}"
        children.append(subprocess.Popen([sys.executable, *sys.argv], env=env))
    while any(p.poll() is None for p in children):
        if failed := [p.returncode for p in children if p.returncode]:
            for p in children:  # the others would wait for it
                p.kill()
            return failed[0]
        time.sleep(0.05)
    return max(p.returncode for p in children)


def train(a):
    rank = int(os.environ["RANK"])
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    import torch
    import torch.distributed as dist
    import transformers

    torch.use_deterministic_algorithms(True)
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    torch.manual_seed(1)
    torch.set_default_dtype(torch.bfloat16)
    config = transformers.GPT2Config(n_embd=1024, n_layer=a.layers, n_head=16)
    config.use_cache = False
    with torch.device("cuda"):
        model = transformers.GPT2LMHeadModel(config).train()
    torch.set_default_dtype(torch.float32)
    if a.wrap == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[rank])
    else:
        from torch.distributed.fsdp import fully_shard

        for layer in model.transformer.h:
            fully_shard(layer)
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=False)
    torch.manual_seed(100 + rank)
    losses, seconds = [], []
    for _ in range(a.iters):
        began = time.perf_counter()
        ids = torch.randint(0, config.vocab_size, (4, 512), device="cuda")
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(float(loss.detach()))
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    sums = checksums(p.to_local() if hasattr(p, "to_local") else p for p in model.parameters())
    print(json.dumps({"rank": rank, "wrap": a.wrap, "loss": losses, "iter_s": seconds, "parameter_checksums": sums, "peak_allocated_bytes": torch.cuda.max_memory_allocated(), "torch": torch.__version__, "nccl": list(torch.cuda.nccl.version())}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    arguments = parse()
    if "RANK" in os.environ:
        train(arguments)
    else:
        sys.exit(launch(arguments.ranks))
