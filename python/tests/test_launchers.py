"""`penstock run` before whatever starts Python in the end: the program finds the hook and the allocator in each."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import REPO, TESTS

PENSTOCK = REPO / "bin" / "penstock"
pytestmark = pytest.mark.skipif(not PENSTOCK.exists(), reason="bin/penstock is not built: run `make build`")

JOB = """
import ctypes, penstock, torch
print("hooked", bool(ctypes.CDLL(None).penstock_hook_attach), "enabled", penstock.is_enabled())
"""


@pytest.mark.parametrize(
    "command",
    [[sys.executable, "job.py"], [sys.executable, "-m", "job"], ["sh", "job.sh"], ["./job.sh"], ["make", "-s", "job"], ["env", "A=b", sys.executable, "job.py"]],
    ids=["script", "module", "sh", "shell script", "make", "env"],
)
def test_launchers(command, stub: Path, tmp_path: Path):
    (tmp_path / "job.py").write_text(JOB)
    (tmp_path / "job.sh").write_text(f'#!/bin/sh\n"{sys.executable}" job.py\n')
    (tmp_path / "job.sh").chmod(0o755)
    (tmp_path / "Makefile").write_text(f'job:\n\t"{sys.executable}" job.py\n')
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PENSTOCK_", "STUB_", "LD_"))}
    env.update(LD_LIBRARY_PATH=str(stub), PYTHONPATH=str(TESTS / "fake_torch"), PYTHONWARNINGS="ignore")
    done = subprocess.run([PENSTOCK, "run", "--budget", "1GiB", "--", *command], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout == "hooked True enabled True\n", done.stdout + done.stderr
