"""Installing Penstock in the PyTorch of this process."""

from __future__ import annotations

import atexit
import ctypes
import multiprocessing
import os
import sys
import threading
import warnings
from typing import Any

from . import _libs, _options, _patch, _versions
from ._errors import PenstockError, PenstockWarning
from ._native import Native

# PyTorch's setters, and the functions of the shim that they get.
_SETTERS = {
    "set_record_stream_fn": "penstock_torch_record_stream",
    "set_reset_fn": "penstock_torch_empty_cache",  # what torch.cuda.empty_cache() ends in
    "set_memory_fraction_fn": "penstock_torch_set_memory_fraction",
    "set_begin_allocate_to_pool": "penstock_torch_begin_pool",
    "set_end_allocate_to_pool_fn": "penstock_torch_end_pool",
    "set_release_pool": "penstock_torch_release_pool",
}

_lock = threading.Lock()
_native: Native | None = None
_allocator: Any = None  # PyTorch holds the C++ object; this keeps the Python one


def enable(
    budget: _options.Size | None = None,
    host_budget: _options.Size | None = None,
    engine: str | None = None,
    policy: str | None = None,
    trace: _options.Value | None = None,
    report: _options.Value | None = None,
    *,
    restart: bool = False,
    **options: _options.Value | None,
) -> None:
    """Makes PyTorch allocate its GPU memory through Penstock, for the rest of the process.

    Call it before the first CUDA call. It is cheap: the engine starts with the
    first allocation on the GPU, so processes that never get there (DataLoader
    workers, launchers) do not run it.

    Args:
        budget: device memory to use, in bytes or as text such as ``"24GiB"``, of
            this process. All of the card when absent.
        host_budget: host memory to use, of this process. A share of most of what
            is available when absent.
        engine: how memory is moved: ``"auto"`` (explicit where this machine can, else
            managed), ``"explicit"``, ``"managed"`` or ``"none"`` (docs/engines.md).
        policy: what is moved when: ``"penstock"``, ``"deepum"``, ``"lru"`` or ``"naive"``.
        trace: a file to record the run to. In a job of several processes each has
            its rank in its name: ``t.pstrace`` is ``t.rank1.pstrace`` for rank 1.
        report: a file for the verdict as JSON, named in the same way.
        restart: when the launch hook is not preloaded, start this interpreter
            again with it. What the program did before this call is done again.
        options: any other option, by the name of its PENSTOCK_* variable in
            lower case, such as ``verify=True`` for PENSTOCK_VERIFY
            (docs/options.md has them all).

    An option that is not given keeps the value of its PENSTOCK_* variable.
    Enabling twice is harmless; options may change until the engine starts.
    """
    env = _options.to_environment(
        dict(options, budget=budget, host_budget=host_budget, engine=engine, policy=policy, trace=trace, report=report)
    )
    global _native, _allocator
    with _lock:
        if _native is not None:
            changed = _options.differing(env, os.environ)
            if changed and _native.started():
                raise PenstockError(
                    f"Penstock is already running, so {', '.join(changed)} cannot change; call penstock.enable() once, before the first CUDA call"
                )
            _update_environment(env)
            return
        torch = _import_torch()
        _check(torch)
        # Everything that can fail comes before anything that changes PyTorch.
        shim, library = _libs.find(_libs.TORCH), _libs.find(_libs.ENGINE)
        _preload(restart, env)
        layouts, warning = _versions.layouts(torch.__version__)
        native = Native(shim, library, layouts.exception)
        # Only now: the engine reads its environment when it is opened, which is later.
        _update_environment(env)
        _mark_worker()
        _allocator = _install(torch, native, layouts.pools)
        if hook_loaded():
            ctypes.CDLL(None).penstock_hook_expect_lists(layouts.lists)
        if warning:
            _warn_once(warning)
        _patch.apply(torch, native)
        _native = native
        atexit.register(_close, os.getpid())
        os.register_at_fork(after_in_child=_mark_child)


def _mark_worker() -> None:
    """Tells the engine that this is one of several processes that the program made, whose files need names of their own."""
    # A spawned one has its name, but no parent_process() yet, when its program's imports come through here.
    if multiprocessing.current_process().name != "MainProcess":
        _mark_child()


def _mark_child() -> None:
    os.environ["PENSTOCK_WORKER"] = "1"


def _warn_once(text: str) -> None:
    """A line of one process: those that it starts, such as ranks and DataLoader workers, have its environment."""
    if os.environ.get("PENSTOCK_WARNED") != "1":
        os.environ["PENSTOCK_WARNED"] = "1"
        print(f"penstock: {text}", file=sys.stderr)


