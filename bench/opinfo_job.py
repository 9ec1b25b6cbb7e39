"""Runs operators of PyTorch's own database with its samples, off the device in between: the job of opinfo.py.

Each tensor of a sample gets memory of 1 MiB at least, so that it is the engine's to move. Samples of an operator are made, used and
differentiated by the batch; between these, memory that does not fit beside them is touched, so that they leave the device.
"""

import itertools
import sys

PAD_BYTES = 1 << 20  # the engine leaves smaller allocations where they are
BATCH_BYTES = 160 << 20
PRESSURE_MIB = 512
# What is in their results is not defined.
UNDEFINED = {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided", "resize_", "resize_as_"}


def names(device):
    """Of all operators, each once."""
    return list(operators(device))


def operators(device):
    from torch.testing._internal.common_methods_invocations import op_db

    found = {}
    for op in op_db:
        if op.name not in UNDEFINED:
            found[f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name] = op
    return found


def tell(emit, device):
    """The job that tells what there is: the database itself initialises CUDA when it is imported."""
    emit(result={"losses": [], "digests": []}, operators=names(device), peak_bytes=0)


def padded(t):
    """A tensor like it, in a larger allocation of its own."""
    import torch

    if t.layout != torch.strided or t.is_quantized or t.is_conj() or t.is_neg() or t.is_nested or type(t) is not torch.Tensor and not isinstance(t, torch.nn.Parameter):
        return t
    old = t.detach().untyped_storage()
    new = torch.UntypedStorage(max(PAD_BYTES, old.nbytes()), device=t.device)
    as_bytes = [torch.empty(0, dtype=torch.uint8, device=t.device).set_(s) for s in (new, old)]
    as_bytes[0][: old.nbytes()].copy_(as_bytes[1][: old.nbytes()])
    made = torch.empty(0, dtype=t.dtype, device=t.device).set_(new, t.storage_offset(), t.size(), t.stride())
    return made.requires_grad_(t.requires_grad)


class Sample:
    """One sample of an operator on its way: inputs, outputs, gradients, or what was raised."""

    def __init__(self, op, dtype, sample, grad, seed):
        import torch
        from torch.utils import _pytree as pytree

        self.op, self.dtype, self.grad, self.seed, self.error, self.outputs, self.inputs = op, dtype, grad, seed, None, [], []
        self.finish = sample.output_process_fn_grad

        def place(t):
            if not isinstance(t, torch.Tensor):
                return t
            t = padded(t)
            self.inputs.append(t)
            return t

        self.given = pytree.tree_map(place, (sample.input, list(sample.args), dict(sample.kwargs)))
        self.bytes = sum(max(PAD_BYTES, t.untyped_storage().nbytes()) for t in self.inputs if t.layout == torch.strided)

    def attempt(self, step):
        if self.error is None:
            try:
                step()
            except Exception as e:  # whatever an operator raises is its result
                if "OutOfMemory" in type(e).__name__:
                    raise
                self.error, self.outputs = type(e).__name__, []
                synchronize(self.inputs)

    def forward(self):
        import torch
        from operators_job import tensors

        torch.manual_seed(self.seed)
        x, args, kwargs = self.given
        with torch.set_grad_enabled(self.grad):
            self.outputs = tensors(self.finish(self.op(x, *args, **kwargs)))

    def backward(self):
        import torch

        wanted = [t for t in self.outputs if t.requires_grad]
        if wanted:
            torch.autograd.backward(wanted, [t.detach().clone() if t.is_complex() else torch.cos(t.detach()) for t in wanted])
            self.outputs = self.outputs + [t.grad for t in self.inputs if t.grad is not None]

    def result(self):
        """What is compared: a CRC of everything, or what was raised."""
        from operators_job import digest

        found = []
        self.attempt(lambda: found.extend(digest(t) for t in self.outputs))
        return self.error or found


def synchronize(tensors):
    """Ends the process when the GPU cannot be used any more."""
    import torch

    if any(t.is_cuda for t in tensors):
        try:
            torch.cuda.synchronize()
        except Exception:
            sys.exit(3)


def samples(op, device, most):
    """All samples of an operator, with each of its types; (dtype, error) where there are none to be had."""
    import torch

    for dtype in sorted(op.supported_dtypes(device), key=str):
        grad = dtype in op.supported_backward_dtypes(device)
        torch.manual_seed(0)
        try:
            for i, s in enumerate(itertools.islice(op.sample_inputs(device, dtype, requires_grad=grad), most or None)):
                yield Sample(op, dtype, s, grad, i)
        except Exception as e:
            if "OutOfMemory" in type(e).__name__:
                raise
            yield dtype, type(e).__name__


def batches(made):
    batch, size = [], 0
    for x in made:
        batch.append(x)
        size += getattr(x, "bytes", 0)
        if size > BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def operate(op, device, most, press):
    """{dtype: [result of each sample]} of an operator."""
    found = {}
    for batch in batches(samples(op, device, most)):
        usable = [x for x in batch if isinstance(x, Sample)]
        press()
        for s in usable:
            s.attempt(s.forward)
        press()
        for s in usable:
            if s.grad:
                s.attempt(s.backward)
        press()
        for x in batch:
            dtype, result = (x.dtype, x.result()) if isinstance(x, Sample) else x
            found.setdefault(str(dtype).removeprefix("torch."), []).append(result)
    return found


def run(emit, device, chosen, rounds, most, pressed):
    """rounds: how often each operator is run, to tell what repeats itself. pressed: whether to make things leave."""
    from zoo_models import settle

    settle()  # before the database is imported, which forbids it
    from operators_job import Pressure

    press = Pressure(device, PRESSURE_MIB) if pressed else lambda: None
    known = operators(device)
    for name in chosen:
        emit(begun=name)
        try:
            emit(operator=name, rounds=[operate(known[name], device, most, press) for _ in range(rounds)])
        except Exception as e:
            emit(operator=name, raised=type(e).__name__, why=str(e).strip()[:300])
    emit(result={"losses": [], "digests": []}, peak_bytes=0)
