"""Builds what the tests load: the shim as shipped, engines and PyTorch libraries that are fakes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
PYTHON = TESTS.parent
REPO = PYTHON.parent
NATIVE = TESTS / "native"

if str(PYTHON) not in sys.path:
    sys.path.insert(0, str(PYTHON))


def build(*command: object) -> None:
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}"


@pytest.fixture(scope="session")
def compiler() -> str:
    for tool in ("gcc", "g++", "make"):
        if not shutil.which(tool):
            pytest.skip(f"{tool} is not installed; these tests build small libraries")
    return "gcc"


@pytest.fixture(scope="session")
def libs(tmp_path_factory: pytest.TempPathFactory, compiler: str) -> Path:
    """A library folder: the real shim, a fake engine, a hook that does nothing."""
    out = tmp_path_factory.mktemp("lib")
    build("make", "--no-print-directory", "-C", REPO / "cabi" / "torch", f"OUT={out / 'libpenstock_torch.so'}")
    shared = (compiler, "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-I{REPO / 'cabi'}")
    build(*shared, "-o", out / "libpenstock.so", NATIVE / "fake_penstock.c", "-pthread")
    hook = out / "hook.c"
    hook.write_text("void *penstock_hook_attach(unsigned v) { (void)v; return 0; }\n"
        "int lists_expected = -1;\n"
        "void penstock_hook_expect_lists(int known) { lists_expected = known; }\n")
    build(*shared, "-o", out / "libpenstock_hook.so", hook)
    return out


@pytest.fixture(scope="session")
def stub(tmp_path_factory: pytest.TempPathFactory, compiler: str) -> Path:
    """A folder with the stub driver, cabi/stub."""
    folder = tmp_path_factory.mktemp("stub")
    build("make", "-s", "-C", REPO / "cabi" / "stub", f"OUT={folder / 'libcuda.so.1'}", "STUB_VERSION=13050")
    return folder


@pytest.fixture(scope="session")
def variant(tmp_path_factory: pytest.TempPathFactory, compiler: str):
    """Builds a fake engine with a macro defined, and gives its path."""

    def make(macro: str) -> Path:
        out = tmp_path_factory.mktemp(macro.lower()) / "libpenstock.so"
        build(compiler, "-shared", "-fPIC", f"-D{macro}", f"-I{REPO / 'cabi'}", "-o", out, NATIVE / "fake_penstock.c", "-pthread")
        return out

    return make


@dataclass
class Result:
    code: int
    out: str
    err: str
    log: list[str]  # the engine's calls: "pid call arguments"

    def calls(self) -> list[str]:
        return [line.split(" ", 1)[1] for line in self.log]


class Sandbox:
    """Runs Python programs in processes of their own, with the fakes."""

    def __init__(self, libs: Path, tmp: Path) -> None:
        self.libs, self.tmp, self.log = libs, tmp, tmp / "engine.log"

    def environment(self, hook: bool = True, fake_torch: bool = True, active: bool = False, **extra: str) -> dict[str, str]:
        env = {k: v for k, v in os.environ.items() if not k.startswith(("PENSTOCK_", "FAKE_", "PYTHON", "LD_PRELOAD"))}
        path = [PYTHON]
        if active:
            path.insert(0, PYTHON / "penstock" / "_inject")
            env["PENSTOCK_ACTIVE"] = "1"
        if fake_torch:
            path.append(TESTS / "fake_torch")
        env.update(PYTHONPATH=os.pathsep.join(map(str, path)), PENSTOCK_LIB=str(self.libs), FAKE_LOG=str(self.log))
        # The fake has no C++ allocator object to adopt.
        env["PYTHONWARNINGS"] = "ignore:this PyTorch's allocator object"
        if hook:
            env["LD_PRELOAD"] = str(self.libs / "libpenstock_hook.so")
        env.update(extra)
        return env

    def run(self, program: str, *arguments: str, env: dict[str, str] | None = None, timeout: float = 60) -> Result:
        script = self.tmp / "program.py"
        script.write_text(program)
        self.log.write_text("")
        done = subprocess.run(
            [sys.executable, str(script), *arguments],
            env=env or self.environment(),
            capture_output=True,
            text=True,
            timeout=timeout,
            cwd=self.tmp,
        )
        return Result(done.returncode, done.stdout, done.stderr, self.log.read_text().splitlines())


@pytest.fixture
def sandbox(libs: Path, tmp_path: Path) -> Sandbox:
    return Sandbox(libs, tmp_path)


@dataclass
class Command:
    """The penstock command of this checkout, on a machine whose driver is the stub."""

    path: Path
    environment: dict[str, str]

    def run(self, *arguments: object, timeout: float = 120, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([str(self.path), *map(str, arguments)], env={**self.environment, **environment}, capture_output=True, text=True, timeout=timeout)


@pytest.fixture
def command(stub: Path, tmp_path: Path) -> Command:
    path = REPO / "bin" / "penstock"
    if not path.exists() or not (REPO / "lib" / "libpenstock.so").exists():
        pytest.skip("bin/ and lib/ are not built: run `make build`")
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PENSTOCK_", "FAKE_", "PYTHON", "LD_PRELOAD", "JUPYTER", "XDG_"))}
    # What this Python finds its packages by stays.
    found = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p and Path(p).resolve() != PYTHON]
    env.update(LD_LIBRARY_PATH=os.pathsep.join([str(stub), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]), TMPDIR=str(tmp_path), PYTHONPATH=os.pathsep.join(found))
    return Command(path, env)
