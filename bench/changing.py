"""Jobs whose shapes change from one iteration to the next, as most fine-tuning has them.

    python3 changing.py MODEL[,MODEL...] ITERS[,ITERS...] [--deterministic] [--progress FILE]

The command line, and what is printed, are those of bench/workloads.py. Lengths, resolutions and graphs are drawn from one
generator of the CPU, so that each run of a job draws the same. Data are random: what changes is how much of it there is.

    gpt2l-lengths   GPT-2 large in bf16, 8 sequences padded to a length drawn from 256 to 1024
    t5-lengths      T5 large in bf16, 16 sequences: the encoder's 200 to 900 long, the decoder's 50 to 400
    bert-text       BERT base, 32 sequences of log-normal lengths, padded to the longest of their batch
    bert-buckets    the same, padded to the next multiple of 64 as bucketed loaders do
    resnet-sizes    ResNet-50, 64 images of a resolution drawn from 128 to 288
    speech          wav2vec 2.0 base with CTC, 8 waveforms of 2 to 12 s
    graph           GraphSAGE over sampled neighbourhoods: how many nodes and edges differs in each batch
    rl              GPT-2 medium: 32 tokens are generated, then a policy update on them
    train-eval      GPT-2 medium: four steps of training, the last one of half a batch, then two of evaluation
    layer-drop      GPT-2 medium, of which each layer is left out with a probability of 0.1
    storm           GPT-2 medium, of which each iteration is drawn: another batch, accumulation, evaluation, another dropout, a second
                    model, an exception after forward, within backward or after it, an epoch that ends early
"""

import math
import random

import workloads


def drawn(seed=1):
    return random.Random(seed)


def optimizer_of(model):
    import torch

    return torch.optim.AdamW(model.parameters(), lr=1e-4)


def update(optimizer, loss):
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss


def transformer(config_name, model_name, bf16=True, **options):
    import transformers

    config = getattr(transformers, config_name)(**options)
    config.use_cache = False
    return config, workloads.on_device(lambda: getattr(transformers, model_name)(config), bf16)


def tokens(config, batch, length):
    import torch

    return torch.randint(0, config.vocab_size, (batch, length), device="cuda")


def gpt2(**options):
    return transformer("GPT2Config", "GPT2LMHeadModel", n_positions=1024, **options)


MEDIUM = dict(n_embd=1024, n_layer=24, n_head=16)


def gpt2l_lengths():
    config, model = gpt2(n_embd=1280, n_layer=36, n_head=20)
    optimizer, lengths = optimizer_of(model), drawn()

    def step():
        ids = tokens(config, 8, lengths.randint(256, 1024))
        return update(optimizer, model(input_ids=ids, labels=ids).loss)

    return model, step


def t5_lengths():
    config, model = transformer("T5Config", "T5ForConditionalGeneration", d_model=1024, d_ff=4096, num_layers=24, num_heads=16, d_kv=64, decoder_start_token_id=0)
    optimizer, lengths = optimizer_of(model), drawn()

    def step():
        source, target = tokens(config, 16, lengths.randint(200, 900)), tokens(config, 16, lengths.randint(50, 400))
        return update(optimizer, model(input_ids=source, labels=target).loss)

    return model, step


