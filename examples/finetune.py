"""A full fine-tune of a language model that does not fit. Needs a GPU, PyTorch and transformers.

    penstock run --budget 24GiB -- python3 examples/finetune.py MODEL TEXT

MODEL is a folder or a name that transformers knows, TEXT a file of plain text. Weights and the optimizer's state are
fp32, computed is in bf16. Checkpointing stays on: where the model has it, it is cheaper than moving activations. What is
left for Penstock is the state, 16 bytes for each weight. --in-backward steps each weight as soon as its gradient is done,
and frees that: 12 bytes are left, and move while backward computes.
"""

import argparse
import pathlib
import time

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("model")
parser.add_argument("text", type=pathlib.Path)
parser.add_argument("--out", default="finetuned", help="folder for the result")
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--batch", type=int, default=4)
parser.add_argument("--length", type=int, default=2048, help="tokens of a row; the same in each step, so that steps are alike")
parser.add_argument("--in-backward", action="store_true", help="the optimizer's step within backward: the same numbers")
parser.add_argument("--device", default="cuda", help="cpu, to try the script itself")
a = parser.parse_args()

torch.manual_seed(0)
tokenizer = AutoTokenizer.from_pretrained(a.model)
tokens = tokenizer(a.text.read_text(), return_tensors="pt").input_ids[0]
if len(tokens) <= a.length:
    parser.error(f"{a.text} has {len(tokens)} tokens, and a row is {a.length}: give a longer text or --length")

model = AutoModelForCausalLM.from_pretrained(a.model, dtype=torch.float32).to(a.device).train()
model.config.use_cache = False
model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=a.device == "cuda")
if a.in_backward:
    import penstock.optim

    penstock.optim.in_backward(model, optimizer)

for step in range(a.steps):
    began = time.perf_counter()
    starts = torch.randint(0, len(tokens) - a.length, (a.batch,))
    rows = torch.stack([tokens[s : s + a.length] for s in starts]).to(a.device)
    with torch.autocast(a.device, torch.bfloat16):
        loss = model(input_ids=rows, labels=rows).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    print(f"step {step:3}  loss {loss.item():.4f}  {time.perf_counter() - began:.2f} s", flush=True)

model.save_pretrained(a.out)
tokenizer.save_pretrained(a.out)
