"""Enables Penstock as soon as the program has imported PyTorch, for `penstock run`."""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from ._options import is_on


def install() -> None:
    """Watches for the import of torch. Does nothing outside `penstock run`."""
    if not is_on(os.environ.get("PENSTOCK_ACTIVE", "")) or is_on(os.environ.get("PENSTOCK_DISABLE", "")):
        return
    if "torch" in sys.modules:
        _imported()
    elif not any(isinstance(f, _Finder) for f in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != "torch":
            return None
        # The finders behind this one say where torch is. This one steps aside
        # meanwhile, and for good once torch has been imported.
        self._step_aside()
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self)
        return spec

    def _step_aside(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)


class _Loader(Loader):
    """Loads a module as its own loader does, then calls back."""

    def __init__(self, inner: Any, finder: _Finder) -> None:
        self._inner = inner
        self._finder = finder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        create = getattr(self._inner, "create_module", None)
        return create(spec) if create else None

    def exec_module(self, module: ModuleType) -> None:
        # The module keeps no trace of us: importlib.resources, inspect and
        # pickle look at its loader.
        module.__loader__ = self._inner
        if module.__spec__ is not None:
            module.__spec__.loader = self._inner
        self._inner.exec_module(module)
        self._finder._step_aside()
        _imported()


def _imported() -> None:
    from . import _runtime
    from ._errors import PenstockError

    torch = sys.modules["torch"]
    version = getattr(torch, "version", None)
    if not getattr(version, "cuda", None) and not getattr(version, "hip", None):
        print("penstock: this PyTorch is built without CUDA, so there is nothing to do; running without Penstock", file=sys.stderr)
        return
    try:
        _runtime.enable()
    except PenstockError as e:
        print(f"penstock: {e}", file=sys.stderr)
        raise SystemExit(2) from None
    _report_failed_start()


def _report_failed_start() -> None:
    """A bad budget, a driver that is too old: the engine finds out at the first
    allocation, deep in the program, whose stack has nothing to do with it. When
    the program does not handle the error, it becomes one line and status 2.
    """
    from . import _runtime

    previous = sys.excepthook

    def hook(kind: Any, error: Any, trace: Any) -> None:
        if isinstance(error, RuntimeError) and str(error).startswith("penstock: ") and not _runtime.has_run():
            print(error, file=sys.stderr)
            raise SystemExit(2)
        previous(kind, error, trace)

    sys.excepthook = hook
