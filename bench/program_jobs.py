"""The programs of programs.py, and the job that runs one of them: what users write who know nothing of Penstock.

A program is a function of a Size (zoo_models.py). It returns losses, or other figures, and the tensors whose bytes are to be stock's.
"""

import re
import tempfile
from pathlib import Path

from zoo_models import Size, digest, settle

PROGRAMS = {}


class Program:
    """near: how far figures may be from stock's, as a share, where kernels are chosen by timing them. refused: what Penstock,
    or a library beside it, says when this cannot be done under it. needs: a module that may not be there. card: there is nothing to run on a CPU. settings: of Penstock, in its environment."""

    def __init__(self, run, near=None, refused=None, needs=None, card=False, slow=False, settings=None):
        self.run, self.near, self.refused, self.needs, self.card, self.slow = run, near, refused and re.compile(refused), needs, card, slow
        self.settings = settings or {}


def program(name, **kw):
    def note(f):
        if name in PROGRAMS:
            raise ValueError(f"{name} is there twice")
        PROGRAMS[name] = Program(f, **kw)
        return f

    return note


def run(emit, name, device):
    import torch

    settle()
    figures, tensors = PROGRAMS[name].run(Size(device))
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else 0
    emit(result={"losses": [float(x) for x in figures], "digests": [digest([t]) for t in tensors]}, peak_bytes=peak)


# ---- what they share ----


def llama(size, layers=4, width=768, vocabulary=8192, **more):
    from transformers import LlamaConfig, LlamaForCausalLM

    if size.small:
        layers, width, vocabulary = 2, 64, 512
    return LlamaForCausalLM(LlamaConfig(
        hidden_size=width, intermediate_size=width * 8 // 3 // 64 * 64, num_hidden_layers=layers, num_attention_heads=width // 32, num_key_value_heads=width // 64, vocab_size=vocabulary,
        max_position_embeddings=1024, use_cache=False, pad_token_id=0, bos_token_id=1, eos_token_id=2, **more,
    )).to(size.device)  # fmt: skip


def text(size, i, batch=8, length=512, vocabulary=8192):
    import torch

    return torch.randint(3, 512 if size.small else vocabulary, (size.batch(batch), size.length(length)), generator=torch.Generator().manual_seed(i)).to(size.device)


def noise(size, *shape, seed=0):
    import torch

    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(size.device)


def mlp(size, width=2048, depth=6, features=1024):
    from torch import nn

    width, features = (64, 32) if size.small else (width, features)
    layers = [nn.Linear(features, width), nn.GELU()]
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(width, features)).to(size.device)


def rows(size, i, n=8192):
    return noise(size, 32 if size.small else n, 32 if size.small else 1024, seed=i)


def steps(model, losses, optimizer):
    """Trains by each of some functions that give a loss."""
    found = []
    for loss_of in losses:
        loss = loss_of()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        found.append(float(loss.detach()))
    return found


def adamw(model, **kw):
    import torch

    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3, **kw)


def lm_steps(model, size, n=4, optimizer=None, **kw):
    def loss(i):
        x = text(size, i, **kw)
        return lambda: model(input_ids=x, labels=x).loss

    return steps(model, [loss(i) for i in range(n)], optimizer or adamw(model))


def mlp_steps(model, size, n=4, optimizer=None, call=None):
    def loss(i):
        x = rows(size, i)
        return lambda: ((call or model)(x) - x).square().mean()

    return steps(model, [loss(i) for i in range(n)], optimizer or adamw(model))


# ---- trainers ----


