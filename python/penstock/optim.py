"""The optimizer's step within backward: that of each parameter as soon as its gradient is done, which is then freed.

    import penstock.optim

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    penstock.optim.in_backward(model, optimizer)  # the line; nothing else changes

    for batch in loader:
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()

Gradients are never all there at once, and what the optimizer moves is moved while backward computes. It works with and
without the rest of Penstock.
"""

from __future__ import annotations

import inspect
import sys
import threading
import weakref
from typing import Any

from ._errors import PenstockError

try:
    import torch
except ImportError as e:
    raise PenstockError(f"PyTorch cannot be imported ({e}); penstock.optim works on its optimizers") from None

_READ = (
    "the gradient of {} was used in backward and is gone: penstock.optim.in_backward has made this parameter's step already. Clipping, a GradScaler and "
    "all else that reads or changes gradients between backward() and optimizer.step() cannot be had with it: train without one of the two "
    "(bfloat16 needs no GradScaler; for Hugging Face's Trainer see help(penstock.optim.in_backward))"
)
_AGAIN = (
    "{} got another gradient before optimizer.step(), and penstock.optim.in_backward has made its step already. Gradients cannot be accumulated over several "
    "backward(), nor thrown away after one: call optimizer.step() after each, or train without in_backward. If this was one backward(), the parameter is used "
    "in several blocks of reentrant checkpointing: give use_reentrant=False"
)