def bert(multiple):
    """Lengths of sentences are log-normal, 128 tokens in the middle."""
    import torch

    config, model = transformer("BertConfig", "BertForMaskedLM", bf16=False)
    optimizer, lengths = optimizer_of(model), drawn()

    def step():
        each = [min(512, max(8, round(math.exp(lengths.gauss(math.log(128), 0.5))))) for _ in range(32)]
        longest = min(512, -(-max(each) // multiple) * multiple)
        ids = tokens(config, 32, longest)
        mask = torch.tensor([[1] * n + [0] * (longest - n) for n in each], device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(input_ids=ids, attention_mask=mask, labels=ids).loss
        return update(optimizer, loss)

    return model, step


def resnet_sizes():
    import timm
    import torch

    model = workloads.on_device(lambda: timm.create_model("resnet50", num_classes=1000), bf16=False)
    optimizer, sizes = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), drawn()

    def step():
        n = 32 * sizes.randint(4, 9)
        images, labels = torch.randn(64, 3, n, n, device="cuda"), torch.randint(0, 1000, (64,), device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(images), labels)
        return update(optimizer, loss)

    return model, step


def speech():
    import torch

    _, model = transformer("Wav2Vec2Config", "Wav2Vec2ForCTC", bf16=False, mask_time_prob=0.0, layerdrop=0.0, ctc_loss_reduction="mean", vocab_size=32)
    optimizer, lengths = optimizer_of(model), drawn()

    def step():
        samples = 16000 * lengths.randint(20, 120) // 10
        sounds, labels = torch.randn(8, samples, device="cuda"), torch.randint(1, 32, (8, samples // 4000), device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(sounds, labels=labels).loss
        return update(optimizer, loss)

    return model, step


def graph():
    import torch
    from torch_geometric.nn import GraphSAGE

    model = workloads.on_device(lambda: GraphSAGE(256, 1024, num_layers=3, out_channels=64), bf16=False)
    optimizer, sizes = optimizer_of(model), drawn()

    def step():
        nodes = sizes.randint(60_000, 120_000)
        edges = nodes * sizes.randint(8, 12)
        x, ends = torch.randn(nodes, 256, device="cuda"), torch.randint(0, nodes, (2, edges), device="cuda")
        labels = torch.randint(0, 64, (1024,), device="cuda")  # of the batch's own nodes, which come first
        return update(optimizer, torch.nn.functional.cross_entropy(model(x, ends)[:1024], labels))

    return model, step


def rl():
    import torch

    config, model = gpt2(**MEDIUM)
    optimizer = optimizer_of(model)

    def step():
        prompt = tokens(config, 16, 64)
        model.eval()
        with torch.no_grad():
            answer = model.generate(prompt, attention_mask=torch.ones_like(prompt), min_new_tokens=32, max_new_tokens=32, do_sample=False, use_cache=True, pad_token_id=0)
        model.train()
        rewards = torch.randn(answer.shape[0], 1, device="cuda")
        logits = model(input_ids=answer).logits[:, :-1]
        said = torch.gather(torch.log_softmax(logits.float(), -1), 2, answer[:, 1:, None])[..., 0]
        return update(optimizer, -(said * rewards).mean())

    return model, step


def train_eval():
    import torch

    config, model = gpt2(**MEDIUM)
    optimizer, steps = optimizer_of(model), [0]

    def step():
        place, steps[0] = steps[0] % 6, steps[0] + 1
        if place < 4:
            ids = tokens(config, 2 if place == 3 else 4, 512)
            return update(optimizer, model(input_ids=ids, labels=ids).loss)
        ids = tokens(config, 8, 512)
        model.eval()
        with torch.no_grad():
            loss = model(input_ids=ids, labels=ids).loss
        model.train()
        return loss

    return model, step


def layer_drop():
    import torch

    config, model = gpt2(**MEDIUM)
    optimizer, chance, layers = optimizer_of(model), drawn(), model.transformer.h

    def step():
        model.transformer.h = torch.nn.ModuleList(layer for layer in layers if chance.random() >= 0.1)
        ids = tokens(config, 4, 512)
        loss = update(optimizer, model(input_ids=ids, labels=ids).loss)
        model.transformer.h = layers
        return loss

    return model, step


class Interrupted(Exception):
    """What a step of a storm ends with."""


def storm():
    import torch

    config, model = gpt2(**MEDIUM)
    _, second = gpt2(n_embd=768, n_layer=8, n_head=12)
    optimizers, chance = {m: optimizer_of(m) for m in (model, second)}, drawn()
    dropouts = [m for m in model.modules() if isinstance(m, torch.nn.Dropout)]

    def loss_of(m, batch=4, length=512):
        ids = tokens(config, batch, length)
        return m(input_ids=ids, labels=ids).loss

    def train(m=model, **of_batch):
        return update(optimizers[m], loss_of(m, **of_batch))

    def another_batch():
        return train(batch=chance.randint(1, 4), length=chance.choice([128, 256, 384, 512]))

    def accumulate():
        for _ in range(chance.randint(1, 3)):
            loss_of(model, batch=2).backward()
        return train(batch=2)

    def evaluate():
        model.eval()
        with torch.no_grad():
            for _ in range(chance.randint(1, 3)):
                loss = loss_of(model, batch=8)
        model.train()
        return loss

    def another_dropout():
        p = chance.choice([0.0, 0.1, 0.2])
        for m in dropouts:
            m.p = p
        return train()

    def interrupt(*_):
        raise Interrupted

    def interrupted():
        place, layer = chance.randrange(3), chance.randrange(len(model.transformer.h))
        hook = model.transformer.h[layer].register_full_backward_hook(interrupt) if place == 1 else None
        loss = loss_of(model)
        try:
            if place > 0:
                loss.backward()
            raise Interrupted
        except Interrupted:
            optimizers[model].zero_grad(set_to_none=True)
        if hook:
            hook.remove()
        return loss.detach()

    def early_end():
        loss = train()
        optimizers[model] = optimizer_of(model)  # what it knew goes
        torch.cuda.empty_cache()
        return loss

    kinds = [train, another_batch, accumulate, evaluate, another_dropout, lambda: train(second), interrupted, early_end]

    def step():
        return chance.choices(kinds, weights=[12, 3, 2, 2, 1, 2, 3, 1])[0]()

    return model, step


workloads.MODELS = {
    "gpt2l-lengths": gpt2l_lengths,
    "t5-lengths": t5_lengths,
    "bert-text": lambda: bert(1),
    "bert-buckets": lambda: bert(64),
    "resnet-sizes": resnet_sizes,
    "speech": speech,
    "graph": graph,
    "rl": rl,
    "train-eval": train_eval,
    "layer-drop": layer_drop,
    "storm": storm,
}


def script(model):
    """The script that has a model."""
    return workloads.__file__ if model not in workloads.MODELS else __file__


if __name__ == "__main__":
    workloads.main()
