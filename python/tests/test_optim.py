"""The step within backward, beside the same loop without it: on the CPU, with PyTorch; and on a GPU where there is one."""

from __future__ import annotations

import copy
import gc
import warnings
import weakref

import pytest

torch = pytest.importorskip("torch")

import penstock  # noqa: E402
from penstock import PenstockError  # noqa: E402
from penstock.optim import in_backward  # noqa: E402

nn = torch.nn
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.fixture(autouse=True)
def deterministic():
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


class Model(nn.Module):
    """A tied weight, a frozen one, and one that only every other step uses."""

    def __init__(self, width=8):
        super().__init__()
        self.embed = nn.Embedding(16, width)
        self.body = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.sometimes = nn.Linear(width, width)
        self.frozen = nn.Linear(width, width).requires_grad_(False)
        self.head = nn.Linear(width, 16, bias=False)
        self.head.weight = self.embed.weight
        self.checkpointed = None

    def forward(self, ids, sometimes=False):
        x = self.embed(ids)
        for layer in self.body:
            if self.checkpointed is not None:
                x = torch.utils.checkpoint.checkpoint(lambda x, layer=layer: torch.tanh(layer(x)), x, use_reentrant=self.checkpointed)
            else:
                x = torch.tanh(layer(x))
        if sometimes:
            x = self.sometimes(x)
        return nn.functional.cross_entropy(self.head(self.frozen(x)).flatten(0, -2), ids.flatten())


def model(device="cpu", seed=0):
    torch.manual_seed(seed)
    return Model().to(device)


def batch(i, device="cpu"):
    return torch.randint(0, 16, (4, 6), generator=torch.Generator().manual_seed(i)).to(device)


def train(m, optimizer, steps=5, scheduler=None, first=0, call=None):
    device, losses = m.embed.weight.device, []
    for i in range(first, first + steps):
        loss = (m if call is None else call)(batch(i, device), sometimes=i % 2 == 1)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if scheduler is not None:
            scheduler.step()
        losses.append(float(loss.detach()))
    return losses


