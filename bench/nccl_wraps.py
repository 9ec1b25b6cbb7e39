"""How a model is spread over several GPUs, for nccl_job.py: each function answers the parameters of a rank, and a step from tokens to the loss.

    alone                   GPT-2 medium on one GPU
    ddp, fsdp, fsdp-kept    the same: DistributedDataParallel; fully_shard (FSDP2) of each layer, with and without resharding after forward
    tensor                  blocks of linear layers, whose weights are split over the ranks (torch.distributed.tensor.parallel)
    pipeline                half of the blocks on each rank: send and receive, all forward passes before all backward ones
    experts                 each rank has some experts of every block; tokens go to theirs, and come back, by all-to-all
"""

from workloads import on_device

WIDTH, HEADS, VOCABULARY = 1024, 16, 50257
MICROBATCHES = 4


def replicated(a, rank, device):
    import torch
    import transformers

    config = transformers.GPT2Config(n_embd=WIDTH, n_layer=a.layers, n_head=HEADS)
    config.use_cache = False
    model = on_device(lambda: transformers.GPT2LMHeadModel(config), device=device)
    if a.wrap == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model, device_ids=None if device == "cpu" else [rank])
    elif a.wrap.startswith("fsdp"):
        from torch.distributed.fsdp import fully_shard

        for layer in model.transformer.h:
            fully_shard(layer, reshard_after_forward=a.wrap == "fsdp")
        fully_shard(model, reshard_after_forward=a.wrap == "fsdp")

    def step(ids):
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        return loss.detach()

    return list(model.parameters()), step


def block_class():
    import torch
    from torch import nn

    class Block(nn.Module):
        """A decoder's block of linear layers only, so that each of them can be split."""

        def __init__(self, mlp=None, heads=HEADS):
            super().__init__()
            self.heads = heads
            self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
            self.mlp = mlp or nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

        def forward(self, x):
            y = self.before(x)
            q, k, v = (f(y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
            y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).flatten(2))
            return x + self.mlp(self.between(x))

    return Block


def ends():
    """The embedding and the head."""
    from torch import nn

    return nn.Embedding(VOCABULARY, WIDTH), nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False))


def loss_of(logits, ids):
    import torch

    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())


def tensor(a, rank, device):
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    ranks = dist.get_world_size()
    Block = block_class()

    def make():
        embed, head = ends()
        return torch.nn.Sequential(embed, *(Block(heads=HEADS // ranks) for _ in range(a.layers)), head)

    model = on_device(make, device=device)
    mesh = init_device_mesh(device, (ranks,))
    plan = {"q": ColwiseParallel(), "k": ColwiseParallel(), "v": ColwiseParallel(), "out": RowwiseParallel(), "mlp.0": ColwiseParallel(), "mlp.2": RowwiseParallel()}
    for layer in model[1:-1]:
        parallelize_module(layer, mesh, plan)

    def step(ids):
        dist.broadcast(ids, 0)  # all work on the same
        loss = loss_of(model(ids), ids)
        loss.backward()
        return loss.detach()

    return list(model.parameters()), step


def pipeline(a, rank, device):
    import torch
    import torch.distributed as dist

    ranks = dist.get_world_size()
    Block = block_class()
    first, last = rank == 0, rank == ranks - 1
    mine = a.layers // ranks

    def make():
        embed, head = ends()
        return torch.nn.Sequential(*([embed] if first else []), *(Block() for _ in range(mine)), *([head] if last else []))

    stage = on_device(make, device=device)

    def step(ids):
        dist.broadcast(ids, 0)
        passed, total = [], torch.zeros((), device=device)
        for part in ids.chunk(MICROBATCHES):
            x = part
            if not first:
                x = torch.empty((*part.shape, WIDTH), dtype=torch.bfloat16, device=device)
                dist.recv(x, rank - 1)
                x.requires_grad_()
            y = stage(x)
            if last:
                y = loss_of(y, part) / MICROBATCHES
                total += y.detach()
            else:
                dist.send(y.detach(), rank + 1)
            passed.append((x, y))
        for x, y in passed:
            gradient = None
            if not last:
                gradient = torch.empty_like(y)
                dist.recv(gradient, rank + 1)
            y.backward(gradient)
            if not first:
                dist.send(x.grad, rank - 1)
        dist.broadcast(total, ranks - 1)
        return total

    return list(stage.parameters()), step


def experts(a, rank, device):
    import torch
    import torch.distributed as dist
    from torch import nn

    ranks, each = dist.get_world_size(), 4
    Block = block_class()

    class Exchange(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, sent, received):
            ctx.splits = sent, received
            y = x.new_empty((sum(received), x.shape[1]))
            dist.all_to_all_single(y, x.contiguous(), received, sent)
            return y

        @staticmethod
        def backward(ctx, gradient):
            sent, received = ctx.splits
            x = gradient.new_empty((sum(sent), gradient.shape[1]))
            dist.all_to_all_single(x, gradient.contiguous(), sent, received)
            return x, None, None

    class Mixture(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Linear(WIDTH, each * ranks, bias=False)
            self.experts = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)) for _ in range(each))

        def forward(self, x):
            tokens = x.flatten(0, 1)
            weight, chosen = self.gate(tokens).float().softmax(-1).max(-1)
            order = chosen.argsort(stable=True)
            counts = torch.bincount(chosen, minlength=each * ranks)
            theirs = torch.empty_like(counts)
            dist.all_to_all_single(theirs, counts)
            sent, received = counts.view(ranks, each).sum(1).tolist(), theirs.view(ranks, each).sum(1).tolist()
            came = Exchange.apply(tokens[order], sent, received)
            of = torch.arange(each, device=x.device).repeat(ranks).repeat_interleave(theirs)
            by = of.argsort(stable=True)
            parts = came[by].split(torch.bincount(of, minlength=each).tolist())
            done = torch.cat([f(part) for f, part in zip(self.experts, parts)])
            back = Exchange.apply(done[by.argsort()], received, sent)
            return (back[order.argsort()] * weight.unsqueeze(1)).to(x.dtype).view_as(x)

    def make():
        embed, head = ends()
        return nn.Sequential(embed, *(Block(Mixture()) for _ in range(a.layers)), head)

    model = on_device(make, device=device)
    shared = [p for name, p in model.named_parameters() if ".experts." not in name]
    for p in shared:
        dist.broadcast(p.data, 0)

    def step(ids):
        loss = loss_of(model(ids), ids)
        loss.backward()
        for p in shared:
            dist.all_reduce(p.grad)
            p.grad /= ranks
        return loss.detach()

    return list(model.parameters()), step


WRAPS = dict.fromkeys(("alone", "ddp", "fsdp", "fsdp-kept"), replicated) | {"tensor": tensor, "pipeline": pipeline, "experts": experts}
