"""Training workloads: an ordinary user's script. It knows nothing of memory tricks.

    python3 workloads.py MODEL ITERS [--deterministic] [--progress FILE]

Prints one JSON line at the end. Seconds of an iteration include a
synchronisation at its end. --progress appends a JSON line to a file after each
iteration, for whoever has to end this program early.

PENSTOCK_BENCH_STATS=1 adds penstock.stats() after each iteration, outside the
timed part, when something else has already loaded the module penstock.
"""

import argparse
import json
import os
import sys
import time

LLAMA = dict(
    hidden_size=2048, intermediate_size=5632, num_hidden_layers=22, num_attention_heads=32, num_key_value_heads=4, vocab_size=32000
)
MIXTRAL = dict(
    hidden_size=1024, intermediate_size=2816, num_hidden_layers=12, num_attention_heads=16, num_key_value_heads=4,
    num_local_experts=8, num_experts_per_tok=2, vocab_size=32000,
)  # fmt: skip


def language_model(family, batch, length, bf16=True, checkpointing=False, lora=False, **options):
    import torch
    import transformers

    config = getattr(transformers, family[0])(**options)
    config.use_cache = False
    model = getattr(transformers, family[1])(config)
    if bf16:
        model = model.to(torch.bfloat16)
    model = model.to("cuda").train()
    if checkpointing:
        model.gradient_checkpointing_enable()
    if lora:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(r=16, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))
        if checkpointing:
            model.enable_input_require_grads()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4, fused=False)

    def step():
        ids = torch.randint(0, config.vocab_size, (batch, length), device="cuda")
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    return model, step


def vision_model(name, batch):
    import timm
    import torch

    model = timm.create_model(name, num_classes=1000).to("cuda").train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    criterion = torch.nn.CrossEntropyLoss()

    def step():
        images = torch.randn(batch, 3, 224, 224, device="cuda")
        labels = torch.randint(0, 1000, (batch,), device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    return model, step


GPT2 = ("GPT2Config", "GPT2LMHeadModel")
LLAMA_LM = ("LlamaConfig", "LlamaForCausalLM")
MIXTRAL_LM = ("MixtralConfig", "MixtralForCausalLM")

MODELS = {
    "gpt2m": lambda: language_model(GPT2, 4, 512, n_embd=1024, n_layer=24, n_head=16),
    "gpt2l": lambda: language_model(GPT2, 8, 1024, bf16=False, n_embd=1280, n_layer=36, n_head=20),
    "llama1b": lambda: language_model(LLAMA_LM, 4, 2048, **LLAMA),
    "llama1b-lr": lambda: language_model(LLAMA_LM, 8, 2048, checkpointing=True, lora=True, **LLAMA),
    "moe": lambda: language_model(MIXTRAL_LM, 4, 1024, **MIXTRAL),
    "resnet152": lambda: vision_model("resnet152", 128),
}


def checksums(model):
    """A sum and an alternating sum over the bits of all parameters: equal for equal models."""
    import torch

    words = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    plain = alternating = 0
    for i, p in enumerate(model.parameters()):
        bits = p.detach().contiguous().view(-1).view(words[p.element_size()])
        plain += (i + 1) * int(bits.sum(dtype=torch.int64))
        alternating += (i + 1) * int(bits[::2].sum(dtype=torch.int64))
    return [plain, alternating]


def loaded_penstock():
    """The module penstock when it was loaded by someone else and statistics are asked for."""
    return sys.modules.get("penstock") if os.environ.get("PENSTOCK_BENCH_STATS") == "1" else None


def main():
    parser = argparse.ArgumentParser(description="Train a model for some iterations on random data.")
    parser.add_argument("model", choices=sorted(MODELS))
    parser.add_argument("iters", type=int)
    parser.add_argument("--deterministic", action="store_true", help="deterministic algorithms; parameter checksums at the end")
    parser.add_argument("--progress", metavar="FILE", help="append a JSON line for each iteration")
    args = parser.parse_args()
    if args.iters < 1:
        parser.error("at least one iteration")
    if args.deterministic:
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # read when cuBLAS starts

    import torch

    if args.deterministic:
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.deterministic = True
    torch.manual_seed(0)
    began = time.perf_counter()
    model, step = MODELS[args.model]()
    torch.cuda.synchronize()
    build_s = time.perf_counter() - began

    penstock = loaded_penstock()
    before = penstock.stats() if penstock else None
    seconds, losses, stats = [], [], []
    for i in range(args.iters):
        began = time.perf_counter()
        loss = step()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
        losses.append(float(loss.detach()))
        if penstock:
            stats.append(penstock.stats())
        if args.progress:
            line = {"iteration": i, "iter_s": seconds[-1], "loss": losses[-1]}
            if penstock:
                line.update(stats=stats[-1], stats_before=before)
            with open(args.progress, "a") as f:
                f.write(json.dumps(line) + "\n")

    result = {
        "model": args.model, "iter_s": seconds, "loss": losses,
        "peak_allocated_bytes": torch.cuda.max_memory_allocated(), "peak_reserved_bytes": torch.cuda.max_memory_reserved(),
        "deterministic": args.deterministic, "build_s": build_s, "parameters": sum(p.numel() for p in model.parameters()),
        "penstock_loaded": "penstock" in sys.modules, "torch": torch.__version__, "cuda": torch.version.cuda,
    }  # fmt: skip
    if args.deterministic:
        result["parameter_checksums"] = checksums(model)
    for package in ("transformers", "timm"):
        if package in sys.modules:
            result[package] = getattr(sys.modules[package], "__version__", None)
    if penstock:
        result.update(stats_before=before, stats=stats)
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
