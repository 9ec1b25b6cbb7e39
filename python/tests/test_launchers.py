"""`penstock run -- LAUNCHER ... train.py`: the hook and the options reach the innermost Python, whatever starts it.

torchrun and accelerate are the real ones where they are installed. Else, and for deepspeed, stand-ins start the program
as these do: deepspeed by a launcher that starts another one of its own for each node, with a copy of its environment.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys

import pytest

TRAIN = """
import ctypes, json, os, sys
# What a DataLoader's worker and the program both are: a Python with the hook, in which torch would be found.
facts = dict(hook=hasattr(ctypes.CDLL(None), "penstock_hook_attach"), budget=os.environ.get("PENSTOCK_BUDGET"),
    finder=any("penstock" in type(f).__module__ for f in sys.meta_path), rank=os.environ.get("RANK"), arguments=sys.argv[1:])
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), f"facts.{os.getpid()}.json"), "w") as f:
    json.dump(facts, f)
"""

ACCELERATE = """#!{python}
import os, subprocess, sys
assert sys.argv[1] == "launch"
environment = os.environ.copy()
environment["ACCELERATE_MIXED_PRECISION"] = "no"
sys.exit(subprocess.Popen([sys.executable, *sys.argv[2:]], env=environment).wait())
"""

DEEPSPEED = """#!{python}
import os, subprocess, sys
if "--node" not in sys.argv:
    sys.exit(subprocess.Popen([sys.executable, "-u", sys.argv[0], "--node", *sys.argv[1:]], env=os.environ.copy()).wait())
processes = []
for rank in range(2):
    environment = os.environ.copy()
    environment.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="29500")
    command = [sys.executable, "-u", sys.argv[2], f"--local_rank={{rank}}", *sys.argv[3:]]
    processes.append(subprocess.Popen(command, env=environment, start_new_session=True))
sys.exit(max(p.wait() for p in processes))
"""

TORCHRUN = """#!{python}
import os, subprocess, sys
assert sys.argv[1:3] == ["--nproc-per-node", "2"]
processes = [subprocess.Popen([sys.executable, "-u", *sys.argv[3:]], env=dict(os.environ, RANK=str(r), LOCAL_RANK=str(r), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2")) for r in range(2)]
sys.exit(max(p.wait() for p in processes))
"""

SHELL = """#!/bin/sh
# As job scripts are: a folder is changed, variables are set, output goes through a pipe.
set -e
cd "$(dirname "$0")"
export OMP_NUM_THREADS=1
{python} train.py "$@" 2>&1 | cat
"""

SPAWN = """
import multiprocessing, runpy, os
def work(path):
    runpy.run_path(path)
if __name__ == "__main__":
    p = multiprocessing.get_context("spawn").Process(target=work, args=(os.path.join(os.path.dirname(os.path.abspath(__file__)), "train.py"),))
    p.start(); p.join()
    raise SystemExit(p.exitcode)
"""


@pytest.fixture
def folder(command, tmp_path):
    """A folder with the program and the launchers, which are found first on the PATH."""
    programs = tmp_path / "program"
    launchers = tmp_path / "bin"
    (programs / "package").mkdir(parents=True)
    launchers.mkdir()
    (programs / "train.py").write_text(TRAIN)
    (programs / "package" / "__init__.py").write_text("")
    (programs / "package" / "train.py").write_text(TRAIN)
    (programs / "spawn.py").write_text(SPAWN)
    for path, text in ((launchers / "accelerate", ACCELERATE), (launchers / "deepspeed", DEEPSPEED), (launchers / "torchrun", TORCHRUN), (programs / "job.sh", SHELL)):
        path.write_text(text.format(python=sys.executable))
        path.chmod(0o755)
    command.environment["PATH"] = f"{launchers}{os.pathsep}{command.environment['PATH']}"
    return programs


def launch(command, folder, *arguments, processes, ranks=False, **environment):
    # Nothing that the launcher is given may be taken for an option of penstock run.
    done = command.run("run", "--budget", "64MiB", "--", *arguments, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    found = [json.loads(path.read_text()) for path in folder.rglob("facts.*.json")]
    assert len(found) == processes, done.stdout + done.stderr
    for facts in found:
        assert facts["hook"]
        assert facts["finder"]
        assert facts["budget"] == str(64 << 20)
        assert facts["arguments"][-2:] == ["--lr", "1"]
    if ranks:
        assert sorted(facts["rank"] for facts in found) == [str(rank) for rank in range(processes)]


TAIL = ("--lr", "1")


def test_python(command, folder):
    launch(command, folder, sys.executable, folder / "train.py", *TAIL, processes=1)


def test_module(command, folder):
    launch(command, folder, sys.executable, "-m", "package.train", *TAIL, processes=1, PYTHONPATH=os.pathsep.join([str(folder), command.environment["PYTHONPATH"]]))


@pytest.mark.parametrize("shell", [(), ("sh",), ("env", "X=1", "nice")])
def test_shell_script(command, folder, shell):
    launch(command, folder, *shell, folder / "job.sh", *TAIL, processes=1)


def test_spawned_worker(command, folder):
    launch(command, folder, sys.executable, folder / "spawn.py", *TAIL, processes=1)


def test_accelerate(command, folder):
    launch(command, folder, "accelerate", "launch", folder / "train.py", *TAIL, processes=1)


def test_deepspeed(command, folder):
    launch(command, folder, "deepspeed", folder / "train.py", *TAIL, processes=2, ranks=True)


def test_torchrun(command, folder):
    launch(command, folder, "torchrun", "--nproc-per-node", "2", folder / "train.py", *TAIL, processes=2, ranks=True)


def real(module):
    return pytest.mark.skipif(importlib.util.find_spec(module) is None, reason=f"{module} is not installed")


@real("torch")
def test_real_torchrun(command, folder):
    arguments = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    launch(command, folder, sys.executable, *arguments, folder / "train.py", *TAIL, processes=2, ranks=True, PENSTOCK_WARNED="1")


@real("accelerate")
@real("torch")
def test_real_accelerate(command, folder):
    # Several processes on GPUs it starts by torch.distributed.run, as above; on CPUs by mpirun.
    arguments = ("-m", "accelerate.commands.launch", "--cpu", "--num_processes", "1", "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no")
    launch(command, folder, sys.executable, *arguments, folder / "train.py", *TAIL, processes=1, PENSTOCK_WARNED="1")