class Texts:
    def __init__(self, size, n=64):
        self.rows = [text(size, i, 1, 384)[0].cpu() for i in range(n)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return {"input_ids": self.rows[i], "labels": self.rows[i]}


@program("HF Trainer: evaluation, accumulation, save, resume", slow=True)
def hf_trainer(size):
    from transformers import Trainer, TrainingArguments

    import torch

    data, seen, finals = Texts(size), [], []
    with tempfile.TemporaryDirectory() as folder:
        for resume in (None, f"{folder}/checkpoint-2"):
            torch.manual_seed(0)
            model = llama(size)
            t = Trainer(model, TrainingArguments(
                output_dir=folder, max_steps=4, per_device_train_batch_size=4, gradient_accumulation_steps=2, per_device_eval_batch_size=8, eval_strategy="steps", eval_steps=2, save_steps=2, logging_steps=1,
                learning_rate=1e-3, report_to=[], disable_tqdm=True, seed=0, data_seed=0, use_cpu=size.small, dataloader_num_workers=0,
            ), train_dataset=data, eval_dataset=Texts(size, 8))  # fmt: skip
            t.train(resume_from_checkpoint=resume)
            seen += [x[k] for x in t.state.log_history for k in ("loss", "eval_loss") if k in x]
            finals += list(model.parameters())
    half = len(finals) // 2
    seen.append(sum(float((a != b).sum()) for a, b in zip(finals[:half], finals[half:])))  # resumed is as if it had not stopped, under stock or not
    return seen, finals


@program("PEFT LoRA", needs="peft")
def peft_lora(size):
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(llama(size), LoraConfig(r=16, target_modules=["q_proj", "v_proj", "gate_proj"], task_type="CAUSAL_LM"))
    return lm_steps(model, size), [p for p in model.parameters() if p.requires_grad]


@program("Lightning, 16-mixed", needs="lightning", slow=True)
def lightning_(size):
    import torch
    from lightning import LightningModule, Trainer

    losses = []

    class Module(LightningModule):
        def __init__(self):
            super().__init__()
            self.model = llama(size)

        def training_step(self, batch, _):
            loss = self.model(**batch).loss
            losses.append(float(loss.detach()))
            return loss

        def configure_optimizers(self):
            return adamw(self.model)

    module = Module()
    Trainer(
        max_steps=4, accelerator=size.device if size.small else "gpu", devices=1, precision="32-true" if size.small else "16-mixed", logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, accumulate_grad_batches=2,
    ).fit(module, torch.utils.data.DataLoader(Texts(size), batch_size=8))  # fmt: skip
    return losses, list(module.parameters())


@program("Accelerate: fp16, accumulation", needs="accelerate")
def accelerate_(size):
    import torch
    from accelerate import Accelerator

    a = Accelerator(mixed_precision="no" if size.small else "fp16", gradient_accumulation_steps=2, cpu=size.small)
    model = llama(size)
    model, optimizer, loader = a.prepare(model, adamw(model), torch.utils.data.DataLoader(Texts(size, 32), batch_size=8))
    losses = []
    for batch in loader:
        with a.accumulate(model):
            loss = model(**batch).loss
            a.backward(loss)
            if a.sync_gradients:
                a.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses, list(model.parameters())


def process_group(size):
    import torch.distributed as dist

    folder = tempfile.mkdtemp(prefix="penstock-gate-")
    dist.init_process_group("gloo" if size.small else "nccl", store=dist.FileStore(f"{folder}/store", 1), rank=0, world_size=1)
    return dist


@program("DistributedDataParallel, one rank")
def ddp(size):
    from torch.nn.parallel import DistributedDataParallel

    dist = process_group(size)
    model = DistributedDataParallel(llama(size))
    losses = lm_steps(model, size)
    out = [p.detach().clone() for p in model.parameters()]
    dist.destroy_process_group()
    return losses, out


@program("FSDP2, one rank")
def fsdp2(size):
    from torch.distributed.fsdp import fully_shard

    dist = process_group(size)
    model = llama(size)
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    losses = lm_steps(model, size)
    out = [p.full_tensor().detach().clone() for p in model.parameters()]
    dist.destroy_process_group()
    return losses, out


# ---- torch.compile ----


def compiled(size, n=4, lengths=(512,), **kw):
    import torch

    model = llama(size)
    call = torch.compile(model, **kw)
    optimizer, losses = adamw(model), []
    for i in range(n):
        losses += lm_steps(call, size, 1, optimizer, length=lengths[i % len(lengths)])
    return losses, list(model.parameters())


@program("torch.compile, default", slow=True)
def compile_default(size):
    return compiled(size)


@program("torch.compile, dynamic shapes", slow=True)
def compile_dynamic(size):
    return compiled(size, 6, (512, 384, 256, 448), dynamic=True)


@program("torch.compile, max-autotune-no-cudagraphs", slow=True, near=1e-3, card=True)
def compile_autotune(size):
    return compiled(size, mode="max-autotune-no-cudagraphs")


@program("torch.compile, bf16 autocast", slow=True)
def compile_autocast(size):
    import torch

    with torch.autocast(size.device, torch.bfloat16):
        return compiled(size)


@program("torch.compile, ResNet", slow=True)
def compile_resnet(size):
    import torch
    import torchvision

    model = torchvision.models.resnet50(num_classes=100).to(size.device)
    call = torch.compile(model)

    def loss(i):
        x = noise(size, size.batch(16), 3, 32 if size.small else 192, 32 if size.small else 192, seed=i)
        return lambda: call(x).square().mean()

    return steps(model, [loss(i) for i in range(4)], torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)), list(model.parameters())


@program("torch.compile, reduce-overhead", slow=True, card=True)
def compile_reduce_overhead(size):
    return compiled(size, 8, mode="reduce-overhead")


