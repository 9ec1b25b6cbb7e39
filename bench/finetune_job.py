"""A full fine-tune of a language model, in one of the ways that people choose when memory is short.

    python3 finetune_job.py JOB STEPS [--way WAY] [--batch 4] [--length 2048] [--accumulate 1] [--deterministic] [--progress FILE]

Weights are random, of the same seed in every way, and so are the tokens. A way is a class: what it has of its own is what a user's script has to
change, and `lines_changed` counts it. Prints a JSON line. Ends itself when the host's memory would not do.
"""

import argparse
import ast
import inspect
import json
import os
import resource
import socket
import sys
import textwrap
import threading
import time

from workloads import checksums, layers

LLAMA = ("LlamaConfig", "LlamaForCausalLM")
QWEN3 = ("Qwen3Config", "Qwen3ForCausalLM")
LLAMA_8B = dict(hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8, vocab_size=128256)
SMALL = dict(hidden_size=768, intermediate_size=2048, num_hidden_layers=12, num_attention_heads=12, num_key_value_heads=4, vocab_size=32000)
TINY = dict(hidden_size=256, intermediate_size=704, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4, vocab_size=2048)

# amp: weights and the optimizer's states are fp32, computed is in bf16. Otherwise weights and states are bf16.
JOBS = {
    "llama3b": dict(family=LLAMA, amp=True, shape=dict(hidden_size=3072, intermediate_size=8192, num_hidden_layers=28, num_attention_heads=24, num_key_value_heads=8, vocab_size=128256, tie_word_embeddings=True)),
    "llama8b": dict(family=LLAMA, amp=True, shape=LLAMA_8B),
    "llama8b-bf16": dict(family=LLAMA, amp=False, shape=LLAMA_8B),
    "qwen14b-bf16": dict(family=QWEN3, amp=False, shape=dict(hidden_size=5120, intermediate_size=17408, num_hidden_layers=40, num_attention_heads=40, num_key_value_heads=8, head_dim=128, vocab_size=151936)),
    "small": dict(family=LLAMA, amp=True, shape=dict(SMALL, tie_word_embeddings=True)),
    "small-bf16": dict(family=QWEN3, amp=False, shape=dict(SMALL, head_dim=64)),
    "tiny": dict(family=LLAMA, amp=True, shape=dict(TINY, tie_word_embeddings=True)),
    "tiny-bf16": dict(family=QWEN3, amp=False, shape=dict(TINY, head_dim=32)),
}  # fmt: skip

LR, WEIGHT_DECAY = 1e-5, 0.01
BLOCK = 1 << 22  # weights that are drawn; they repeat


def materialise(model, weights_on, device):
    """Gives a model without memory its weights, and the rest of it where it is computed."""
    import torch

    model.to_empty(device=weights_on)
    drawn = torch.empty(BLOCK).uniform_(-0.02, 0.02, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for name, p in model.named_parameters():
            flat = (p.to_local() if hasattr(p, "to_local") else p).view(-1)
            block = drawn.to(flat.device, flat.dtype)
            for part in flat.split(BLOCK):
                part.fill_(1) if "norm" in name else part.copy_(block[: part.numel()])
    if model.config.tie_word_embeddings:
        model.tie_weights()
    with torch.device(device):
        model.model.rotary_emb = type(model.model.rotary_emb)(model.config)


class Stock:
    """Everything on the GPU, as the script is written."""

    needs = None  # a module that may not be installed
    card = False  # it does not run on a CPU
    parts = True  # gradients may be summed over parts of a batch
    weights_on = None  # where they lie between steps, unless it is where they are used

    def __init__(self, a):
        self.a, self.device, self.amp = a, a.device, JOBS[a.job]["amp"]

    def build(self):
        """The model, still without memory."""
        import torch
        import transformers

        family, shape = JOBS[self.a.job]["family"], JOBS[self.a.job]["shape"]
        config = getattr(transformers, family[0])(max_position_embeddings=8192, use_cache=False, **shape)
        torch.set_default_dtype(torch.float32 if self.amp else torch.bfloat16)
        with torch.device("meta"):
            model = getattr(transformers, family[1])(config)
        torch.set_default_dtype(torch.float32)
        if config.tie_word_embeddings:
            model.tie_weights()
        return model.train()

    # What follows are the lines of a script: those of the ways below differ from these.

    def wrap(self, model):
        pass

    def begin(self, model):
        import torch

        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=WEIGHT_DECAY, fused=True)

    def loss(self, ids):
        import torch

        with torch.autocast(self.device, torch.bfloat16, enabled=self.amp):
            return self.model(input_ids=ids, labels=ids).loss

    def backward(self, loss):
        (loss / self.a.accumulate).backward()

    def step(self):
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


