"""What the checks of behaviours.py share: behaviour_checks.py and extension_checks.py."""

import math
import os

import torch
from torch import nn

DEV = "cuda"
MIB, GIB = 1 << 20, 1 << 30
UNDER_PENSTOCK = os.environ.get("PENSTOCK_ACTIVE") == "1"
CHECKS = {}


class Failed(Exception):
    pass


def check(f):
    CHECKS[f.__name__] = f
    return f


def expect(condition, text):
    if not condition:
        raise Failed(text)


def mlp(width=1024, out=1024):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(1024, 4 * width), nn.GELU(), nn.Linear(4 * width, out)).to(DEV)


def block(bytes_, value):
    return torch.full((bytes_ // 4,), float(value), device=DEV)


def sane(losses):
    expect(all(math.isfinite(x) for x in losses) and len(set(losses)) > 1, f"these are no losses of a training run: {losses}")


def train(steps=5, model=None):
    """Losses of a few steps: the job that must still work after whatever happened before."""
    model = model or mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator(DEV).manual_seed(1)
    losses = []
    for _ in range(steps):
        x = torch.randn(256, 1024, device=DEV, generator=generator)
        loss = (model(x) - x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(float(loss.detach()))
    sane(losses)
    return losses
