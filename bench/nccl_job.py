"""A training script on several GPUs, as a user would write it: it knows nothing of memory tricks.

    python3 nccl_job.py ITERS [--ranks 2] [--wrap WRAP] [--layers 24] [--length 512] [--device cuda|cpu] [--stop RANK:SECONDS] [--kill RANK] [--limit SECONDS]

A language model of the size of GPT-2 medium in bfloat16 with deterministic algorithms, one process for each GPU, over NCCL, in one
of the ways of nccl_wraps.py; or alone on the last GPU, without NCCL. Prints a JSON line for each rank: losses,
seconds and checksums of its parameters. When one fails, or the limit is reached, says in which order they ended, what
each wrote last and, of those still running, where each thread is. In the middle of the job a rank may stop for some time, or be killed.
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

import nccl_wraps
from workloads import checksums

ENDS_WITHIN_S, STAYED = 15, 125


def parse():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("iters", type=int)
    p.add_argument("--ranks", type=int, default=2)
    p.add_argument("--wrap", choices=nccl_wraps.WRAPS, default="ddp")
    p.add_argument("--layers", type=int, default=24)
    p.add_argument("--length", type=int, default=512, help="tokens of each of four sequences")
    p.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: over gloo, to try the script itself")
    p.add_argument("--stop", metavar="RANK:SECONDS", help="that rank does nothing for so long after half of the iterations")
    p.add_argument("--kill", type=int, metavar="RANK", help="that rank kills itself after half of the iterations")
    p.add_argument("--limit", type=float, default=3600, help="seconds, then the ranks are ended")
    return p.parse_args()


def launch(ranks, limit_s):
    """Starts this script once for each rank. The exit status is that of the first that failed, 124 at the limit, or STAYED when one did not end."""
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
    for rank, p in enumerate(children):
        p.terminate()
        try:
            p.wait(ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            print(f"rank {rank} did not end within {ENDS_WITHIN_S} s of being told to", file=sys.stderr)
            result = STAYED
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

    torch.use_deterministic_algorithms(True)
    device, cuda = a.device, a.device == "cuda"
    if cuda:
        torch.cuda.set_device(torch.cuda.device_count() - 1 if a.wrap == "alone" else rank)
    if a.wrap != "alone":
        dist.init_process_group("nccl" if cuda else "gloo", device_id=torch.device("cuda", rank) if cuda else None)
    torch.manual_seed(1)
    parameters, step = nccl_wraps.WRAPS[a.wrap](a, rank, device)
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=False)
    torch.manual_seed(100 + rank)
    losses, seconds = [], []
    stops, pause = (float(x) for x in a.stop.split(":")) if a.stop else (-1, 0)
    for i in range(a.iters):
        if i == a.iters // 2 and rank == a.kill:
            os.kill(os.getpid(), signal.SIGKILL)
        if i == a.iters // 2 and rank == stops:
            time.sleep(pause)
        began = time.perf_counter()
        ids = torch.randint(0, nccl_wraps.VOCABULARY, (4, a.length), device=device)
        losses.append(float(step(ids)))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if cuda:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    sums = checksums(parameters)
    peak, nccl = (torch.cuda.max_memory_allocated(), list(torch.cuda.nccl.version())) if cuda else (0, None)
    print(json.dumps({"rank": rank, "wrap": a.wrap, "loss": losses, "iter_s": seconds, "parameter_checksums": sums, "peak_allocated_bytes": peak, "torch": torch.__version__, "nccl": nccl}), flush=True)
    if a.wrap != "alone":
        dist.destroy_process_group()


if __name__ == "__main__":
    arguments = parse()
    if "RANK" in os.environ:
        train(arguments)
    else:
        sys.exit(launch(1 if arguments.wrap == "alone" else arguments.ranks, arguments.limit))