@program("torch.compile, reduce-overhead, dynamic shapes", slow=True, card=True)
def compile_reduce_overhead_dynamic(size):
    return compiled(size, 10, (512, 384, 256, 384, 512), mode="reduce-overhead", dynamic=True)


@program("torch.compile, reduce-overhead, outputs kept, branches", slow=True, card=True)
def compile_reduce_overhead_tree(size):
    """Several paths through one tree of graphs, with outputs of earlier ones alive."""
    import torch

    model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(4))).to(size.device)
    first, second, third = (torch.compile(f, mode="reduce-overhead") for f in (lambda x: model(x).relu(), lambda x: x @ x.t(), lambda x: x.sin() * 2))
    losses, kept = [], []
    with torch.no_grad():
        for i in range(12):
            torch.compiler.cudagraph_mark_step_begin()
            x = noise(size, 1024, 1024, seed=i % 3)
            y = first(x)
            z = second(y) if i % 2 else third(y)
            w = third(z) if i % 3 else first(z[:, :1024])
            losses.append(float((y.sum() + z.sum() + w.sum()).cpu()))
            kept.append(w.clone())
    return losses, kept


@program("torch.compile, max-autotune", slow=True, near=1e-3, card=True)
def compile_max_autotune(size):
    return compiled(size, 6, mode="max-autotune")


@program("flex attention, compiled", slow=True, card=True)
def flex(size):
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, 1024, 1024, device=size.device)
    q, k, v = (noise(size, 8, 8, 1024, 64, seed=i).requires_grad_() for i in range(3))
    call = torch.compile(flex_attention)
    out = None
    for _ in range(3):
        out = call(q, k, v, block_mask=mask)
        out.square().mean().backward()
    return [float(out.detach().abs().sum())], [q.grad, k.grad, v.grad, out]


# ---- CUDA graphs ----


def warmed(f, n=3):
    """Runs f on a side stream, as the capture of a graph asks for."""
    import torch

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(n):
            f()
    torch.cuda.current_stream().wait_stream(side)


@program("CUDA graph of inference", card=True)
def graph_inference(size):
    import torch

    model, x = mlp(size).eval(), rows(size, 0)
    with torch.no_grad():
        warmed(lambda: model(x))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = model(x)
        found = []
        for i in range(4):
            x.copy_(rows(size, i))
            graph.replay()
            found.append(float(y.abs().mean()))
            noise(size, 64 << 20, seed=i).mul_(2)  # ordinary work between replays, which needs room
    return found, [y]


@program("torch.cuda.make_graphed_callables", card=True)
def graphed_callables(size):
    import torch

    model = mlp(size)
    graphed = torch.cuda.make_graphed_callables(model, (rows(size, 0).requires_grad_(),))
    optimizer, losses = adamw(model), []
    for i in range(4):
        x = rows(size, i).requires_grad_()
        loss = (graphed(x) - x.detach()).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(float(loss.detach()))
    return losses, list(model.parameters())


@program("CUDA graph of a whole training step", card=True)
def graph_step(size):
    import torch

    model, x = mlp(size), rows(size, 0)
    optimizer = adamw(model, capturable=True)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = (model(x) - x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    warmed(step)
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        loss = step()
    found = []
    for i in range(4):
        x.copy_(rows(size, i))
        graph.replay()
        found.append(float(loss))
    return found, list(model.parameters())


def received(queue, back):
    """Another process: works on the tensors that it is sent, where they are."""
    for _ in range(3):
        x, y = queue.get()
        y.copy_(x * 2 + 1)
        back.put(float(y.double().sum()))
        del x, y
    queue.get()  # until nobody needs what was sent


@program("CUDA tensors sent to another process", card=True, slow=True, refused="managed memory", settings={"PENSTOCK_IPC": "1"})
def sent(size):
    import torch.multiprocessing as mp

    context = mp.get_context("spawn")
    queue, back = context.Queue(), context.Queue()
    other = context.Process(target=received, args=(queue, back), daemon=True)
    other.start()
    figures, kept = [], []
    for i in range(3):
        x, y = noise(size, 8 << 20, seed=i), noise(size, 8 << 20, seed=10 + i)
        beside = [noise(size, 16 << 20, seed=20 + i) for _ in range(6)]
        queue.put((x, y))
        figures.append(back.get(timeout=60))
        kept += [x, y, *beside]
    queue.put(None)
    other.join(60)
    return [*figures, other.exitcode], kept


@program("torch.cuda.MemPool", card=True)
def mem_pool(size):
    """Pools within one another, used by turns; what is in them outlives them."""
    import torch

    outer, inner = torch.cuda.MemPool(), torch.cuda.MemPool(use_on_oom=True)
    kept, losses = [], []
    for i in range(4):
        with torch.cuda.use_mem_pool(outer):
            x = noise(size, 32 << 20, seed=i)
            with torch.cuda.use_mem_pool(inner):
                y = noise(size, 16 << 20, seed=10 + i)
            z = x[: 16 << 20] * y
        w = z + 1
        losses.append(float(w.double().sum()))
        kept += [y, w] if i % 2 else [z]
    uses = outer.use_count(), inner.use_count()
    del outer, inner
    return [*losses, *uses], kept


@program("memory history and snapshot", card=True)
def snapshot(size):
    import torch

    torch.cuda.memory._record_memory_history()
    x = noise(size, 32 << 20)
    found = len(torch.cuda.memory._snapshot()["segments"]) > 0
    return [found], [x]


# ---- text that is made ----


def generated(size, **kw):
    import torch

    model = llama(size, layers=8, width=1024).eval()
    model.config.use_cache = True
    model.generation_config.eos_token_id = None
    prompt = text(size, 0, 8, 256)
    with torch.no_grad():
        torch.manual_seed(1)
        out = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=8 if size.small else 48, use_cache=True, pad_token_id=0, **kw)
    return [float(out.double().mean())], [out]


