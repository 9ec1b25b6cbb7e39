"""Train past the GPU's memory. Needs a GPU and PyTorch; nothing in here knows of Penstock.

See first what the job needs, then give it half of that:

    python3 examples/train_past_memory.py
    penstock run --budget HALF -- python3 examples/train_past_memory.py

The losses are the same, line by line. The verdict at the end says what limited the job.
"""

import argparse
import time

import torch
from torch import nn

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--blocks", type=int, default=24, help="more of them need more memory")
parser.add_argument("--width", type=int, default=1024)
parser.add_argument("--batch", type=int, default=16384, help="rows of a step; more of them need more memory")
parser.add_argument("--device", default="cuda", help="cpu, to try the script itself")
a = parser.parse_args()

torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        return x + self.inner(x)


model = nn.Sequential(*(Block(a.width) for _ in range(a.blocks))).to(a.device)
# fused: one pass over the optimizer's state. The default makes many, which all would cross the bus.
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=a.device == "cuda")
x = torch.randn(a.batch, a.width, device=a.device)
wanted = x.roll(1, dims=1)

for step in range(a.steps):
    began = time.perf_counter()
    with torch.autocast(a.device, torch.bfloat16):
        loss = nn.functional.mse_loss(model(x), wanted)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    # item() waits for the GPU, so this is the time of the whole step.
    print(f"step {step:2}  loss {loss.item():.6f}  {time.perf_counter() - began:.3f} s", flush=True)

if a.device == "cuda":
    print(f"at its peak: {torch.cuda.max_memory_allocated() >> 20} MiB")
