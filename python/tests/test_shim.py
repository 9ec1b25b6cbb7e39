"""libpenstock_torch.so called from C++, as PyTorch calls it."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from conftest import NATIVE, REPO, build

# What PyTorch looks like from here: its exception classes in a library that is
# called as PyTorch's is, or absent.
WITH_TORCH, WITHOUT_TORCH = "with PyTorch", "without PyTorch"


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory, compiler: str) -> dict[str, Path]:
    out = tmp_path_factory.mktemp("shim")
    flags = ("-std=c++17", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", f"-I{REPO / 'cabi' / 'torch'}")
    build("g++", *flags, "-shared", "-fPIC", "-o", out / "libc10.so", NATIVE / "fake_c10.cpp", "-Wl,-soname,libc10.so")
    build("g++", *flags, "-DWITH_C10", "-o", out / "with", NATIVE / "shim_test.cpp", f"-L{out}", "-lc10", f"-Wl,-rpath,{out}", "-ldl")
    build("g++", *flags, "-o", out / "without", NATIVE / "shim_test.cpp", "-ldl")
    return {WITH_TORCH: out / "with", WITHOUT_TORCH: out / "without"}


@pytest.fixture
def call(programs: dict[str, Path], libs: Path, tmp_path: Path):
    def run(case: str, world: str = WITHOUT_TORCH, engine: Path | None = None, **extra: str) -> tuple[list[str], list[str]]:
        log = tmp_path / "log"
        log.write_text("")
        env = {k: v for k, v in os.environ.items() if not k.startswith(("PENSTOCK_", "FAKE_"))}
        done = subprocess.run(
            [programs[world], libs / "libpenstock_torch.so", engine or libs / "libpenstock.so", case],
            env=env | {"FAKE_LOG": str(log)} | extra,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines(), [line.split(" ", 1)[1] for line in log.read_text().splitlines()]

    return run


@pytest.mark.parametrize("world, kind", [(WITH_TORCH, "c10::OutOfMemoryError"), (WITHOUT_TORCH, "runtime_error")])
def test_out_of_memory(call, world, kind):
    lines, _ = call("oom", world, PENSTOCK_BUDGET=str(4 << 30), PENSTOCK_HOST_BUDGET=str(1 << 29))
    if world == WITH_TORCH:
        assert lines.pop() == "live 0"  # destroyed by its own destructor
    assert len(lines) == 3
    for line in lines:
        assert line.startswith(f"{kind} CUDA out of memory. Penstock could not allocate ")
        assert "device budget 4.00 GiB (4294967296 bytes), host budget 512.00 MiB (536870912 bytes), 0 bytes already allocated" in line
        assert "(both budgets are spent)" in line and "--host-budget" in line
    assert "could not allocate 5.00 GiB (5368709120 bytes) on device 0" in lines[0] and lines[0] == lines[1]
    assert "could not allocate 16.00 EiB (18446744073709547520 bytes)" in lines[2]


def test_out_of_memory_where_the_layout_of_exceptions_is_not_known(call):
    lines, _ = call("oom", WITH_TORCH, UNKNOWN_EXCEPTIONS="1")
    assert lines.pop() == "live 0"
    assert lines and all(line.startswith("runtime_error CUDA out of memory. Penstock could not allocate ") for line in lines)


def test_signals_while_the_engine_is_loaded(call):
    _, log = call("oom", FAKE_MASKS="1")
    assert log[0] == "loaded: interrupt 1, user 1, urgent 0, segv 0"
    assert log[1] == "starts: interrupt 0, user 0, urgent 0, segv 0"


def test_budgets_are_named_once(call):
    lines, _ = call("oom", FAKE_WORDY="1", PENSTOCK_BUDGET="4000", PENSTOCK_HOST_BUDGET="5000")
    assert lines[0] == (
        "runtime_error CUDA out of memory. Penstock could not allocate 5.00 GiB (5368709120 bytes) on device 0: "
        "budgets of 4000 and 5000 bytes are spent: raise --budget or --host-budget, or use a smaller batch."
    )


def test_a_runtime_that_does_not_start_is_not_out_of_memory(call):
    lines, log = call("oom", WITH_TORCH, FAKE_INIT_ERROR="no driver; install it")
    assert lines[:2] == ["runtime_error penstock: no driver; install it"] * 2
    assert set(log) == {"init 0"}


def test_pools(call):
    lines, log = call("pools")
    assert lines == [
        "pools work",
        "again: penstock: allocations go to this memory pool already: end that before it is begun again",
        "runtime_error penstock: no allocations go to this memory pool: it was not begun",
    ]
    assert log == [
        "init 0", "retain_pool 0 7 9", "retain_pool 0 7 10",
        "in_pool 7 10", "malloc 64 0", "in_pool 7 9", "malloc 65 0", "init 1", "malloc 66 1", "malloc 67 0", "in_pool 7 10", "malloc 68 0", "malloc 69 0",
        "release_pool 0 7 9", "retain_pool 0 7 9", "close",
    ]


def test_pools_that_fail(call):
    lines, log = call("pools", FAKE_POOL_ERROR="the budget leaves no room for a pool")
    assert lines == ["runtime_error penstock: the budget leaves no room for a pool"]
    assert "malloc" not in " ".join(log)


def test_counters_of_many_threads(call):
    (line,), _ = call("threads")
    c = [int(x) for x in line.split()]
    groups = [c[i : i + 4] for i in range(0, 24, 4)]
    all_count, all_bytes, small_count, small_bytes, large_count, large_bytes = groups
    n_large, n_small = 8 * 100, 8 * 400
    for (current, peak, allocated, freed), total in (
        (all_count, n_large + n_small),
        (all_bytes, n_large * (2 << 20) + n_small * 100),
        (small_count, n_small),
        (small_bytes, n_small * 100),
        (large_count, n_large),
        (large_bytes, n_large * (2 << 20)),
    ):
        assert (current, allocated, freed) == (0, total, total)
        assert 0 < peak <= total
    assert 1 <= all_count[1] <= 8 and 1 <= large_count[1] <= 8  # at most one live allocation a thread


def test_history_without_python(call):
    lines, _ = call("record", FAKE_WORDY="1")
    first, answers, second, last = lines
    history = json.loads(first)
    assert [(action, size, stack) for action, _, _, size, _, _, stack, _ in history["entries"]] == [
        (1, 3, 0), (2, 3, 0), (1, 100, 0), (2, 100, 0), (4, 7, 0), (3, 1 << 50, 0)
    ]  # fmt: skip
    assert history["entries"][0][2] == history["entries"][1][2] != 0  # their address
    assert history["entries"][5][2] == 1 << 30  # of oom, what is free of the fake's budget
    assert history["codes"] == history["frames"] == history["live"] == [] and history["stacks"] == [[]]
    times = [e[5] for e in history["entries"]]
    assert times == sorted(times) and times[0] > 1.7e15
    assert answers == "1 1"
    assert [(e[0], e[3]) for e in json.loads(second)["entries"]] == [(0, 9), (2, 9)]
    assert json.loads(last.rsplit(" ", 1)[0])["entries"] == [] and last.endswith(" 0")


def test_closed_at_exit_without_python(call):
    _, log = call("exit")
    assert log == ["init 0", "malloc 64 0", "close"]


def test_setup_names_a_missing_engine(call, tmp_path):
    lines, _ = call("exit", engine=tmp_path / "gone.so")
    assert lines == [f"setup: {tmp_path / 'gone.so'}: No such file or directory"]


def test_exports_and_dependencies(libs):
    """Exactly the functions of the header, and no library that only CUDA machines have."""
    shim = libs / "libpenstock_torch.so"
    symbols = subprocess.run(["nm", "-D", "--defined-only", shim], capture_output=True, text=True, check=True).stdout
    header = (REPO / "cabi" / "torch" / "penstock_torch.h").read_text()
    declared = set(re.findall(r"^[a-z].*?\b(penstock_torch_\w+)\(", header, re.M))
    assert declared and {line.split()[-1] for line in symbols.splitlines()} == declared
    needed = re.findall(r"NEEDED.*\[(.*)\]", subprocess.run(["readelf", "-d", shim], capture_output=True, text=True, check=True).stdout)
    assert {n.split(".so")[0] for n in needed if not n.startswith("ld-linux")} <= {"libstdc++", "libm", "libgcc_s", "libc", "libdl", "libpthread"}