@program("generate, greedy")
def generate_greedy(size):
    return generated(size, do_sample=False)


@program("generate, four beams")
def generate_beams(size):
    return generated(size, do_sample=False, num_beams=4)


@program("generate, sampled")
def generate_sampled(size):
    return generated(size, do_sample=True, top_k=50, temperature=0.8)


# ---- torch.func and other autograd ----


@program("torch.func: gradients of each sample")
def per_sample(size):
    from torch.func import functional_call, grad, vmap

    model = mlp(size, width=256, depth=2)
    weights = {k: v.detach() for k, v in model.named_parameters()}
    x = rows(size, 0, n=256)

    def loss(w, sample):
        return (functional_call(model, w, (sample[None],)) - sample).square().mean()

    found = vmap(grad(loss), (None, 0))(weights, x)
    return [float(g.abs().sum()) for g in found.values()], list(found.values())


@program("torch.func: jvp, vjp, Hessian times vector")
def func_products(size):
    from torch.func import functional_call, grad, jvp, vjp

    model, x = mlp(size, depth=3), rows(size, 0)
    weights = {k: v.detach() for k, v in model.named_parameters()}

    def loss(w):
        return (functional_call(model, w, (x,)) - x).square().mean()

    tangents = {k: noise(size, *v.shape, seed=i) for i, (k, v) in enumerate(weights.items())}
    value, forward = jvp(loss, (weights,), (tangents,))
    _, product = jvp(grad(loss), (weights,), (tangents,))
    _, pull = vjp(loss, weights)
    (back,) = pull(value.detach() * 0 + 1)
    return [float(value), float(forward)], [*product.values(), *back.values()]


@program("second derivatives: a gradient penalty")
def gradient_penalty(size):
    import torch

    model = mlp(size, depth=3)

    def loss(i):
        x = rows(size, i).requires_grad_()

        def f():
            y = model(x).square().mean()
            (g,) = torch.autograd.grad(y, x, create_graph=True)
            return y + (g.norm(dim=1) * 1e3 - 1).square().mean()

        return f

    return steps(model, [loss(i) for i in range(3)], adamw(model)), list(model.parameters())


@program("activation checkpointing")
def checkpointing(size):
    model = llama(size, layers=8)
    model.gradient_checkpointing_enable()
    model.train()
    return lm_steps(model, size, 3), list(model.parameters())


@program("save_on_cpu, pinned")
def save_on_cpu(size):
    import torch

    model = mlp(size)

    def call(x):
        with torch.autograd.graph.save_on_cpu(pin_memory=not size.small):
            return model(x)

    return mlp_steps(model, size, 3, call=call), list(model.parameters())


@program("hooks of saved tensors that pack to bf16")
def packing(size):
    import torch

    model = mlp(size)

    def call(x):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.bfloat16() if t.is_floating_point() else t, lambda t: t.float() if t.is_floating_point() else t):
            return model(x)

    return mlp_steps(model, size, 3, call=call), list(model.parameters())


