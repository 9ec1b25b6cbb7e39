"""Training workloads: an ordinary user's script. It knows nothing of memory tricks.

    python3 workloads.py MODEL[,MODEL...] ITERS[,ITERS...] [--deterministic] [--progress FILE]

Prints one JSON line for each model, and gives memory back between them. Seconds of an
iteration include a synchronisation at its end. --progress appends a JSON line to a file after each
iteration, for whoever has to end this program early.

--on-device builds the model where it is trained, in its own type, which is much
faster than on the host and trains the same. --lengths SEED draws the length of the
sequences anew for each iteration. --warm-up N resets the peaks after N iterations.
--no-fill leaves uninitialised memory alone under --deterministic. --caps finds out how
little device memory is enough: for ITERS iterations under each cap, lowest first. --when-asked
trains as other processes take turns with it (bench/turns.py). --kernels N tells how long kernels
run, which the CPU has no part in.

--captured makes a step one CUDA graph, --compile compiles the model.

--no-gc does without Python's cyclic garbage collector after the first iteration.

dispatch_s is how long an iteration took to launch, before it was waited for; threads,
what each thread did in one of the last half: CPU seconds in programs, in the kernel, and page faults;
disturbances, what else happened in one: interrupts and stolen time are the whole machine's.

PENSTOCK_BENCH_STATS=1 adds penstock.stats() after each iteration, outside the
timed part, when something else has already loaded the module penstock.
"""

import argparse
import contextlib
import gc
import glob
import json
import os
import random
import resource
import sys
import time

LLAMA = dict(
    hidden_size=2048, intermediate_size=5632, num_hidden_layers=22, num_attention_heads=32, num_key_value_heads=4, vocab_size=32000
)
MIXTRAL = dict(
    hidden_size=1024, intermediate_size=2816, num_hidden_layers=12, num_attention_heads=16, num_key_value_heads=4,
    num_local_experts=8, num_experts_per_tok=2, vocab_size=32000,
)  # fmt: skip


class Settings:
    """What the command line changes of a model."""

    on_device = False
    lengths = None  # random.Random: of the sequences
    optimizer = "loop"  # how a language model's works: tensor by tensor, many in a launch (foreach), all of a step in one kernel (fused)
    batch = None


def layers(model):
    """The blocks of a language model."""
    import torch

    return next(m for m in model.modules() if isinstance(m, torch.nn.ModuleList) and len(m) > 1)


def offload_all(model):
    """FSDP2 on one GPU: parameters, gradients and the optimizer's state are in host memory."""
    import torch.distributed as dist
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

    if not dist.is_initialized():
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511")
        dist.init_process_group("cpu:gloo,cuda:nccl", rank=0, world_size=1)
    for block in (*layers(model), model):
        fully_shard(block, offload_policy=CPUOffloadPolicy())
    return model


def on_device(make, bf16=True, device="cuda"):
    """The module that make makes, where it is to be trained, in its type from the start."""
    import torch

    torch.set_default_dtype(torch.bfloat16 if bf16 else torch.float32)
    try:
        with torch.device(device):
            return make().train()
    finally:
        torch.set_default_dtype(torch.float32)


