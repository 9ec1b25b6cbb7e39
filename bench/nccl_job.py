"""A training script on several GPUs, as a user would write it: it knows nothing of memory tricks.

    python3 nccl_job.py ITERS [--ranks 2] [--wrap alone|ddp|fsdp] [--layers 24] [--limit SECONDS]

GPT-2 medium in bfloat16 with deterministic algorithms, one process for each GPU, over NCCL: DistributedDataParallel,
or fully_shard (FSDP2) of each layer; or alone on the last GPU, without NCCL. Prints a JSON line for each rank: losses,
seconds and checksums of its parameters. When one fails, or the limit is reached, says in which order they ended, what
each wrote last and, of those still running, where each thread is.
"""

import argparse
import faulthandler
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time

from workloads import checksums


def parse():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("iters", type=int)
    p.add_argument("--ranks", type=int, default=2)
    p.add_argument("--wrap", choices=("alone", "ddp", "fsdp"), default="ddp")
    p.add_argument("--layers", type=int, default=24)
    p.add_argument("--limit", type=float, default=3600, help="seconds, then the ranks are ended")
    return p.parse_args()


def launch(ranks, limit_s):
    """Starts this script once for each rank. The exit status is that of the first that failed, or 124 at the limit."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    children, texts = [], []
    for rank in range(ranks):
        env = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        texts.append(tempfile.TemporaryFile("w+"))
        children.append(subprocess.Popen([sys.executable, *sys.argv], env=env, stderr=texts[-1]))
    began, ended, result = time.monotonic(), [], None
    while result is None:
        ended += [(rank, p.returncode) for rank, p in enumerate(children) if p.poll() is not None and rank not in dict(ended)]
        failed = [code for _, code in ended if code]
        if len(ended) == ranks or failed:
            result = failed[0] if failed else 0
        elif time.monotonic() - began > limit_s:
            result = 124
        else:
            time.sleep(0.05)
    if result:
        for p in children:
            if p.poll() is None:  # it would wait for the others
                p.send_signal(signal.SIGUSR1)
        time.sleep(1)
    for p in children:
        p.kill()
        p.wait()
    for rank, f in enumerate(texts):
        f.seek(0)
        text = f.read()
        if result:
            print(f"==== rank {rank}, " + (f"ended as number {[r for r, _ in ended].index(rank) + 1} with {dict(ended)[rank]}" if rank in dict(ended) else "still running"), file=sys.stderr)
            text = text[-12000:]
        sys.stderr.write(text)
    return result


def train(a):
    faulthandler.register(signal.SIGUSR1)  # all threads
    rank = int(os.environ["RANK"])
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    import torch
    import torch.distributed as dist
    import transformers

    torch.use_deterministic_algorithms(True)
    torch.cuda.set_device(torch.cuda.device_count() - 1 if a.wrap == "alone" else rank)
    if a.wrap != "alone":
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
    elif a.wrap == "fsdp":
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
    sums = checksums(model.parameters())
    print(json.dumps({"rank": rank, "wrap": a.wrap, "loss": losses, "iter_s": seconds, "parameter_checksums": sums, "peak_allocated_bytes": torch.cuda.max_memory_allocated(), "torch": torch.__version__, "nccl": list(torch.cuda.nccl.version())}), flush=True)
    if a.wrap != "alone":
        dist.destroy_process_group()


if __name__ == "__main__":
    arguments = parse()
    if "RANK" in os.environ:
        train(arguments)
    else:
        sys.exit(launch(1 if arguments.wrap == "alone" else arguments.ranks, arguments.limit))
