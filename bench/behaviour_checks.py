"""The checks of behaviours.py, one a process: ordinary PyTorch programs that know nothing of Penstock.
Those that call CUDA beside PyTorch are in extension_checks.py.

    python3 behaviour_checks.py NAME

Prints one JSON line: {"check", "ok", "detail", "compare"}. What is in compare
must be the same under stock PyTorch and under Penstock. PENSTOCK_ACTIVE, which
`penstock run` sets, is looked at only where numbers must differ (budgets).
"""

import json
import os
import sys
import threading
import traceback

import extension_checks  # noqa: F401 - its checks
import torch
from _checks import CHECKS, DEV, GIB, MIB, UNDER_PENSTOCK, Failed, block, check, expect, mlp, sane, train

class Indexed(torch.utils.data.Dataset):
    """Sample i is always the same, whichever worker makes it."""

    def __len__(self):
        return 1024

    def __getitem__(self, i):
        x = torch.randn(1024, generator=torch.Generator().manual_seed(i))
        return x, os.getpid()


@check
def dataloader_fork():
    """A DataLoader with 4 forked workers feeds a model whose engine is already running."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    torch.cuda.synchronize()  # the engine and its threads run before the workers are forked
    losses, pids = [], set()
    for _ in range(2):
        loader = torch.utils.data.DataLoader(Indexed(), batch_size=32, num_workers=4, pin_memory=True, multiprocessing_context="fork")
        for x, made_by in loader:
            pids.update(made_by.tolist())
            x = x.to(DEV, non_blocking=True)
            loss = (model(x) - x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            losses.append(float(loss.detach()))
    expect(len(losses) == 64, f"{len(losses)} batches, not 64")
    expect(os.getpid() not in pids and len(pids) == 8, f"{len(pids)} worker processes, not 2 x 4")
    sane(losses)
    return "64 batches from 2 x 4 workers", {"losses": losses}


@check
def profiler():
    """torch.profiler over a step sees the kernels."""
    from torch.profiler import ProfilerActivity, profile

    model = mlp()
    train(2, model)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], profile_memory=True) as p:
        losses = train(2, model)
        torch.cuda.synchronize()
    averages = p.key_averages()
    operators = {a.key: a.count for a in averages if a.key.startswith("aten::")}
    device_us = sum(getattr(a, "self_device_time_total", 0) for a in averages)
    kernels = sum(1 for e in p.events() if str(e.device_type).endswith("CUDA"))
    expect(operators.get("aten::addmm", 0) >= 4, f"aten::addmm seen {operators.get('aten::addmm', 0)} times, not 4 or more")
    expect(kernels > 0 and device_us > 0, f"{kernels} device events, {device_us} us on the device")
    expect(len(averages.table(sort_by="self_cuda_time_total", row_limit=5)) > 0, "no table")
    return f"{kernels} device events, {device_us:.0f} us", {"operators": dict(sorted(operators.items())), "losses": losses}


@check
def autograd_thread():
    """backward() from a second thread, and two threads that train at once, give the gradients of one thread."""

    def gradients(model, in_thread):
        x = torch.randn(512, 1024, device=DEV, generator=torch.Generator(DEV).manual_seed(2))
        loss = model(x).square().mean()
        if in_thread:
            errors = []

            def go():
                try:
                    loss.backward()
                except BaseException as e:
                    errors.append(e)

            t = threading.Thread(target=go)
            t.start()
            t.join()
            if errors:
                raise errors[0]
        else:
            loss.backward()
        torch.cuda.synchronize()
        return [p.grad.clone() for p in model.parameters()]

    def same(a, b):
        return all(torch.equal(x, y) for x, y in zip(a, b))

    main = gradients(mlp(), False)
    expect(same(main, gradients(mlp(), True)), "gradients of a backward in a second thread differ")
    models, results = [mlp(), mlp()], [None, None]

    def both(i):
        try:
            results[i] = gradients(models[i], False)
        except BaseException as e:
            results[i] = e

    threads = [threading.Thread(target=both, args=(i,)) for i in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for r in results:
        if isinstance(r, BaseException):
            raise r
        expect(same(main, r), "gradients of two threads at once differ")
    return "gradients equal", {"norms": [float(g.double().norm()) for g in main]}


def early_reuse(record, cycles=1_000_000_000):
    """A side stream reads x late, x is freed at once, and the main stream writes whatever it is given
    next. Returns whether the side stream read what was in x, and whether its address came again."""
    bytes_ = 64 * MIB
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    x = block(bytes_, 1)
    address = x.data_ptr()
    with torch.cuda.stream(side):
        y = torch.empty_like(x)
        wide = torch.empty_like(x)
    torch.cuda.synchronize()
    side.wait_stream(main)
    with torch.cuda.stream(side):
        torch.cuda._sleep(cycles)  # about half a second at 2 GHz
        y.copy_(x)
        torch.add(x, x, out=wide)
    if record:
        x.record_stream(side)
    del x
    again = [block(bytes_, 2) for _ in range(16)]  # kept: as many different blocks, more than any cache holds
    reused = any(t.data_ptr() == address for t in again)
    busy = not side.query()
    torch.cuda.synchronize()
    right = bool((y == 1).all()) and bool((wide == 2).all())
    expect(all(bool((t == 2).all()) for t in again), "what the main stream wrote is not there")
    return right, reused, busy


@check
def record_stream():
    """Memory in use on a second stream is not given out again before that stream is done with it."""
    for _ in range(10):
        early_reuse(record=True, cycles=1000)  # loading a kernel may wait for the delay, and so may what an engine does with the first launches of one
    for i in range(3):
        right, _, busy = early_reuse(record=True)
        expect(busy, "the delay kernel was too short for this check to mean anything")
        expect(right, f"round {i + 1}: memory was reused while the other stream still read it")
    detail = "3 rounds right"
    if not UNDER_PENSTOCK:
        # The check must be able to fail: without record_stream, stock PyTorch reuses at once.
        right, reused, _ = early_reuse(record=False)
        expect(reused and not right, "leaving record_stream out did no harm, so this check proves nothing")
        detail += "; without record_stream it is wrong, as it must be"
    return detail, {}


@check
def two_streams_over_budget():
    """Five GiB of tensors (more than the budget), written and read on two streams with events between."""
    a, b = torch.cuda.Stream(), torch.cuda.Stream()
    tensors = []
    for i in range(10):
        with torch.cuda.stream(a if i % 2 else b):
            tensors.append(block(512 * MIB, i))
    for _ in range(3):
        for i, t in enumerate(tensors):
            mine, other = (a, b) if i % 2 else (b, a)
            with torch.cuda.stream(mine):
                t.add_(1)
            other.wait_stream(mine)
            with torch.cuda.stream(other):
                t.add_(1)
            mine.wait_stream(other)
    torch.cuda.synchronize()
    for i, t in enumerate(tensors):
        low, high = float(t.min()), float(t.max())
        expect(low == high == i + 6, f"tensor {i} holds {low} to {high}, not {i + 6}")
    return "10 x 512 MiB right after 60 cross-stream updates", {}


@check
def empty_cache():
    """empty_cache() gives back what is free and leaves what is live alone."""
    keep = [block(n, i + 1) for i, n in enumerate((4096, 300_000, 3 * MIB, 256 * MIB))]
    scratch = [block(64 * MIB, 9) for _ in range(8)]
    held = torch.cuda.memory_reserved()
    del scratch
    allocated = torch.cuda.memory_allocated()
    before = torch.cuda.memory_reserved()
    torch.cuda.empty_cache()
    after = torch.cuda.memory_reserved()
    expect(torch.cuda.memory_allocated() == allocated, "memory_allocated changed")
    expect(allocated <= after <= before <= held, f"reserved {held}, {before} after the frees, {after} after empty_cache; allocated {allocated}")
    expect(after < held, f"nothing was given back: reserved {held} before, {after} after")
    for i, t in enumerate(keep):
        expect(bool((t == i + 1).all()), f"a live tensor of {t.numel() * 4} bytes lost its contents")
    more = [block(64 * MIB, 5) for _ in range(4)]
    torch.cuda.empty_cache()
    expect(all(bool((t == 5).all()) for t in more), "memory allocated afterwards is wrong")
    return f"reserved {held / MIB:.0f} -> {before / MIB:.0f} -> {after / MIB:.0f} MiB", {"losses": train()}


@check
def zero_bytes():
    """Allocations of 0 bytes."""
    before = torch.cuda.memory_allocated()
    empties = [torch.empty(0, device=DEV), torch.empty(0, 1024, device=DEV), torch.zeros(5, 0, device=DEV)]
    seen = {
        "addresses": [t.data_ptr() for t in empties], "storage_bytes": [t.untyped_storage().nbytes() for t in empties],
        "allocated": torch.cuda.memory_allocated() - before,
    }  # fmt: skip
    model = mlp()
    x = torch.empty(0, 1024, device=DEV, requires_grad=True)
    y = model(x)
    y.sum().backward()
    seen["shape"] = list(y.shape)
    seen["gradient"] = float(model[0].weight.grad.abs().sum())
    joined = torch.cat([empties[1], torch.ones(2, 1024, device=DEV)])
    seen["joined"] = float(joined.sum())
    for t in empties:
        t.record_stream(torch.cuda.Stream())
    t = torch.ones(1024, 1024, device=DEV)
    t.resize_(0).resize_(4)
    del empties, x, y, joined, t
    torch.cuda.synchronize()
    expect(seen["storage_bytes"] == [0, 0, 0] and seen["joined"] == 2048.0, str(seen))
    return "as stock", {**seen, "losses": train()}


@check
def out_of_memory():
    """An allocation that cannot be is torch.OutOfMemoryError, and the job goes on."""
    keep = block(256 * MIB, 7)
    ooms = torch.cuda.memory_stats()["num_ooms"]
    allocated = torch.cuda.memory_allocated()
    # Larger than any card; under Penstock also one that only the two budgets (4 + 2 GiB) forbid.
    sizes = [4096 * GIB, 300 * GIB] + ([7 * GIB] if UNDER_PENSTOCK else [])
    messages = []
    for n in sizes:
        try:
            torch.empty(n, dtype=torch.uint8, device=DEV)
        except torch.OutOfMemoryError as e:
            messages.append(str(e).splitlines()[0])
        else:
            raise Failed(f"{n >> 30} GiB were allocated")
    expect(torch.cuda.OutOfMemoryError is torch.OutOfMemoryError, "torch.cuda.OutOfMemoryError is another type")
    expect(all("out of memory" in m for m in messages), f"not the usual words: {messages}")
    expect(torch.cuda.memory_allocated() == allocated, "memory_allocated changed")
    expect(torch.cuda.memory_stats()["num_ooms"] >= ooms + len(sizes), f"num_ooms counts {torch.cuda.memory_stats()['num_ooms'] - ooms}, not {len(sizes)}")
    if UNDER_PENSTOCK:
        for words in ("4.00 GiB", "2.00 GiB"):
            expect(words in messages[-1], f"the message does not name both budgets ({words} is missing): {messages[-1]}")
    losses = train()
    expect(bool((keep == 7).all()), "a live tensor lost its contents")
    return messages[-1][:300], {"losses": losses}


@check
def memory_statistics():
    """The statistics functions return plausible numbers."""
    c = torch.cuda
    start = c.memory_allocated()
    t = block(300 * MIB, 1)
    c.synchronize()
    size, slack = 300 * MIB, 64 * MIB
    now = c.memory_allocated()
    expect(size <= now - start <= size + slack, f"memory_allocated rose by {now - start} for {size} bytes")
    expect(c.max_memory_allocated() >= now, "the peak is below the present")
    expect(c.memory_reserved() >= now, f"reserved {c.memory_reserved()} is below allocated {now}")
    stats = c.memory_stats()
    expect(stats["allocated_bytes.all.current"] == now, "memory_stats and memory_allocated differ")
    expect(stats["allocated_bytes.all.peak"] == c.max_memory_allocated(), "memory_stats and max_memory_allocated differ")
    expect(stats["allocation.all.current"] >= 1 and stats["num_alloc_retries"] >= 0, "memory_stats counts no allocations")
    expect(len(c.memory_stats_as_nested_dict()) > 0 and len(c.memory_summary()) > 100, "no nested statistics or no summary")
    free, total = c.mem_get_info()
    expect(0 <= free <= total, f"mem_get_info: {free} free of {total}")
    if UNDER_PENSTOCK:
        expect(total == 4 * GIB, f"mem_get_info: {total} bytes in all, not the budget")
        expect(free <= total - size, f"mem_get_info: {free} free with {size} of {total} in use")
    del t
    c.synchronize()
    expect(c.memory_allocated() <= start + slack, f"{c.memory_allocated() - start} bytes stay allocated after the free")
    expect(c.max_memory_allocated() >= start + size, "the peak was forgotten")
    c.reset_peak_memory_stats()
    expect(c.max_memory_allocated() <= start + slack, f"the peak is {c.max_memory_allocated()} after a reset with {c.memory_allocated()} in use")
    c.reset_accumulated_memory_stats()
    c.set_per_process_memory_fraction(0.9)
    return f"{now / MIB:.0f} MiB counted for 300, {free / GIB:.2f} of {total / GIB:.2f} GiB free", {"losses": train()}


@check
def cuda_graph():
    """Capture and replay of a small MLP, forward and a whole training step."""
    model = mlp()
    static_x = torch.zeros(256, 1024, device=DEV)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = (model(static_x) - static_x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
            with torch.no_grad():
                model(static_x)
    torch.cuda.current_stream().wait_stream(side)

    forward = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(forward):
        static_y = model(static_x)
    whole = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(whole):
        static_loss = step()

    generator = torch.Generator(DEV).manual_seed(3)
    losses = []
    for i in range(6):
        x = torch.randn(256, 1024, device=DEV, generator=generator)
        static_x.copy_(x)
        forward.replay()
        with torch.no_grad():
            eager = model(x)
        torch.cuda.synchronize()
        expect(torch.allclose(static_y, eager, rtol=1e-4, atol=1e-4), f"replay {i + 1} of the forward pass differs from eager by {float((static_y - eager).abs().max())}")
        whole.replay()
        junk = [block(8 * MIB, 3) for _ in range(4)]  # ordinary memory between replays must not be the graph's
        torch.cuda.synchronize()
        expect(all(bool((t == 3).all()) for t in junk), "ordinary memory and a graph's overlap")
        losses.append(float(static_loss))
    sane(losses)
    del forward, whole, static_y, static_loss
    torch.cuda.empty_cache()
    return "6 replays of 2 graphs", {"losses": losses, "after": train()}


@check
def torch_compile():
    """A compiled small MLP."""
    torch.manual_seed(0)
    model = mlp()
    compiled = torch.compile(model)
    x = torch.randn(256, 1024, device=DEV, generator=torch.Generator(DEV).manual_seed(4))
    for _ in range(3):
        loss = compiled(x).square().mean()
        loss.backward()
    torch.cuda.synchronize()
    got = [p.grad.clone() for p in model.parameters()]
    model.zero_grad(set_to_none=True)
    for _ in range(3):
        model(x).square().mean().backward()
    worst = max(float((a - p.grad).abs().max() / p.grad.abs().max().clamp_min(1e-12)) for a, p in zip(got, model.parameters()))
    expect(worst < 1e-2, f"gradients of the compiled model are off by {worst}")
    return f"gradients within {worst:.1e} of eager", {}


def churn():
    """Not a check: moves memory until it is ended from outside. Says when it is under way."""
    tensors = [block(512 * MIB, i) for i in range(10)]
    n = 0
    while True:
        for t in tensors:
            t.add_(1)
        torch.cuda.synchronize()
        n += 1
        if n == 2:
            print("under way", flush=True)


def main():
    name = sys.argv[1]
    if name == "churn":
        churn()
    result = {"check": name, "ok": False, "detail": "", "compare": {}, "torch": torch.__version__}
    try:
        result["detail"], result["compare"] = CHECKS[name]()
        torch.cuda.synchronize()
        result["ok"] = True
    except Failed as e:
        result["detail"] = str(e)
    except Exception as e:
        text = (str(e).splitlines() or [""])[0]
        result["detail"] = f"{type(e).__name__}: {text[:300]}"
        traceback.print_exc()
    print(json.dumps(result), flush=True)
    sys.exit(0 if result["ok"] else 1)


if __name__ == "__main__":
    main()