def language_model(family, batch, length, bf16=True, autocast=False, checkpointing=False, lora=False, instead=None, **options):
    """autocast: weights stay fp32. instead: what users take when memory is short, "fsdp-offload" or "save-on-cpu"."""
    import torch
    import transformers

    config = getattr(transformers, family[0])(**options)
    config.use_cache = False
    bf16 = bf16 and not autocast
    if Settings.on_device and instead != "fsdp-offload":
        model = on_device(lambda: getattr(transformers, family[1])(config), bf16)
    else:
        model = getattr(transformers, family[1])(config)
        if bf16:
            model = model.to(torch.bfloat16)
    model = (offload_all(model) if instead == "fsdp-offload" else model.to("cuda")).train()
    if checkpointing:
        model.gradient_checkpointing_enable()
    if lora:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(r=16, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))
        if checkpointing:
            model.enable_input_require_grads()
    way = "fused" if instead == "fsdp-offload" else Settings.optimizer  # on the CPU the only fast one
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4, fused=way == "fused", foreach=way == "foreach")
    saving = torch.autograd.graph.save_on_cpu(pin_memory=True) if instead == "save-on-cpu" else contextlib.nullcontext()

    def step():
        # At most the usual length, at least an eighth of it, by 64.
        drawn = Settings.lengths.randint(length // 512, length // 64) * 64 if Settings.lengths else length
        ids = torch.randint(0, config.vocab_size, (Settings.batch or batch, drawn), device="cuda")
        with saving, torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    return model, step


def vision_model(name, batch, changed=lambda model: model, adam=False, checkpointing=False):
    import timm
    import torch

    model = changed(timm.create_model(name, num_classes=1000)).to("cuda").train()
    if checkpointing:
        model.set_grad_checkpointing(True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4) if adam else torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    criterion = torch.nn.CrossEntropyLoss()

    def step():
        images = torch.randn(Settings.batch or batch, 3, 224, 224, device="cuda")
        labels = torch.randint(0, 1000, (Settings.batch or batch,), device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    return model, step


def multilayer(width=8192, depth=8, batch=16384):
    """A multilayer perceptron: 2 GiB of weights, and as much of activations four times over."""
    import torch

    with torch.device("cuda"):
        model = torch.nn.Sequential(*(m for _ in range(depth) for m in (torch.nn.Linear(width, width), torch.nn.GELU()))).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def step():
        x = torch.randn(Settings.batch or batch, width, device="cuda")
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    return model, step


def captured(step):
    """The step as a CUDA graph of all that it does, after three that are launched one by one."""
    import torch

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()

    def replay(_step=step):  # a graph does not keep what it names, such as the optimizer's state: the step does
        graph.replay()
        return loss

    return replay


GPT2 = ("GPT2Config", "GPT2LMHeadModel")
BERT = ("BertConfig", "BertForMaskedLM")
LLAMA_LM = ("LlamaConfig", "LlamaForCausalLM")
MIXTRAL_LM = ("MixtralConfig", "MixtralForCausalLM")


def gpt2_medium(**how):
    return language_model(GPT2, 4, 512, n_embd=1024, n_layer=24, n_head=16, **how)


def gpt2_large(batch=8, **how):
    return language_model(GPT2, batch, 1024, bf16=False, n_embd=1280, n_layer=36, n_head=20, **how)


def llama_1b(batch=4, **how):
    return language_model(LLAMA_LM, batch, 2048, **LLAMA, **how)


def bert_large(**how):
    return language_model(BERT, 16, 512, autocast=True, hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096, **how)


def vit_large(**how):
    return vision_model("vit_large_patch16_224", 64, adam=True, **how)


MODELS = {
    "gpt2m": gpt2_medium,
    "gpt2m-ckpt": lambda: gpt2_medium(checkpointing=True),
    "gpt2m-fsdp-offload": lambda: gpt2_medium(instead="fsdp-offload"),
    "gpt2l": gpt2_large,
    "gpt2l-ckpt": lambda: gpt2_large(checkpointing=True),
    "gpt2l-fsdp-offload": lambda: gpt2_large(instead="fsdp-offload"),
    "gpt2l-fsdp-offload-ckpt": lambda: gpt2_large(instead="fsdp-offload", checkpointing=True),
    "gpt2l-save-on-cpu": lambda: gpt2_large(instead="save-on-cpu"),
    "gpt2l-b28": lambda: gpt2_large(28),  # about 158 GiB: no card has it
    "llama1b": llama_1b,
    "llama1b-ckpt": lambda: llama_1b(checkpointing=True),
    "llama1b-fsdp-offload": lambda: llama_1b(instead="fsdp-offload"),
    "llama1b-lr": lambda: llama_1b(8, checkpointing=True, lora=True),
    "llama1b-r": lambda: llama_1b(8, checkpointing=True),
    "llama1b-lengths": llama_1b,
    "bertl": bert_large,
    "bertl-ckpt": lambda: bert_large(checkpointing=True),
    "bertl-fsdp-offload": lambda: bert_large(instead="fsdp-offload"),
    "moe": lambda: language_model(MIXTRAL_LM, 4, 1024, **MIXTRAL),
    "mlp": multilayer,
    "resnet50": lambda: vision_model("resnet50", 128),
    "resnet152": lambda: vision_model("resnet152", 128),
    "resnet152-ckpt": lambda: vision_model("resnet152", 128, checkpointing=True),
    "vitl": vit_large,
    "vitl-ckpt": lambda: vit_large(checkpointing=True),
}

DRAWN = ("llama1b-lengths",)  # as with --lengths 1


def checksums(parameters):
    """A sum and an alternating sum over the bits of all parameters: equal for equal models."""
    import torch

    words = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    plain = alternating = 0
    for i, p in enumerate(parameters):
        own = p.to_local() if hasattr(p, "to_local") else p  # of a sharded one what is here
        bits = own.detach().contiguous().view(-1).view(words[p.element_size()])
        plain += (i + 1) * int(bits.sum(dtype=torch.int64))
        alternating += (i + 1) * int(bits[::2].sum(dtype=torch.int64))
    return [plain, alternating]


def loaded_penstock():
    """The module penstock when it was loaded by someone else and statistics are asked for."""
    return sys.modules.get("penstock") if os.environ.get("PENSTOCK_BENCH_STATS") == "1" else None


def recording_switch():
    """Stops (0) or goes on with (1) the recording of this process."""
    import ctypes

    path = next(line.rstrip().split(maxsplit=5)[-1] for line in open("/proc/self/maps") if line.rstrip().endswith("/libpenstock.so"))
    switch = ctypes.CDLL(path).penstock_record

    def record(on):
        if switch(int(on)):
            raise RuntimeError("this process is not recorded: give --trace to penstock run")

    return record


def work_of_threads():
    """CPU seconds of each of the process's threads, in programs and in the kernel, and its page faults, by number and name."""
    ticks, work = os.sysconf("SC_CLK_TCK"), {}
    for task in glob.glob("/proc/self/task/*"):
        try:
            with open(task + "/stat") as f:
                name, fields = f.read().partition(" (")[2].rpartition(") ")[::2]
        except OSError:
            continue  # the thread has ended
        faults, (user, system) = fields.split()[7], fields.split()[11:13]
        work[os.path.basename(task) + " " + name] = (int(user) / ticks, int(system) / ticks, int(faults))
    return work


def disturbances():
    """What takes time from the process's threads, as counts since it began, or since the machine did."""
    r = resource.getrusage(resource.RUSAGE_SELF)
    counts = {"page_faults": r.ru_minflt, "switches": r.ru_nvcsw, "forced_switches": r.ru_nivcsw}
    with contextlib.suppress(OSError):  # which may not be readable, or be without one of these
        with open("/proc/interrupts") as f:
            for line in f:
                kind, _, rest = line.strip().partition(":")
                if kind in ("TLB", "RES", "CAL", "LOC"):
                    counts["interrupts_" + kind] = sum(int(x) for x in rest.split() if x.isdigit())
        with open("/proc/stat") as f:
            counts["stolen_seconds"] = int(f.readline().split()[8]) / os.sysconf("SC_CLK_TCK")
    return counts


def each_iteration(before, after, iterations):
    """How much was added in an iteration."""
    return {name: round((n - before.get(name, 0)) / iterations, 4) for name, n in after.items()}


def busiest(before, after, iterations):
    """What threads did in an iteration that took at least 0.1 ms of CPU in it, the busiest first."""
    each = {name: [(x - y) / iterations for x, y in zip(w, before.get(name, (0, 0, 0)))] for name, w in after.items()}
    return {name: [round(x, 5) for x in w] for name, w in sorted(each.items(), key=lambda x: -sum(x[1][:2])) if sum(w[:2]) >= 1e-4}


def requested_peak():
    """Most bytes that were asked for at a time; None where the allocator does not say."""
    import torch

    stats = torch.cuda.memory_stats()
    return stats.get("requested_bytes.all.peak") or None


def release(model):
    """Gives back what an iteration, perhaps one that failed, has left."""
    import torch

    for p in model.parameters():
        p.grad = None
    gc.collect()
    torch.cuda.empty_cache()


def trains(model, step, iters, cap_bytes):
    """Trains under a cap of device memory. What the allocator says when it gives up, else None."""
    import torch

    torch.cuda.set_per_process_memory_fraction(min(1.0, cap_bytes / torch.cuda.get_device_properties(0).total_memory))
    message = None
    try:
        for _ in range(iters):
            float(step().detach())
    except torch.OutOfMemoryError as e:
        message = str(e).splitlines()[0][:300]
    torch.cuda.set_per_process_memory_fraction(1.0)
    release(model)
    return message


def least_cap(name, model, step, iters, ratios, usual_batch):
    """The least cap, of some ratios of what is asked for, that a job trains under; and the largest batch that does under the second."""
    import torch

    Settings.batch = usual_batch
    for _ in range(3):
        float(step().detach())
    requested = requested_peak() or torch.cuda.max_memory_allocated()
    release(model)
    tried = []
    for ratio in ratios:
        tried.append({"ratio": ratio, "message": trains(model, step, iters, ratio * requested)})
        if tried[-1]["message"] is None:
            break
    batch, cap, message = usual_batch, ratios[1] * requested, None
    if all(t["message"] for t in tried if t["ratio"] <= ratios[1]):
        message = next(t["message"] for t in reversed(tried) if t["ratio"] <= ratios[1])
        while (batch := batch - 1) > 0:
            Settings.batch = batch
            if trains(model, step, iters, cap) is None:
                break
    return {"model": name, "requested_bytes": requested, "caps": tried, "cap_bytes": cap, "usual_batch": usual_batch, "largest_batch": batch, "message": message}


def kernel_seconds(step, iterations):
    """What the kernels, copies and fills of each iteration take on the GPU, whatever the CPU does in between."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    seconds = []
    for _ in range(iterations):
        with profile(activities=[ProfilerActivity.CUDA]) as p:
            step()
            torch.cuda.synchronize()
        seconds.append(sum(e.self_device_time_total for e in p.key_averages()) / 1e6)
    return seconds


def when_asked(step):
    """Does as many iterations as each line of standard input says, and answers with the seconds that they took."""
    import torch

    for line in sys.stdin:
        seconds, losses = [], []
        for _ in range(int(line)):
            began = time.perf_counter()
            loss = step()
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - began)
            losses.append(float(loss.detach()))
        print(json.dumps({"iter_s": seconds, "loss": losses}), flush=True)


def main():
    parser = argparse.ArgumentParser(description="Train a model for some iterations on random data.")
    parser.add_argument("models", metavar="MODEL", help="of " + ", ".join(sorted(MODELS)))
    parser.add_argument("iters", metavar="ITERS", help="one number for all, or one for each")
    parser.add_argument("--deterministic", action="store_true", help="deterministic algorithms; parameter checksums at the end")
    parser.add_argument("--progress", metavar="FILE", help="append a JSON line for each iteration")
    parser.add_argument("--on-device", action="store_true", help="build the model on the GPU")
    parser.add_argument("--lengths", type=int, metavar="SEED", help="draw the sequence length of each iteration")
    parser.add_argument("--warm-up", type=int, default=0, metavar="N", help="reset the peaks after N iterations")
    parser.add_argument("--record-turns", type=int, metavar="N", help="after N iterations record by turns: one, not two, one, and again")
    parser.add_argument("--turn-seconds", type=float, metavar="S", help="take turns for so long, whatever is left of the iterations")
    parser.add_argument("--no-fill", action="store_true", help="do not fill uninitialised memory under --deterministic")
    parser.add_argument("--no-gc", action="store_true", help="no cyclic garbage collection by Python after the first iteration")
    parser.add_argument("--when-asked", action="store_true", help="a line on stdin says how many iterations to do next, a JSON line answers; ITERS is not used")
    parser.add_argument("--optimizer", default="loop", choices=["loop", "foreach", "fused"], help="of language models: a tensor at a time, operation by operation over many (PyTorch's default), or a kernel for all of a step")
    parser.add_argument("--captured", action="store_true", help="each step is one launch of a CUDA graph; not of models that AdamW trains")
    parser.add_argument("--compile", metavar="MODE", help="the model is compiled, in a mode of torch.compile: default, reduce-overhead, max-autotune")
    parser.add_argument("--kernels", type=int, metavar="N", help="profile N more iterations: kernel_s is what their kernels took on the GPU, in each")
    parser.add_argument("--caps", metavar="BATCH,RATIO,RATIO[,...]", help="for a batch: ratios of what it asks for, lowest first")
    args = parser.parse_args()
    Settings.on_device, Settings.optimizer = args.on_device, args.optimizer
    models, iters = args.models.split(","), [int(n) for n in args.iters.split(",")]
    unknown = [m for m in models if m not in MODELS]
    if unknown:
        parser.error(f"{unknown[0]!r} is unknown: choose from {', '.join(sorted(MODELS))}")
    if len(iters) == 1:
        iters *= len(models)
    if len(iters) != len(models) or min(iters) < 1:
        parser.error("one number of iterations, or one for each model; at least one iteration")
    if args.deterministic:
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # read when cuBLAS starts

    import torch

    if args.deterministic:
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.deterministic = True
        if args.no_fill:
            torch.utils.deterministic.fill_uninitialized_memory = False
    for model, n in zip(models, iters):
        train(model, n, args)


def train(name, iters, args):
    """Trains one model and prints its line. Nothing of it is left afterwards."""
    import torch

    torch.manual_seed(0)
    if args.lengths is not None or name in DRAWN:
        Settings.lengths = random.Random(args.lengths or 1)
    began = time.perf_counter()
    model, step = MODELS[name]()
    if args.compile:
        model.compile(mode=args.compile)
    torch.cuda.synchronize()
    build_s = time.perf_counter() - began
    if args.caps:
        batch, *ratios = (float(x) for x in args.caps.split(","))
        found = least_cap(name, model, step, iters, ratios, int(batch))
        print(json.dumps({**found, "penstock_loaded": "penstock" in sys.modules, "torch": torch.__version__}), flush=True)
        return
    if args.captured:
        step = captured(step)
    if args.when_asked:
        when_asked(step)
        return
    if not args.captured:  # what a graph uses is taken while it is captured
        torch.cuda.reset_peak_memory_stats()

    penstock = loaded_penstock()
    before = penstock.stats() if penstock else None
    seconds, dispatched, losses, stats = [], [], [], []
    threads_before, counts_before = {}, {}
    reserved, recorded = [], []
    switch = recording_switch() if args.record_turns else None
    turns_end = None
    for i in range(iters):
        if switch and i >= args.record_turns:
            if turns_end is None and args.turn_seconds:
                turns_end = time.perf_counter() + args.turn_seconds
            if turns_end and time.perf_counter() >= turns_end and len(recorded) % 4 == 0:
                break
            recorded.append((i - args.record_turns) % 4 in (0, 3))
            switch(recorded[-1])
        if args.warm_up and i == args.warm_up:
            torch.cuda.reset_peak_memory_stats()
        if args.no_gc and i == 1:
            gc.collect()
            gc.disable()
        if i == iters // 2:
            threads_before, counts_before = work_of_threads(), disturbances()
        began = time.perf_counter()
        loss = step()
        dispatched.append(time.perf_counter() - began)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
        losses.append(float(loss.detach()))
        reserved.append(torch.cuda.memory_reserved())
        if penstock:
            stats.append(penstock.stats())
        if args.progress:
            line = {"iteration": i, "iter_s": seconds[-1], "loss": losses[-1]}
            if penstock:
                line.update(stats=stats[-1], stats_before=before)
            with open(args.progress, "a") as f:
                f.write(json.dumps(line) + "\n")

    half = max(1, len(seconds) - iters // 2)
    kernel_s = kernel_seconds(step, args.kernels) if args.kernels else None
    result = {
        "model": name, "iter_s": seconds, "loss": losses,
        "dispatch_s": dispatched, "threads": busiest(threads_before, work_of_threads(), half), "disturbances": each_iteration(counts_before, disturbances(), half),
        "peak_allocated_bytes": torch.cuda.max_memory_allocated(), "peak_reserved_bytes": torch.cuda.max_memory_reserved(),
        "peak_requested_bytes": requested_peak(), "reserved_bytes": reserved, "warm_up": args.warm_up,
        "kernel_s": kernel_s, "recorded": recorded, "deterministic": args.deterministic, "build_s": build_s, "parameters": sum(p.numel() for p in model.parameters()),
        "penstock_loaded": "penstock" in sys.modules, "torch": torch.__version__, "cuda": torch.version.cuda,
    }  # fmt: skip
    if args.deterministic:
        result["parameter_checksums"] = checksums(model.parameters())
    for package in ("transformers", "timm"):
        if package in sys.modules:
            result[package] = getattr(sys.modules[package], "__version__", None)
    if penstock:
        result.update(stats_before=before, stats=stats)
    print(json.dumps(result), flush=True)
    Settings.lengths = None
    gc.enable()
    del model, step, loss
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
