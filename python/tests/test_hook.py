"""The import hook of `penstock run`."""

import sys

import pytest

SCRIPT = """
import sys
import {first}
import torch
import penstock
print(penstock.is_enabled(), type(torch.__loader__).__module__, torch.__spec__.loader is torch.__loader__)
print(any(type(f).__module__ == "penstock._hook" for f in sys.meta_path))
"""


def test_enables_at_the_import_of_torch(sandbox):
    r = sandbox.run(SCRIPT.format(first="json"), env=sandbox.environment(active=True, PENSTOCK_BUDGET="1000"))
    assert r.code == 0 and r.err == "", r.err
    lines = r.out.splitlines()
    assert lines[0].startswith("True ") and lines[0].endswith(" True") and "penstock" not in lines[0]
    assert lines[1] == "False"


def test_import_of_a_submodule_first(sandbox):
    r = sandbox.run(SCRIPT.format(first="torch.cuda.memory"), env=sandbox.environment(active=True))
    assert r.code == 0 and r.out.startswith("True"), r.err


def test_does_nothing_without_torch(sandbox):
    r = sandbox.run("import sys; print('penstock._runtime' in sys.modules, 'ctypes' in sys.modules)", env=sandbox.environment(active=True))
    assert (r.code, r.out, r.err) == (0, "False False\n", "")


def test_script_that_probes_for_torch(sandbox):
    r = sandbox.run(
        """
import importlib.util
try:
    import torch
except ImportError as e:
    print("no torch:", e.name)
print(importlib.util.find_spec("torch"))
""",
        env=sandbox.environment(active=True, fake_torch=False),
    )
    if "torch/__init__" in r.out:
        pytest.skip("PyTorch is installed")
    assert (r.code, r.out) == (0, "no torch: torch\nNone\n"), r.err


def test_find_spec_alone_does_not_enable(sandbox):
    r = sandbox.run(
        """
import importlib.util, sys
assert importlib.util.find_spec("torch") and importlib.util.find_spec("torch")
assert "torch" not in sys.modules
import torch, penstock
print(penstock.is_enabled())
""",
        env=sandbox.environment(active=True),
    )
    assert (r.code, r.out) == (0, "True\n"), r.err


def test_inactive_and_disabled(sandbox):
    program = "import torch, penstock; print(penstock.is_enabled())"
    for extra in ({"PENSTOCK_ACTIVE": ""}, {"PENSTOCK_DISABLE": "1"}):
        r = sandbox.run(program, env=sandbox.environment(active=True, **extra))
        assert (r.code, r.out, r.err) == (0, "False\n", "")


def test_error_is_one_line_and_status_2(sandbox):
    r = sandbox.run("import torch; print('not reached')", env=sandbox.environment(active=True, PENSTOCK_LIB="/nonexistent"))
    assert r.code == 2 and r.out == ""
    assert len(r.err.splitlines()) == 1 and r.err.startswith("penstock: ") and "/nonexistent" in r.err


def test_torch_without_cuda_goes_on(sandbox, tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("import types\nversion = types.SimpleNamespace(cuda=None, hip=None)\n")
    r = sandbox.run("import torch; print('reached')", env=sandbox.environment(active=True, fake_torch=False))
    assert (r.code, r.out) == (0, "reached\n")
    assert len(r.err.splitlines()) == 1 and "without CUDA" in r.err


def test_a_torch_that_fails_to_import(sandbox, tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('broken')\n")
    r = sandbox.run(
        "for i in range(2):\n    try:\n        import torch\n    except ImportError as e:\n        print(e)",
        env=sandbox.environment(active=True, fake_torch=False),
    )
    assert (r.code, r.out, r.err) == (0, "broken\nbroken\n", "")


def test_users_sitecustomize_still_runs(sandbox, tmp_path):
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text("import sys\nsys.theirs = __file__\n")
    env = sandbox.environment(active=True)
    env["PYTHONPATH"] += f":{theirs}"
    r = sandbox.run("import sys, sitecustomize; print(sys.theirs == sitecustomize.__file__)", env=env)
    assert (r.code, r.out, r.err) == (0, "True\n", "")


def test_a_failing_users_sitecustomize_is_reported_as_ever(sandbox, tmp_path):
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text("1 / 0\n")
    env = sandbox.environment(active=True)
    env["PYTHONPATH"] += f":{theirs}"
    r = sandbox.run("import torch, penstock; print(penstock.is_enabled())", env=env)
    assert r.code == 0 and r.out == "True\n"
    assert "ZeroDivisionError" in r.err


def test_python_child_is_enabled_too(sandbox):
    r = sandbox.run(
        f"import subprocess; subprocess.run([{sys.executable!r}, '-c', 'import torch, penstock; print(penstock.is_enabled())'], check=True)",
        env=sandbox.environment(active=True),
    )
    assert (r.code, r.out) == (0, "True\n"), r.err


def test_a_failed_start_is_one_line_and_status_2(sandbox):
    program = """
import atexit, torch
atexit.register(print, "exit handlers run")
torch.cuda._lazy_init()
def deep():
    raise RuntimeError({text!r})  # as the shim's exception arrives; ctypes cannot carry one
deep()
"""
    r = sandbox.run(program.format(text="penstock: the budget is above the card's memory"), env=sandbox.environment(active=True))
    assert (r.code, r.out, r.err) == (2, "exit handlers run\n", "penstock: the budget is above the card's memory\n")
    r = sandbox.run(program.format(text="something else"), env=sandbox.environment(active=True))
    assert r.code == 1 and "Traceback" in r.err
    # Once the engine runs, an error is the program's and keeps its stack.
    r = sandbox.run(
        program.format(text="penstock: cannot do this").replace("def deep", "torch._C.current.alloc(10, 0, None)\ndef deep"),
        env=sandbox.environment(active=True),
    )
    assert r.code == 1 and "Traceback" in r.err
