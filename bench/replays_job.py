"""A training job of which some launches are issued again: run by bench/replays.py, with the probe preloaded.

    LD_PRELOAD=PROBE python3 bench/replays_job.py MODEL PROBE MODULE OUT [options]

PyTorch's allocator is the probe's own (bench/probe/replays.h). After a few iterations one is done armed: its
launches are tried, and OUT gets a JSON line for each. With --beside the recipes that came of it are then issued
over and over on a stream of their own, of the job's priority and of the highest, while the job goes on: prints a
JSON line for each.
"""

import argparse
import ctypes
import json
import statistics
import time

import workloads


def vit_large():
    return workloads.vision_model("vit_large_patch16_224", 32)


def bert_large():
    import torch
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096)
    with torch.device("cuda"):
        model = BertForMaskedLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    return model.train(), trained(optimizer, lambda: masked_loss(model, config.vocab_size))


def masked_loss(model, words):
    import torch

    ids = torch.randint(0, words, (workloads.Settings.batch or 16, 512), device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        return model(input_ids=ids, labels=ids).loss


def conformer():
    import torch
    import torchaudio

    with torch.device("cuda"):
        model = torchaudio.models.Conformer(input_dim=512, num_heads=8, ffn_dim=2048, num_layers=16, depthwise_conv_kernel_size=31, dropout=0.1)
        head = torch.nn.Linear(512, 1000)
    both = torch.nn.ModuleList([model, head]).train()
    optimizer = torch.optim.AdamW(both.parameters(), lr=1e-4)

    def loss():
        frames = torch.randn(workloads.Settings.batch or 16, 400, 512, device="cuda")
        lengths = torch.full((len(frames),), 400, device="cuda")
        words = torch.randint(1, 1000, (len(frames), 50), device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            out, _ = model(frames, lengths)
            scores = head(out).log_softmax(-1).transpose(0, 1)
        return torch.nn.functional.ctc_loss(scores.float(), words, lengths, torch.full((len(frames),), 50, device="cuda"))

    return both, trained(optimizer, loss)


def unet():
    """A small diffusion model's: group normalisation, SiLU, attention in the middle, transposed convolutions."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, inside, outside):
            super().__init__()
            self.body = nn.Sequential(nn.GroupNorm(32, inside), nn.SiLU(), nn.Conv2d(inside, outside, 3, padding=1), nn.GroupNorm(32, outside), nn.SiLU(), nn.Dropout(0.1), nn.Conv2d(outside, outside, 3, padding=1))
            self.skip = nn.Conv2d(inside, outside, 1) if inside != outside else nn.Identity()

        def forward(self, x):
            return self.body(x) + self.skip(x)

    class UNet(nn.Module):
        def __init__(self, width=128):
            super().__init__()
            sizes = [width, 2 * width, 4 * width]
            self.first = nn.Conv2d(3, width, 3, padding=1)
            self.down = nn.ModuleList(Block(a, b) for a, b in zip([width, *sizes], sizes))
            self.attention = nn.MultiheadAttention(sizes[-1], 8, batch_first=True)
            self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, stride=2) for a, b in zip(sizes[:-1], sizes[1:]))
            self.join = nn.ModuleList(Block(2 * a, a) for a in sizes[:-1])
            self.last = nn.Conv2d(width, 3, 3, padding=1)

        def forward(self, x):
            x, kept = self.first(x), []
            for i, block in enumerate(self.down):
                x = block(x if i == 0 else nn.functional.avg_pool2d(x, 2))
                kept.append(x)
            n, c, h, w = x.shape
            t = x.flatten(2).transpose(1, 2)
            x = x + self.attention(t, t, t, need_weights=False)[0].transpose(1, 2).reshape(n, c, h, w)
            for up, join, skipped in zip(reversed(self.up), reversed(self.join), reversed(kept[:-1])):
                x = join(torch.cat([up(x), skipped], 1))
            return self.last(x)

    with torch.device("cuda"):
        model = UNet().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def loss():
        images = torch.randn(workloads.Settings.batch or 32, 3, 64, 64, device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            return torch.nn.functional.mse_loss(model(images + torch.randn_like(images)).float(), images)

    return model, trained(optimizer, loss)


def trained(optimizer, loss_of):
    def step():
        loss = loss_of()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    return step


MODELS = {**workloads.MODELS, "vitl": vit_large, "bertl": bert_large, "conformer": conformer, "unet": unet}


def iteration_seconds(step, n):
    import torch

    seconds = []
    for _ in range(n):
        began = time.perf_counter()
        step()
        torch.cuda.current_stream().synchronize()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


class Beside:
    """Recipes over and over on a second stream."""

    def __init__(self, lib):
        self.lib = lib
        lib.replays_recipe_name.restype = ctypes.c_char_p
        lib.replays_recipe_bytes.restype = ctypes.c_uint64
        lib.replays_beside_end.restype = ctypes.c_double
        self.names = [lib.replays_recipe_name(i).decode() for i in range(lib.replays_recipes())]

    def during(self, chosen, priority, body):
        """What body answers, with the rounds in a second and the recipes that went wrong."""
        self.lib.replays_beside_start(priority, (ctypes.c_uint * len(chosen))(*chosen), len(chosen))
        result = body()
        rounds, wrong = ctypes.c_uint64(), (ctypes.c_uint64 * len(chosen))()
        seconds = self.lib.replays_beside_end(ctypes.byref(rounds), wrong)
        return result, {
            "rounds": rounds.value, "rounds_per_s": rounds.value / seconds,
            "wrong": {self.names[k]: wrong[i] for i, k in enumerate(chosen) if wrong[i]},
        }  # fmt: skip


def beside(lib, step, iterations):
    least, greatest = ctypes.c_int(), ctypes.c_int()
    lib.replays_priorities(ctypes.byref(least), ctypes.byref(greatest))
    b = Beside(lib)
    from replays import is_plain

    sets = {"plain": [i for i, n in enumerate(b.names) if is_plain(n)], "others": [i for i, n in enumerate(b.names) if not is_plain(n)]}
    for which, chosen in sets.items():
        if not chosen:
            continue
        _, alone = b.during(chosen, least.value, lambda: time.sleep(0.7))
        row = {"recipes": len(chosen), "which": which, "bytes": sum(lib.replays_recipe_bytes(i) for i in chosen), "alone": alone, "job_alone_s": iteration_seconds(step, iterations), "priorities": [least.value, greatest.value]}
        for name, priority in (("least", least.value), ("greatest", greatest.value)):
            seconds, counts = b.during(chosen, priority, lambda: iteration_seconds(step, iterations))
            row[name] = {"job_s": seconds, **counts}
        row["job_alone_again_s"] = iteration_seconds(step, iterations)
        print(json.dumps(row), flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("model", choices=sorted(MODELS), metavar="MODEL")
    p.add_argument("probe", help="lib/libreplays.so, which is preloaded")
    p.add_argument("module", help="bench/probe/replays_sums.cu, compiled")
    p.add_argument("out")
    p.add_argument("--batch", type=int)
    p.add_argument("--each", type=int, default=2, help="launches of a function, grid and block that are tried")
    p.add_argument("--seconds", type=float, default=40, help="after which none is tried any more")
    p.add_argument("--limit-gib", type=float, default=6, help="a launch that names more is not tried")
    p.add_argument("--ban", default="", help="a file with functions that are not to be issued again")
    p.add_argument("--deterministic", action="store_true")
    p.add_argument("--beside", type=int, default=0, metavar="N", help="then N iterations beside recipes, of each kind and priority")
    p.add_argument("--recipes-gib", type=float, default=4)
    a = p.parse_args()
    import torch

    lib = ctypes.CDLL(a.probe)
    torch.cuda.memory.change_current_allocator(torch.cuda.memory.CUDAPluggableAllocator(a.probe, "replays_alloc", "replays_free"))
    if a.deterministic:
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.deterministic = True
        torch.utils.deterministic.fill_uninitialized_memory = False
    torch.manual_seed(0)
    workloads.Settings.on_device, workloads.Settings.batch = True, a.batch
    _, step = MODELS[a.model]()
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    if a.beside:
        lib.replays_keep_up_to(ctypes.c_uint64(int(a.recipes_gib * 2**30)))
    banned = open(a.ban).read() if a.ban else ""
    if lib.replays_arm(a.out.encode(), a.module.encode(), ctypes.c_uint64(int(a.limit_gib * 2**30)), a.each, ctypes.c_double(a.seconds), banned.encode()):
        raise SystemExit(f"{a.out} cannot be written")
    step()
    torch.cuda.synchronize()
    lib.replays_disarm()
    for _ in range(2):  # what was tried harmed nothing: the job goes on
        loss = float(step().detach())
    print(json.dumps({"model": a.model, "loss": loss}), flush=True)
    if a.beside:
        beside(lib, step, a.beside)


if __name__ == "__main__":
    main()
