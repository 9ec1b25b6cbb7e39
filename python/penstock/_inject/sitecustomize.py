"""Python imports this at start-up under `penstock run`, which puts its folder first on PYTHONPATH.

It must never be the reason that a program does not run: any failure here is
one line on stderr and the program goes on.
"""

import os
import sys


def _start() -> None:
    # Any Python that the command starts comes through here, old ones too.
    if not os.environ.get("PENSTOCK_ACTIVE") or sys.version_info < (3, 10):
        return
    try:
        # The package beside this folder, whatever else is called penstock.
        root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        sys.path.insert(0, root)
        try:
            from penstock import _hook
        finally:
            sys.path.remove(root)
        _hook.install()
    except Exception as e:  # noqa: BLE001
        sys.stderr.write("penstock: the import hook was not installed (%s); running without Penstock\n" % e)


def _chain() -> None:
    """Runs the sitecustomize that this one hides, if there is one further along sys.path."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    here = os.path.realpath(os.path.dirname(os.path.abspath(__file__)))
    spec = PathFinder.find_spec("sitecustomize", [p for p in sys.path if os.path.realpath(p or os.curdir) != here])
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


_start()
_chain()