def in_backward(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> InBackward:
    """Makes the optimizer's step of each parameter in backward, as soon as the parameter's gradient is complete.

    The training loop, learning-rate schedulers, ``state_dict`` and ``load_state_dict`` stay as they are, and files are
    interchangeable with those of plain training. Parameters become the same to the last bit as in a loop of ``backward``,
    ``step`` and ``zero_grad(set_to_none=True)``. ``optimizer.step()`` stays in the loop: it says that the iteration is
    over, and makes the step of parameters that have been added or unfrozen since this call. ``remove()`` of what is
    returned ends it.

    Refused here, with a reason: DistributedDataParallel and FSDP, whose gradients are complete later; optimizers that need
    a closure (LBFGS) or are differentiable. Refused when it happens, with PenstockError:

    - a second ``backward()`` before ``step()``: accumulation, or gradients that are thrown away;
    - clipping, a ``GradScaler``, or whatever else touches a gradient between ``backward()`` and ``step()``. In the first
      iteration, but after the steps of that backward;
    - hyper-parameters that change between ``backward()`` and ``step()``, and ``backward(create_graph=True)``;
    - optimizers that keep a state of a whole group of parameters, as schedule-free ones do.

    Hugging Face's Trainer clips unless it has ``max_grad_norm=0``, and since transformers 5 asks for the norm of all gradients
    even then. It works with::

        class Trainer(transformers.Trainer):
            def _get_grad_norm(self, *_, **__):
                return None

    What cannot be found: an optimizer from elsewhere in whose step one parameter depends on others; a block under
    checkpointing that reads a parameter detached. Last bits may differ in a group of parameters on the CPU and the GPU, or of
    dense and sparse gradients, where PyTorch may take other kernels for all together than for one.

    Under ``torch.compile`` gradients of a graph come at its end, all at once: the results are right, and the gradients take
    what they do without this line.
    """
    _check(model, optimizer)
    return InBackward(model, optimizer)


def _check(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    kind = type(optimizer).__name__
    if "_optimizer_step_pre_hooks" not in getattr(optimizer, "__dict__", {}):  # a wrapper, such as Accelerate's
        raise PenstockError(f"{kind} is not an optimizer of PyTorch's kind; if it wraps one, give that to in_backward")
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise PenstockError(f"{kind} evaluates the model again within a step, of all parameters together: it cannot step in backward")
    if any(group.get("differentiable") for group in optimizer.param_groups):
        raise PenstockError(f"this {kind} is differentiable: gradients through its step need those of backward, which in_backward frees")
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    own = set(model.parameters())
    if not own.intersection(parameters):
        raise PenstockError(f"{kind} has none of the model's parameters: make it of model.parameters(), after the model is complete")
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")  # which takes its time to import
    wrappers = (torch.nn.parallel.DistributedDataParallel, *([fsdp.FullyShardedDataParallel] if fsdp else []))
    if any(isinstance(m, wrappers) for m in model.modules()) or any(hasattr(p, "to_local") for p in (*own, *parameters)):  # a DTensor, as of fully_shard
        raise PenstockError("gradients of DistributedDataParallel and FSDP are complete only after those of other ranks have come, later than in_backward would step")
    if any(isinstance(hook, _Hook) and hook.owner() for p in parameters for hook in (getattr(p, "_post_accumulate_grad_hooks", None) or {}).values()):
        raise PenstockError("in_backward has been called for these parameters already: once is enough, and one optimizer")


class InBackward:
    """What in_backward returns. The optimizer keeps it, and it keeps neither the optimizer nor the model."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = weakref.ref(optimizer)
        parameters = {p for group in optimizer.param_groups for p in group["params"]}
        self._names = {p: name for name, p in model.named_parameters() if p in parameters}
        self._lock = threading.Lock()  # backward has a thread for each device
        self._stepping = False
        # What follows is of one iteration, from its first gradient to optimizer.step().
        self._groups: dict[Any, dict[str, Any]] = {}
        self._settings: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._done: dict[Any, torch.Tensor] = {}  # what stands for the gradient of each parameter that was stepped
        hook = _Hook(self)
        self._handles = [p.register_post_accumulate_grad_hook(hook) for p in parameters if p.requires_grad]
        self._handles.append(optimizer.register_step_pre_hook(self._step_begins))

    def remove(self) -> None:
        """From the next iteration on, optimizer.step() makes all steps again."""
        for handle in self._handles:
            handle.remove()
        self._iteration_ends()

    def _accumulated(self, p: torch.Tensor) -> None:
        optimizer = self._optimizer()
        if optimizer is None:
            return
        with self._lock:
            if not self._done:
                self._iteration_begins(optimizer)
            group = self._groups.get(p)
            if group is None:  # no longer the optimizer's
                return
            name = self._names.get(p, "a parameter")
            if p in self._done:
                raise PenstockError(_AGAIN.format(name))
            if torch.is_grad_enabled():
                raise PenstockError("backward(create_graph=True) keeps a graph that needs the parameters as they are: in_backward cannot step them yet")
            self._step(optimizer, group, p)
            self._done[p] = p.grad = _Gone(p, name)

    def _iteration_begins(self, optimizer: torch.optim.Optimizer) -> None:
        # Each time anew: load_state_dict and add_param_group make other groups.
        self._groups = {p: group for group in optimizer.param_groups for p in group["params"]}
        self._settings = [(group, _settings(group)) for group in optimizer.param_groups]

    def _step(self, optimizer: torch.optim.Optimizer, group: dict[str, Any], p: torch.Tensor) -> None:
        """The optimizer's own step, as if it had this parameter alone. Its state is where it always is."""
        step: Any = type(optimizer).step
        if getattr(step, "hooked", False):
            step = step.__wrapped__  # without the hooks of a step, which are for the whole
        alone = {**group, "params": [p]}
        groups, optimizer.param_groups = optimizer.param_groups, [alone]
        self._stepping = True
        try:
            step(optimizer)
        finally:
            self._stepping = False
            optimizer.param_groups = groups
        changed = [key for key in alone if key != "params" and alone[key] is not group.get(key)]
        if changed:
            raise PenstockError(f"{type(optimizer).__name__} changes {', '.join(changed)} of a whole group of parameters in each step: it cannot step them one by one in backward")

    def _step_begins(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
        if self._stepping:  # a step that calls that of its superclass
            return None
        self._iteration_ends()
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            return None

        def whole() -> Any:  # backward is in the closure, and the iteration ends after it
            loss = closure()
            self._iteration_ends()
            return loss

        return args[:1], {**kwargs, "closure": whole}

    def _iteration_ends(self) -> None:
        for group, before in self._settings:
            now = _settings(group)
            changed = [key for key in now if key not in before or not _same(now[key], before[key])]
            if changed:
                raise PenstockError(
                    f"{', '.join(changed)} changed between backward() and optimizer.step(), and penstock.optim.in_backward has made the steps already: change it before backward()"
                )
        for p, gone in self._done.items():
            if p.grad is not gone and p.grad is not None:
                raise PenstockError(_READ.format(self._names.get(p, "a parameter")))
            p.grad = None
        self._done, self._groups, self._settings = {}, {}, []


class _Hook:
    """The hook of each parameter. It does nothing once the optimizer is gone, as nobody steps then."""

    def __init__(self, owner: InBackward) -> None:
        self.owner = weakref.ref(owner)

    def __call__(self, p: torch.Tensor) -> None:
        owner = self.owner()
        if owner is not None:
            owner._accumulated(p)


class _Gone(torch.Tensor):
    """Stands where a gradient was until the iteration ends, takes no memory, and raises when anything is done with it.

    With None in its place, clipping would pass over the parameter and say nothing.
    """

    _name: str

    @staticmethod
    def __new__(cls, p: torch.Tensor, name: str) -> _Gone:
        gone: _Gone = torch.Tensor._make_wrapper_subclass(cls, p.shape, dtype=p.dtype, device=p.device)  # type: ignore[attr-defined]
        gone._name = name
        return gone

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = [x for a in args for x in (a if isinstance(a, (list, tuple)) else [a]) if isinstance(x, cls)]
        accumulating = torch._C._current_graph_task_id() != -1  # backward itself adds to what is there
        raise PenstockError((_AGAIN if accumulating else _READ).format(found[0]._name if found else "a parameter"))

    def __repr__(self) -> str:  # type: ignore[override]
        return f"<the gradient of {self._name}, used in backward>"


def _settings(group: dict[str, Any]) -> dict[str, Any]:
    return {key: (value, value._version if isinstance(value, torch.Tensor) else None) for key, value in group.items() if key != "params"}


def _same(a: tuple[Any, int | None], b: tuple[Any, int | None]) -> bool:
    if isinstance(a[0], torch.Tensor) or isinstance(b[0], torch.Tensor):
        return a[0] is b[0] and a[1] == b[1]
    return bool(a[0] == b[0])