SCRIPT = ("wrap", "begin", "loss", "backward", "step")


class Checkpointing(Stock):
    """The model's own switch: it computes again instead of keeping."""

    def begin(self, model):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        super().begin(model)


class InBackward(Checkpointing):
    """Checkpointing, and penstock.optim.in_backward."""

    parts = False

    def begin(self, model):
        import penstock.optim

        super().begin(model)
        penstock.optim.in_backward(model, self.optimizer)


class Fsdp2(Checkpointing):
    """FSDP2 on one GPU: weights, gradients and the optimizer's states are in host memory, and the CPU steps."""

    weights_on = "cpu"

    def wrap(self, model):
        import torch
        import torch.distributed as dist
        from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

        dist.init_process_group("cpu:gloo,cuda:nccl" if self.device == "cuda" else "gloo")
        mesh = dist.device_mesh.init_device_mesh(self.device, (1,))
        types = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if self.amp else MixedPrecisionPolicy()
        for block in (*layers(model), model):
            fully_shard(block, mesh=mesh, mp_policy=types, offload_policy=CPUOffloadPolicy(pin_memory=self.device == "cuda"))

    def loss(self, ids):
        return self.model(input_ids=ids, labels=ids).loss


class Torchao(Checkpointing):
    """torchao's CPUOffloadOptimizer: the states are in host memory, and the CPU steps; gradients too, where they are not summed over parts."""

    needs, card = "torchao", True

    def begin(self, model):
        import torch
        from torchao.optim import CPUOffloadOptimizer

        super().begin(model)
        self.optimizer = CPUOffloadOptimizer(model.parameters(), torch.optim.AdamW, offload_gradients=self.a.accumulate == 1, fused=True, lr=LR, weight_decay=WEIGHT_DECAY)


class ZeroOffload(Checkpointing):
    """DeepSpeed ZeRO-Offload: weights in bf16 on the GPU, the optimizer's states and its own weights in host memory, DeepSpeed's Adam on the CPU."""

    needs, weights_on = "deepspeed", "cpu"

    def zero(self):
        return {
            "stage": 2,
            "offload_optimizer": {"device": "cpu", "pin_memory": self.device == "cuda"},
        }

    def begin(self, model):
        import deepspeed

        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        config = {
            "train_micro_batch_size_per_gpu": self.a.batch,
            "gradient_accumulation_steps": self.a.accumulate,
            "bf16": {"enabled": True, "bf16_master_weights_and_grads": not self.amp, "bf16_optimizer_states": not self.amp},
            "optimizer": {"type": "AdamW", "params": {"lr": LR, "weight_decay": WEIGHT_DECAY}},
            "zero_optimization": self.zero(),
        }
        self.model, self.optimizer, _, _ = deepspeed.initialize(model=model.bfloat16(), config=config)

    def loss(self, ids):
        return self.model(input_ids=ids, labels=ids).loss

    def backward(self, loss):
        self.model.backward(loss)
        self.model.step()  # it counts the parts

    def step(self):
        pass


class Zero3Offload(ZeroOffload):
    """DeepSpeed ZeRO-3 with offload: the weights are in host memory, too."""

    def zero(self):
        return {
            "stage": 3,
            "offload_optimizer": {"device": "cpu", "pin_memory": self.device == "cuda"},
            "offload_param": {"device": "cpu", "pin_memory": self.device == "cuda"},
        }


WAYS = {
    "stock": Stock, "checkpointing": Checkpointing, "in-backward": InBackward, "fsdp2-offload": Fsdp2, "torchao": Torchao, "zero-offload": ZeroOffload, "zero3-offload": Zero3Offload,
}  # fmt: skip


def lines_changed(way):
    """How many lines of a way's script are not those of the stock script."""
    return sum(_lines(way.__mro__, name) for name in (*SCRIPT, "zero"))