def same(a, b):
    """Whether two nests of dicts, lists and tensors are equal to the last bit."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def both(make, device="cpu", **how):
    """The same training twice, the second time with the line."""
    plain, ours = model(device), model(device)
    first, second = make(plain), make(ours)
    in_backward(ours, second)
    assert train(plain, first, **how) == train(ours, second, **how)
    assert same(plain.state_dict(), ours.state_dict())
    assert same(first.state_dict(), second.state_dict())
    return plain, first, ours, second


def groups(m):
    """Two groups with settings of their own."""
    thin = [p for p in m.parameters() if p.ndim < 2]
    return [{"params": [p for p in m.parameters() if p.ndim >= 2]}, {"params": thin, "lr": 3e-2, "weight_decay": 0.0}]


def optimizers():
    kinds = {
        "AdamW": {}, "AdamW loop": dict(foreach=False), "AdamW foreach": dict(foreach=True), "AdamW fused": dict(fused=True), "AdamW amsgrad": dict(amsgrad=True),
        "Adam tensor lr": dict(lr=torch.tensor(1e-2)), "AdamW capturable": dict(capturable=True), "SGD": dict(momentum=0.9, nesterov=True), "SGD foreach": dict(momentum=0.9, foreach=True),
        "Adagrad": {}, "Adamax": {}, "NAdam": {}, "RAdam": {}, "RMSprop": dict(momentum=0.9, centered=True), "Rprop": {}, "Adafactor": {},
    }  # fmt: skip
    for name, options in kinds.items():
        kind = getattr(torch.optim, name.split()[0], None)
        for device in DEVICES:
            reason = "this PyTorch has none" if kind is None else "capturable is of CUDA" if name.endswith("capturable") and device == "cpu" else None
            yield pytest.param(kind, {"lr": 1e-2, **options}, device, id=f"{name}, {device}", marks=pytest.mark.skipif(reason is not None, reason=reason or ""))


@pytest.mark.parametrize("kind,options,device", list(optimizers()))
def test_parameters_and_states_are_those_of_plain_training(kind, options, device):
    if options.get("fused"):
        try:
            kind([torch.zeros(1, device=device, requires_grad=True)], **options)
        except RuntimeError as e:
            pytest.skip(str(e))
    both(lambda m: kind(groups(m), **options), device)


def adamw(m, **how):
    return torch.optim.AdamW(groups(m), lr=1e-2, **how)


@pytest.mark.parametrize("after", [True, False])
def test_schedulers(after):
    """Made before the line or after it, and with nothing to warn of."""
    runs = []
    for line in (False, True):
        m = model()
        optimizer = adamw(m)
        if line and not after:
            in_backward(m, optimizer)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=8)  # of lr and betas
        if line and after:
            in_backward(m, optimizer)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            train(m, optimizer, 8, scheduler)
        runs.append((m.state_dict(), optimizer.state_dict(), scheduler.get_last_lr()))
    assert same(*runs)


@pytest.mark.parametrize("before,after", [(False, True), (True, False), (True, True)])
def test_saved_and_resumed(before, after, tmp_path):
    """Half with the line and half without are as the whole."""
    whole = model()
    train(whole, adamw(whole), 6)
    first = model()
    optimizer = adamw(first)
    if before:
        in_backward(first, optimizer)
    train(first, optimizer, 3)
    torch.save({"model": first.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "saved.pt")
    saved = torch.load(tmp_path / "saved.pt")
    second = model(seed=1)
    optimizer = adamw(second)
    if after:
        in_backward(second, optimizer)
    second.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])  # which makes other groups
    train(second, optimizer, 3, first=3)
    assert same(whole.state_dict(), second.state_dict())


def test_one_gradient_at_a_time():
    m = nn.Sequential(*(nn.Linear(8, 8) for _ in range(5)))
    optimizer = adamw(m)
    gradients, alive = [], []

    def watch(p):
        gradients.append(weakref.ref(p.grad))
        alive.append(sum(g() is not None for g in gradients))

    for p in m.parameters():
        p.register_post_accumulate_grad_hook(watch)  # before the line, so that it sees each gradient before that is used
    in_backward(m, optimizer)
    m(torch.randn(4, 8)).square().mean().backward()
    assert alive == [1] * 10 and not any(g() for g in gradients)
    optimizer.step()
    assert all(p.grad is None for p in m.parameters())


def both_ways(change=lambda m: None, call=lambda m: m):
    """Losses and parameters of a model that was changed, without the line and with it."""
    for line in (False, True):
        m = model()
        change(m)
        optimizer = adamw(m)
        if line:
            in_backward(m, optimizer)
        yield train(m, optimizer, call=call(m)), m.state_dict()


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing(reentrant):
    def change(m):
        m.checkpointed = reentrant

    assert same(*both_ways(change))


def test_a_weight_in_two_reentrant_blocks():
    m = model()
    m.checkpointed = True
    m.body[1] = m.body[0]
    optimizer = adamw(m)
    in_backward(m, optimizer)
    with pytest.raises(PenstockError, match=r"body\.0\.(weight|bias) got another gradient.*use_reentrant=False"):
        train(m, optimizer)


def test_a_weight_in_two_blocks():
    def change(m):
        m.body[1] = m.body[0]
        m.checkpointed = False

    assert same(*both_ways(change))


def test_a_parameter_unfrozen_or_added_later():
    runs = []
    for line in (False, True):
        m = model()
        optimizer = torch.optim.AdamW(m.body.parameters(), lr=1e-2)
        if line:
            in_backward(m, optimizer)
        train(m, optimizer, 2)
        optimizer.add_param_group({"params": [m.embed.weight, *m.frozen.parameters()]})
        m.frozen.requires_grad_(True)
        train(m, optimizer, 2)
        m.body[0].requires_grad_(False)
        train(m, optimizer, 2)
        runs.append((m.state_dict(), optimizer.state_dict()))
    assert same(*runs)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_compiled_model(backend):
    if backend == "inductor" and torch.cuda.is_available():
        pytest.skip("the CPU's is enough")
    assert same(*both_ways(lambda m: torch._dynamo.reset(), lambda m: torch.compile(m, backend=backend)))


def test_a_closure_that_computes_the_loss():
    runs = []
    for line in (False, True):
        m = model()
        optimizer = adamw(m)
        if line:
            in_backward(m, optimizer)
        for i in range(3):

            def closure():
                optimizer.zero_grad()
                loss = m(batch(i))
                loss.backward()
                return loss

            optimizer.step(closure)
        runs.append(m.state_dict())
    assert same(*runs)


def test_hooks_of_a_step_are_called_once():
    m = model()
    optimizer = adamw(m)
    calls = []
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    in_backward(m, optimizer)
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    train(m, optimizer, 2)
    assert calls == ["before", "after"] * 2


def test_an_optimizer_that_calls_its_superclass():
    class Mine(torch.optim.AdamW):
        def step(self, closure=None):
            return super().step(closure)

    both(lambda m: Mine(groups(m), lr=1e-2))


def test_remove():
    plain, ours = model(), model()
    first, second = adamw(plain), adamw(ours)
    train(plain, first, 6)
    line = in_backward(ours, second)
    train(ours, second, 3)
    line.remove()
    for i in range(3, 6):
        ours(batch(i), sometimes=i % 2 == 1).backward()
        torch.nn.utils.clip_grad_norm_(ours.parameters(), 1e9)
        second.step()
        second.zero_grad()
    assert same(plain.state_dict(), ours.state_dict())


def test_nothing_is_kept_alive():
    m = model()
    optimizer = adamw(m)
    in_backward(m, optimizer)
    train(m, optimizer, 2)
    of_model, of_optimizer = weakref.ref(m.embed.weight), weakref.ref(optimizer)
    gc.disable()
    try:
        del optimizer
        assert of_optimizer() is None
        m(batch(0)).backward()  # nobody steps: an ordinary backward
        assert type(m.embed.weight.grad) is torch.Tensor
        del m
        assert of_model() is None
    finally:
        gc.enable()


def test_another_optimizer():
    """A second one is refused while the first is there, and works once that is gone."""
    runs = []
    for line in (False, True):
        m = model()
        optimizer = adamw(m)
        if line:
            in_backward(m, optimizer)
        train(m, optimizer, 2)
        after = torch.optim.SGD(m.parameters(), lr=0.1)
        if line:
            with pytest.raises(PenstockError, match="already"):
                in_backward(m, after)
            del optimizer
            in_backward(m, after)
        train(m, after, 2)
        runs.append(m.state_dict())
    assert same(*runs)


def test_a_copy_of_the_model_is_plain():
    m = model()
    optimizer = adamw(m)
    in_backward(m, optimizer)
    train(m, optimizer, 1)
    m(batch(0)).backward()
    other = copy.deepcopy(m)
    other(batch(0)).backward()
    assert torch.isfinite(torch.nn.utils.clip_grad_norm_(other.parameters(), 1.0))


def clip(m, optimizer):
    torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)


def clip_values(m, optimizer):
    torch.nn.utils.clip_grad_value_(m.parameters(), 1.0)


def by_hand(m, optimizer):
    for p in m.parameters():
        if p.grad is not None:
            p.grad.mul_(0.5)


def scaled(m, optimizer):
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(()))
    scaler.step(optimizer)


def logged(m, optimizer):
    print(max(float(p.grad.norm()) for p in m.parameters() if p.grad is not None))


def replaced(m, optimizer):
    m.body[0].weight.grad = torch.zeros_like(m.body[0].weight)
    optimizer.step()


@pytest.mark.parametrize("meddle", [clip, clip_values, by_hand, scaled, logged, replaced])
def test_gradients_that_are_gone(meddle):
    if meddle is scaled and not hasattr(torch.amp, "GradScaler"):
        pytest.skip("this PyTorch has a GradScaler for CUDA only")
    m = model()
    optimizer = adamw(m)
    in_backward(m, optimizer)
    m(batch(0)).backward()
    with pytest.raises(PenstockError, match=r"the gradient of [\w.]+ was used in backward.*GradScaler"):
        meddle(m, optimizer)
    assert "used in backward" in repr(m.embed.weight.grad)


@pytest.mark.parametrize("thrown_away", [False, True])
def test_a_second_backward(thrown_away):
    m = model()
    optimizer = adamw(m)
    in_backward(m, optimizer)
    m(batch(0)).backward()
    if thrown_away:
        optimizer.zero_grad()
    before = copy.deepcopy(m.state_dict())
    with pytest.raises(PenstockError, match=r"got another gradient before optimizer.step\(\).*accumulated"):
        m(batch(1)).backward()
    assert same(before, m.state_dict())


def test_settings_that_change_after_backward():
    m = model()
    optimizer = adamw(m)
    in_backward(m, optimizer)
    m(batch(0)).backward()
    optimizer.param_groups[1]["lr"] = 0.5
    with pytest.raises(PenstockError, match="lr changed between"):
        optimizer.step()


def test_a_graph_of_gradients():
    m = model()
    optimizer = adamw(m)
    in_backward(m, optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(PenstockError, match="create_graph=True"):
            m(batch(0)).backward(create_graph=True)


def test_a_state_of_the_whole_group():
    class Counting(torch.optim.SGD):
        def step(self, closure=None):
            for group in self.param_groups:
                group["k"] = group.get("k", 1000) + 1
            return super().step(closure)

    m = model()
    optimizer = Counting(m.parameters(), lr=0.1)
    in_backward(m, optimizer)
    with pytest.raises(PenstockError, match="Counting changes k"):
        m(batch(0)).backward()


def refused(what):
    m = model()
    if what == "LBFGS":
        return m, torch.optim.LBFGS(m.parameters())
    if what == "differentiable":
        return m, torch.optim.SGD(m.parameters(), lr=0.1, differentiable=True)
    if what == "of another model":
        return m, adamw(model())
    if what == "twice":
        optimizer = adamw(m)
        in_backward(m, optimizer)
        return m, optimizer
    if what == "no optimizer":
        class Wrapper(torch.optim.Optimizer):  # as Accelerate's
            def __init__(self, optimizer):
                self.optimizer = optimizer

        return m, Wrapper(adamw(m))
    raise AssertionError(what)


REFUSED = {
    "LBFGS": "evaluates the model again", "differentiable": "is differentiable", "of another model": "none of the model's parameters", "twice": "called for these parameters already",
    "no optimizer": "if it wraps one",
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what):
    with pytest.raises(PenstockError, match=REFUSED[what]):
        in_backward(*refused(what))


@pytest.fixture
def group(tmp_path):
    if not torch.distributed.is_available():
        pytest.skip("this PyTorch has no torch.distributed")
    torch.distributed.init_process_group("gloo", store=torch.distributed.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_several_ranks(group):
    ddp = nn.parallel.DistributedDataParallel(model())
    with pytest.raises(PenstockError, match="those of other ranks"):
        in_backward(ddp, adamw(ddp))


def test_sharded(group):
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    if not hasattr(fsdp, "fully_shard"):
        pytest.skip("this PyTorch has no fully_shard")
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
    sharded = fsdp.fully_shard(nn.Linear(8, 8), mesh=mesh)
    with pytest.raises(PenstockError, match="those of other ranks"):
        in_backward(sharded, torch.optim.SGD(sharded.parameters(), lr=0.1))


def test_wrapped_later(group):
    """DistributedDataParallel made after the line is found when it wants the gradients."""
    m = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(m.parameters(), lr=0.1)
    in_backward(m, optimizer)
    ddp = nn.parallel.DistributedDataParallel(m)
    with pytest.raises(PenstockError, match="was used in backward|got another gradient"):
        ddp(torch.randn(2, 8)).sum().backward()


def test_accelerate(tmp_path):
    accelerate = pytest.importorskip("accelerate")
    runs = []
    for line in (False, True):
        m = model()
        optimizer = adamw(m)
        if line:
            in_backward(m, optimizer)
        a = accelerate.Accelerator(cpu=True)
        m, wrapped = a.prepare(m, optimizer)
        for i in range(3):
            a.backward(m(batch(i)))
            wrapped.step()
            wrapped.zero_grad()
        runs.append(copy.deepcopy(m.state_dict()))
        if line:
            with pytest.raises(PenstockError, match="if it wraps one"):
                in_backward(m, wrapped)
            m(batch(0)).backward()
            with pytest.raises(PenstockError, match="was used in backward"):
                a.clip_grad_norm_(m.parameters(), 1.0)
    assert same(*runs)


@pytest.mark.parametrize("clips", [False, True])
def test_trainer(tmp_path, clips):
    """Hugging Face's Trainer, which clips unless it is told not to."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")

    class Trainer(transformers.Trainer):  # as the documentation has it
        def _get_grad_norm(self, *_, **__):
            return None

    assert "def _get_grad_norm(self, *_, **__):\n                return None" in in_backward.__doc__

    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model()

        def forward(self, ids, labels=None):
            return {"loss": self.inner(ids)}

    data = [{"ids": batch(i)[0], "labels": batch(i)[0]} for i in range(16)]
    finals = []
    for line in (False, True):
        m = Wrapped()
        optimizer = torch.optim.AdamW(m.parameters(), lr=1e-2)
        if line:
            in_backward(m, optimizer)
        trainer = Trainer(
            m, transformers.TrainingArguments(
                output_dir=str(tmp_path), max_steps=4, per_device_train_batch_size=4, warmup_steps=2, max_grad_norm=1.0 if clips else 0, use_cpu=True, report_to=[], disable_tqdm=True, save_strategy="no", seed=0,
            ), train_dataset=data, optimizers=(optimizer, None),
        )  # fmt: skip
        if line and clips:
            with pytest.raises(PenstockError, match="was used in backward.*Trainer"):
                trainer.train()
            return
        trainer.train()
        finals.append(m.state_dict())
    assert same(*finals)


def test_sparse_gradients():
    runs = []
    for line in (False, True):
        torch.manual_seed(0)
        table = nn.Embedding(16, 4, sparse=True)
        optimizer = torch.optim.SparseAdam(table.parameters())
        if line:
            in_backward(table, optimizer)
        for i in range(3):
            table(batch(i)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        runs.append((table.state_dict(), optimizer.state_dict()))
    assert same(*runs)


def test_the_package_finds_it():
    assert penstock.optim.in_backward is in_backward