def _update_environment(env: dict[str, str]) -> None:
    os.environ.update(env)
    if os.environ.get("PENSTOCK_ENGINE", "") in ("explicit", "auto", ""):
        # As penstock run does: the engine has to know what NCCL runs when a call returns.
        os.environ["NCCL_COMM_BLOCKING"] = "1"


def disable() -> None:
    """Not possible: PyTorch cannot change its allocator once it is in use."""
    raise PenstockError("Penstock cannot be disabled in a running process; start the program without it")


def is_enabled() -> bool:
    """Whether enable() has taken effect in this process."""
    return _native is not None


def has_run() -> bool:
    """Whether the engine has started in this process."""
    return _native is not None and _native.device() is not None


def stats() -> dict[str, Any]:
    """What the engine has counted: bytes allocated, resident and moved, faults, stalls and more.

    ``enabled`` and ``started`` are always there; the rest comes with the first
    allocation. A value of None is one that cannot be had on this machine.
    """
    native = _native
    values: dict[str, Any] = {"enabled": native is not None, "started": False}
    if native is None:
        return values
    engine = native.stats()
    if engine is not None:
        values.update(engine, started=True, device=native.device(), requested_bytes=native.counters()["all"]["bytes"]["current"])
    return values


def _import_torch() -> Any:
    try:
        import torch
    except ImportError as e:
        raise PenstockError(f"PyTorch cannot be imported ({e}); install it, Penstock works inside it") from None
    return torch


def _check(torch: Any) -> None:
    version = getattr(torch, "version", None)
    if getattr(version, "hip", None):
        raise PenstockError("this PyTorch is built for ROCm; Penstock needs the CUDA build")
    if not getattr(version, "cuda", None):
        raise PenstockError("this PyTorch is built without CUDA; install a CUDA build of it")
    if torch.cuda.is_initialized():
        raise PenstockError(
            "PyTorch has already initialised CUDA, and its allocator cannot be changed after that; "
            "call penstock.enable() before the first CUDA call, or use `penstock run`"
        )


def _install(torch: Any, native: Native, known_pools: bool) -> Any:
    memory = torch.cuda.memory
    missing = ["CUDAPluggableAllocator"]
    if hasattr(memory, missing[0]):
        allocator = memory.CUDAPluggableAllocator(str(native.path), "penstock_torch_malloc", "penstock_torch_free")
        inner = allocator.allocator()
        missing = [name for name in _SETTERS if not hasattr(inner, name)]
    if missing:
        raise PenstockError(
            f"PyTorch {torch.__version__} has an allocator interface without {', '.join(missing)}; Penstock needs PyTorch {_versions.OLDEST} or newer"
        )
    for setter, function in _SETTERS.items():
        getattr(inner, setter)(native.address(function))
    try:
        memory.change_current_allocator(allocator)
    except RuntimeError as e:
        raise PenstockError(
            f"PyTorch did not accept the allocator ({str(e).splitlines()[0]}); call penstock.enable() before the first CUDA call, and install no other"
        ) from None
    if native.adopt(known_pools) < 0:
        warnings.warn(
            "this PyTorch's allocator object is not as expected: torch.backends.cudnn.benchmark will not work under Penstock",
            PenstockWarning,
            stacklevel=4,
        )
    return allocator


def hook_loaded() -> bool:
    """Whether the launch hook is preloaded in this process."""
    return hasattr(ctypes.CDLL(None), "penstock_hook_attach")


def _preload(restart: bool, env: dict[str, str]) -> None:
    # The hook takes part in symbol resolution from the start of the process or
    # not at all, so it cannot be loaded from here.
    if hook_loaded():
        return
    try:
        hook: str | None = str(_libs.find(_libs.HOOK))
    except PenstockError:
        if restart:
            raise
        hook = None
    if restart and hook:
        if os.environ.get("PENSTOCK_RESTARTED") == hook:
            raise PenstockError(f"the interpreter was started again, and {hook} is still not loaded; is LD_PRELOAD honoured here?")
        os.environ.update(env, **_libs.preload(hook, os.environ), PENSTOCK_RESTARTED=hook)
        sys.stdout.flush()
        sys.stderr.flush()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    warnings.warn(
        "the launch hook is not preloaded, so Penstock sees allocations but no kernel launches and moves memory only on demand; "
        f"use `penstock run`, penstock.enable(restart=True), or LD_PRELOAD={hook or _libs.HOOK}",
        PenstockWarning,
        stacklevel=3,
    )


def _close(pid: int) -> None:
    # A forked child that exits in the ordinary way runs its parent's handlers.
    if _native is not None and os.getpid() == pid:
        _native.close()