def _lines(kinds, name):
    own = next((i for i, kind in enumerate(kinds) if name in vars(kind)), None)
    if own is None or kinds[own] is Stock:
        return 0
    method = ast.parse(textwrap.dedent(inspect.getsource(vars(kinds[own])[name]))).body[0]
    count = 0
    for statement in method.body:
        text = ast.unparse(statement)
        if text == f"super().{name}(model)":
            count += _lines(kinds[own + 1 :], name)
        elif text != "import torch":  # which the stock script has
            count += statement.end_lineno - statement.lineno + 1
    return count


def guard_host(limit_bytes):
    """Ends this process when it takes more of the host's memory than that: others are on the machine."""

    def watch():
        page = os.sysconf("SC_PAGE_SIZE")
        while True:
            with open("/proc/self/statm") as f:
                if int(f.read().split()[1]) * page > limit_bytes:
                    print(f"HOST MEMORY: more than {limit_bytes / 2**30:.0f} GiB", file=sys.stderr, flush=True)
                    os._exit(1)
            time.sleep(0.2)

    threading.Thread(target=watch, daemon=True).start()


def one_rank():
    """The environment of a job of one process, for those ways that are made for several."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(s.getsockname()[1]), RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("job", choices=JOBS)
    p.add_argument("steps", type=int)
    p.add_argument("--way", choices=WAYS, default="stock")
    p.add_argument("--batch", type=int, default=4, help="rows of a forward pass")
    p.add_argument("--length", type=int, default=2048)
    p.add_argument("--accumulate", type=int, default=1, help="forward passes of a step")
    p.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    p.add_argument("--seconds", type=float, default=1e9, help="no step is begun that would end later")
    p.add_argument("--host-limit", type=float, default=100, metavar="GIB")
    p.add_argument("--deterministic", action="store_true", help="deterministic algorithms; parameter checksums at the end")
    p.add_argument("--progress", metavar="FILE", help="append a JSON line for each step")
    a = p.parse_args()
    began = time.perf_counter()
    guard_host(int(a.host_limit * 2**30))
    one_rank()
    if a.deterministic:
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # read when cuBLAS starts

    import torch

    torch.manual_seed(0)
    if a.deterministic:
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False

    way = WAYS[a.way](a)
    model = way.build()
    way.wrap(model)
    materialise(model, way.weights_on or a.device, a.device)
    parameters = sum(p.numel() for p in model.parameters())
    way.begin(model)
    cuda = a.device == "cuda"
    if cuda:
        torch.cuda.synchronize()
    built_s = time.perf_counter() - began
    running = sys.modules.get("penstock") if "penstock._runtime" in sys.modules else None
    before = running.stats() if running else None
    seconds, losses, stats = [], [], []
    vocabulary = model.config.vocab_size
    for i in range(a.steps):
        if seconds and time.perf_counter() - began + seconds[-1] > a.seconds:
            break
        parts = [torch.randint(0, vocabulary, (a.batch, a.length), generator=torch.Generator().manual_seed(1000 * i + k)) for k in range(a.accumulate)]
        started = time.perf_counter()
        total = 0.0
        for ids in parts:
            loss = way.loss(ids.to(a.device))
            way.backward(loss)
            total = total + loss.detach()
            del loss
        way.step()
        if cuda:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
        losses.append(float(total) / a.accumulate)
        line = {"iteration": i, "iter_s": seconds[-1], "loss": losses[-1]}
        if running:
            stats.append(running.stats())
            line.update(stats=stats[-1], stats_before=before)
        if a.progress:
            with open(a.progress, "a") as f:
                f.write(json.dumps(line) + "\n")

    result = {
        "model": a.job, "way": a.way, "iter_s": seconds, "loss": losses, "built_s": built_s, "parameters": parameters,
        "host_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, "peak_allocated_bytes": torch.cuda.max_memory_allocated() if cuda else None,
        "deterministic": a.deterministic, "penstock_loaded": running is not None,
    }  # fmt: skip
    if a.deterministic:
        result["parameter_checksums"] = checksums(model.parameters())
    if running:
        result.update(stats_before=before, stats=stats)
    print(json.dumps(result), flush=True)
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