@program("a custom autograd.Function, in place, double buffered")
def custom_function(size):
    import torch

    class Swish(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            s = torch.sigmoid(x)
            ctx.save_for_backward(x, s)
            return x.mul(s)

        @staticmethod
        def backward(ctx, g):
            x, s = ctx.saved_tensors
            return g.mul(s.mul(1 - s).mul_(x).add_(s))

    n = 64 if size.small else 2048
    w = [noise(size, n, n, seed=i).mul_(2 * n**-0.5).requires_grad_() for i in range(6)]
    found = []
    for i in range(3):
        x = noise(size, 4 * n, n, seed=i)
        for m in w:
            x = Swish.apply(x @ m)
        x.square().mean().backward()
        found.append(float(x.detach().abs().mean()))
        with torch.no_grad():
            for m in w:
                m.sub_(m.grad)
                m.grad = None
    return found, w


# ---- mathematics ----


@program("FFT, forward and backward")
def fft(size):
    import torch

    n = 64 if size.small else 4096
    x = noise(size, n, n).requires_grad_()
    y = torch.fft.fft2(x)
    z = torch.fft.irfft2(torch.fft.rfft2(x) * 2) + torch.fft.ifft2(y * y.conj()).real
    z.square().mean().backward()
    return [float(z.detach().abs().mean())], [x.grad, z, y]


@program("convolution by FFT, and short-time transforms")
def stft(size):
    import torch

    x = noise(size, 2 if size.small else 16, 4096 if size.small else 1 << 20).requires_grad_()
    window = torch.hann_window(512, device=size.device)
    s = torch.stft(x, 512, 128, window=window, return_complex=True)
    back = torch.istft(s * s.abs().clamp(max=1), 512, 128, window=window)
    back.square().mean().backward()
    return [float(back.detach().abs().mean())], [x.grad]


@program("linear algebra: solve, Cholesky, QR, inverse, with gradients")
def linear_algebra(size):
    import torch

    n, b = (16, 2) if size.small else (512, 24)
    a = noise(size, b, n, n).requires_grad_()
    spd = a @ a.mT / n + torch.eye(n, device=size.device)
    parts = [torch.linalg.solve(spd, noise(size, b, n, 64, seed=1)), torch.linalg.cholesky(spd), torch.linalg.qr(a)[1], torch.linalg.inv(spd), torch.linalg.slogdet(spd)[1]]
    sum(p.square().mean() for p in parts).backward()
    return [float(p.detach().abs().mean()) for p in parts], [a.grad, *parts]


@program("linear algebra: eigenvalues and singular values")
def decompositions(size):
    import torch

    n, b = (16, 2) if size.small else (256, 48)
    a = noise(size, b, n, n)
    values, vectors = torch.linalg.eigh(a + a.mT)
    s = torch.linalg.svdvals(a)
    lu, pivots = torch.linalg.lu_factor(a)
    return [float(values.abs().mean()), float(s.mean())], [values, vectors, s, lu, pivots]


@program("sorting, scans, histograms, unique")
def sorting(size):
    import torch

    x = noise(size, 4096 if size.small else 32 << 20)
    values, order = torch.sort(x)
    top = torch.topk(x, 1000).values
    whole = (x * 100).int()
    kinds, counts = torch.unique(whole, return_counts=True)
    return [float(values[0]), float(top[0])], [values, order, top, kinds, counts, torch.cumsum(whole, 0), torch.bincount(whole - whole.min()), torch.nonzero(x > 2)]


# ---- layers ----


def recurrent(size, kind, **kw):
    import torch
    from torch import nn

    width, length, batch = (16, 8, 2) if size.small else (512, 256, 64)
    model = getattr(nn, kind)(width, width, 2, **kw).to(size.device)
    out = width * 2 if kw.get("bidirectional") else width

    def loss(i):
        x = noise(size, length, batch, width, seed=i)

        def f():
            packed = nn.utils.rnn.pack_padded_sequence(x, torch.arange(length, 0, -max(length // batch, 1))[:batch].clamp(min=1).sort(descending=True).values)
            y, _ = nn.utils.rnn.pad_packed_sequence(model(packed)[0])
            return y.square().mean() * out

        return f

    return steps(model, [loss(i) for i in range(3)], adamw(model)), list(model.parameters())


for kind, kw in (("LSTM", {"bidirectional": True, "dropout": 0.1}), ("GRU", {"bidirectional": True}), ("RNN", {}), ("LSTM", {})):
    program(f"{kind}{', two ways, dropout' if 'dropout' in kw else ', two ways' if kw.get('bidirectional') else ''}, packed")(lambda size, kind=kind, kw=kw: recurrent(size, kind, **kw))


@program("an embedding with sparse gradients")
def sparse_embedding(size):
    import torch

    table = torch.nn.Embedding(1000 if size.small else 200_000, 256, sparse=True).to(size.device)
    optimizer, found = torch.optim.SparseAdam(table.parameters()), []
    for i in range(4):
        x = torch.randperm(table.num_embeddings, generator=torch.Generator().manual_seed(i))[: table.num_embeddings // 4].to(size.device)  # each once, so that sums have one order
        loss = table(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(float(loss.detach()))
    return found, [table.weight]


@program("convolutions: 3D, transposed, grouped, channels last")
def convolutions(size):
    import torch
    from torch import nn

    n, b = (8, 1) if size.small else (48, 4)
    model = nn.Sequential(nn.Conv3d(1, 32, 3, padding=1), nn.BatchNorm3d(32), nn.ReLU(), nn.Conv3d(32, 32, 3, padding=1, groups=4), nn.ConvTranspose3d(32, 8, 2, 2)).to(size.device)
    flat = nn.Sequential(nn.Conv2d(3, 64, 5, padding=2), nn.GroupNorm(8, 64), nn.SiLU(), nn.Conv2d(64, 64, 3, padding=1), nn.PixelShuffle(2)).to(size.device, memory_format=torch.channels_last)
    optimizer = adamw(nn.ModuleList([model, flat]))
    found = []
    for i in range(3):
        loss = model(noise(size, b, 1, n, n, n, seed=i)).square().mean() + flat(noise(size, b, 3, 4 * n, 4 * n, seed=i).to(memory_format=torch.channels_last)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        found.append(float(loss.detach()))
    return found, [*model.parameters(), *flat.parameters(), *model.buffers()]


@program("attention of torch.nn: a Transformer with masks")
def transformer(size):
    from torch import nn

    d, length = (32, 16) if size.small else (512, 256)
    model = nn.Transformer(d, 8, 2, 2, 4 * d, batch_first=True, device=size.device)
    mask = nn.Transformer.generate_square_subsequent_mask(length, device=size.device)

    def loss(i):
        a, b = noise(size, 2 if size.small else 16, length, d, seed=i), noise(size, 2 if size.small else 16, length, d, seed=i + 9)
        return lambda: (model(a, b, tgt_mask=mask) - b).square().mean()

    return steps(model, [loss(i) for i in range(3)], adamw(model)), list(model.parameters())


@program("CTC and other losses")
def ctc(size):
    import torch
    from torch.nn import functional as F

    t, b, k = (32, 2, 12) if size.small else (512, 64, 512)
    logits = noise(size, t, b, k).requires_grad_()
    targets = torch.randint(1, k, (b, t // 4), generator=torch.Generator().manual_seed(0)).to(size.device)
    lengths = torch.full((b,), t), torch.full((b,), t // 4)
    loss = F.ctc_loss(logits.log_softmax(-1), targets, *lengths) + F.kl_div(logits.log_softmax(-1), logits.detach().roll(1, 0).softmax(-1)) + F.smooth_l1_loss(logits, logits.detach().flip(0))
    loss.backward()
    return [float(loss.detach())], [logits.grad]


@program("FP8 matrix products", card=True)
def fp8(size):
    import torch

    n = 4096
    a, b = (noise(size, n, n, seed=i).to(torch.float8_e4m3fn) for i in (0, 1))
    one = torch.ones((), device=size.device)
    y = torch._scaled_mm(a, b.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
    for _ in range(3):
        y = torch._scaled_mm(y.to(torch.float8_e4m3fn), b.t(), scale_a=one * 0.01, scale_b=one, out_dtype=torch.bfloat16)
    return [float(y.float().abs().mean())], [y]


@program("weights quantised to int8")
def int8_weights(size):
    import torch

    n = 64 if size.small else 4096
    w = noise(size, n, n)
    scale = w.abs().amax(1) / 127
    q = torch.round(w / scale[:, None]).to(torch.int8)
    x = torch.randint(-100, 100, (n, n), generator=torch.Generator().manual_seed(0)).to(torch.int8).to(size.device)
    y = torch._int_mm(x, q.t()).float() * scale
    return [float(y.abs().mean())], [q, y]


# ---- optimizers ----


def optimized(size, make):
    model = mlp(size)
    return mlp_steps(model, size, 4, make(model.parameters())), list(model.parameters())


def optimizer(name, make, **kw):
    program(f"optimizer {name}", **kw)(lambda size: optimized(size, make))


def of_torch(kind, **kw):
    def make(parameters):
        import torch

        return getattr(torch.optim, kind)(parameters, **kw)

    return make


for kind, kw in (
    ("SGD", dict(lr=0.01, momentum=0.9, nesterov=True)), ("Adam", dict(amsgrad=True)), ("Adagrad", {}), ("RMSprop", dict(centered=True, momentum=0.5)), ("Adamax", {}), ("NAdam", {}), ("RAdam", {}), ("Adadelta", {}), ("ASGD", {}), ("Rprop", {}),
    ("Adafactor", {}),
):  # fmt: skip
    optimizer(kind, of_torch(kind, **kw))
optimizer("AdamW, fused", of_torch("AdamW", fused=True))
optimizer("AdamW, one tensor at a time", of_torch("AdamW", foreach=False))


def muon(parameters):
    import torch

    parameters = list(parameters)

    class Both:
        def __init__(self):
            self.parts = [torch.optim.Muon([p for p in parameters if p.ndim == 2], lr=1e-3), torch.optim.AdamW([p for p in parameters if p.ndim != 2])]

        def step(self):
            for o in self.parts:
                o.step()

        def zero_grad(self, **kw):
            for o in self.parts:
                o.zero_grad(**kw)

    return Both()


optimizer("Muon", muon)


def eight_bits(parameters):
    from torchao.optim import AdamW8bit

    return AdamW8bit(parameters)


optimizer("AdamW of 8 bits (torchao)", eight_bits, needs="torchao", slow=True)


@program("optimizer AdamW within backward, and after")
def within_backward(size):
    from penstock.optim import in_backward
    import torch

    finals, losses = [], []
    for line in (False, True):
        torch.manual_seed(0)
        model = llama(size, layers=8)
        optimizer = adamw(model, fused=True)
        hooks = in_backward(model, optimizer) if line else None
        losses += lm_steps(model, size, 3, optimizer)
        if hooks:
            hooks.remove()
        losses += lm_steps(model, size, 2, optimizer)
        finals.append([p.detach() for p in model.parameters()])
    different = sum(float((a != b).sum()) for a, b in zip(*finals))  # none: the line changes nothing
    return [*losses, different], finals[1]


@program("optimizer LBFGS")
def lbfgs(size):
    import torch

    model, x = mlp(size, depth=3), rows(size, 0)
    optimizer, found = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4, history_size=4), []

    def closure():
        optimizer.zero_grad()
        loss = (model(x) - x).square().mean()
        loss.backward()
        found.append(float(loss.detach()))
        return loss

    for _ in range(2):
        optimizer.step(closure)
    return found, list(model.parameters())


@program("fp16 with GradScaler, clipping, averaged weights")
def scaler(size):
    import torch
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    model = mlp(size)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    optimizer, scale, found = adamw(model), torch.amp.GradScaler(size.device), []
    for i in range(4):
        x = rows(size, i)
        with torch.autocast(size.device, torch.bfloat16 if size.small else torch.float16):
            loss = (model(x) - x).square().mean()
        scale.scale(loss).backward()
        scale.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scale.step(optimizer)
        scale.update()
        optimizer.zero_grad(set_to_none=True)
        average.update_parameters(model)
        found.append(float(loss.detach()))
    return found, [*model.parameters(), *average.module.parameters()]


# ---- files and data ----


@program("checkpoint: torch.save and load of model and optimizer")
def save_and_load(size):
    import torch

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint.pt"
        model = mlp(size)
        optimizer = adamw(model)
        losses = mlp_steps(model, size, 2, optimizer)
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
        again = mlp(size)
        second = adamw(again)
        state = torch.load(path, map_location=size.device)
        again.load_state_dict(state["model"])
        second.load_state_dict(state["optimizer"])
        del state
        losses += mlp_steps(again, size, 2, second)
        losses += mlp_steps(model, size, 2, optimizer)  # the same two steps
    return losses, [*again.parameters(), *model.parameters()]


@program("checkpoint: safetensors", needs="safetensors")
def safetensors_(size):
    from safetensors.torch import load_file, save_file

    with tempfile.TemporaryDirectory() as folder:
        model = mlp(size)
        losses = mlp_steps(model, size, 2)
        save_file(model.state_dict(), f"{folder}/m.safetensors")
        again = mlp(size)
        again.load_state_dict(load_file(f"{folder}/m.safetensors", device="cuda" if size.device == "cuda" else "cpu"))
        losses += mlp_steps(again, size, 2)
    return losses, list(again.parameters())


@program("checkpoint: torch.distributed.checkpoint of model and optimizer")
def distributed_checkpoint(size):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    def state_of(*pair):
        return dict(zip(("model", "optimizer"), get_state_dict(*pair)))

    with tempfile.TemporaryDirectory() as folder:
        model = mlp(size)
        optimizer = adamw(model)
        losses = mlp_steps(model, size, 2, optimizer)
        dcp.save(state_of(model, optimizer), checkpoint_id=folder)
        again = mlp(size)
        second = adamw(again)
        state = state_of(again, second)
        dcp.load(state, checkpoint_id=folder)
    set_state_dict(again, second, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    del state
    losses += mlp_steps(again, size, 2, second)
    losses += mlp_steps(model, size, 2, optimizer)  # the same two steps
    return losses, [*again.parameters(), *model.parameters()]


@program("checkpoint: save_pretrained in shards, and resume")
def save_pretrained(size):
    import torch

    with tempfile.TemporaryDirectory() as folder:
        model = llama(size)
        optimizer = adamw(model)
        losses = lm_steps(model, size, 2, optimizer)
        model.save_pretrained(folder, max_shard_size="40KB" if size.small else "40MB")
        shards = len(list(Path(folder).glob("*.safetensors")))
        torch.save(optimizer.state_dict(), f"{folder}/optimizer.pt")
        again = type(model).from_pretrained(folder).to(size.device).train()
        second = adamw(again)
        second.load_state_dict(torch.load(f"{folder}/optimizer.pt", map_location=size.device))
    losses += lm_steps(again, size, 2, second)
    losses += lm_steps(model, size, 2, optimizer)  # the same two steps
    return [*losses, shards], [*again.parameters(), *model.parameters()]


@program("a loader that prefetches on a stream of its own", card=True)
def prefetching(size):
    import torch

    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return 8 * 2048

        def __getitem__(self, i):
            return torch.full((1024,), i / (8 * 2048)) + torch.arange(1024) / 1024

    class Prefetch:
        def __init__(self, loader):
            self.loader, self.side = iter(loader), torch.cuda.Stream()
            self.load()

        def load(self):
            self.next = next(self.loader, None)
            if self.next is not None:
                with torch.cuda.stream(self.side):
                    self.next = self.next.to("cuda", non_blocking=True)

        def __iter__(self):
            while self.next is not None:
                torch.cuda.current_stream().wait_stream(self.side)
                x = self.next
                x.record_stream(torch.cuda.current_stream())
                self.load()
                yield x

    model = mlp(size)
    optimizer, losses = adamw(model), []
    for x in Prefetch(torch.utils.data.DataLoader(Rows(), batch_size=2048, num_workers=2, pin_memory=True)):
        loss = (model(x) - x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(float(loss.detach()))
    return losses, list(model.parameters())


# PyTorch says of managed memory that it is kDLCUDAManaged, device type 13, which CuPy does not take.
@program("DLPack and CuPy: views, a kernel of its own, a copy", needs="cupy", card=True, refused="Unsupported device_type: 13")
def cupy_(size):
    import cupy
    import torch

    x = noise(size, 32 << 20)
    y = torch.zeros_like(x)
    a, b = cupy.from_dlpack(x), cupy.from_dlpack(y)
    kernel = cupy.RawKernel('extern "C" __global__ void axpy(const float *x, float *y, long n) { long i = blockIdx.x * 256L + threadIdx.x; if (i < n) y[i] += 2 * x[i]; }', "axpy")
    found = []
    for i in range(3):
        pressure = noise(size, 48 << 20, seed=i) + 1  # what makes the others leave
        found.append(float(pressure.sum()))
        with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
            kernel((a.size // 256,), (256,), (a, b, a.size))
            b += a
        z = torch.from_dlpack(b)
        found.append(float(z.abs().mean()))
    return found, [x, y]


@program("Triton, a kernel with autotuning", needs="triton", card=True, slow=True)
def triton_(size):
    from triton_kernel import scaled_add

    x, y = noise(size, 32 << 20), noise(size, 32 << 20, seed=1)
    for i in range(3):
        pressure = noise(size, 48 << 20, seed=i) + 1
        y = scaled_add(x, y, 0.5)
        del pressure
    return [float(y.abs().mean())], [y]


@program("two streams with events, and record_stream", card=True)
def streams(size):
    import torch

    a, b = torch.cuda.Stream(), torch.cuda.Stream()
    blocks = [noise(size, 16 << 20, seed=i) for i in range(12)]
    torch.cuda.synchronize()
    for turn in range(3):
        for i, t in enumerate(blocks):
            mine, other = (a, b) if i % 2 else (b, a)
            with torch.cuda.stream(mine):
                t.mul_(1.5).add_(turn)
                u = t * 2
            other.wait_stream(mine)
            with torch.cuda.stream(other):
                t.sub_(u)
                u.record_stream(other)
            mine.wait_stream(other)
    torch.cuda.synchronize()
    return [float(t.double().mean()) for t in blocks], blocks


@program("tensors that are resized, viewed and shared between modules")
def views(size):
    import torch

    x = noise(size, 4096 if size.small else 64 << 20)
    parts = x.view(16, -1).unbind(0)
    for i, p in enumerate(parts):
        p.mul_(i + 1)
    y = x.view(torch.int32).bitwise_and(0x7FFFFFFF).view(torch.float32)
    z = torch.empty(0, device=size.device)
    torch.add(x, y, out=z.resize_(x.shape))
    w = torch.as_strided(z, (16, z.numel() // 32), (z.numel() // 16, 2)).contiguous()
    return [float(w.double().mean())], [x, z, w]
