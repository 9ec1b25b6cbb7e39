"""PyTorch's own tests under Penstock, bench/pytorch_tests.py: which test is lost, whose a death is, what ends in time. No GPU, no PyTorch: a fake of penstock and fake tests."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
BENCH = HERE.parents[1] / "bench"
sys.path.insert(0, str(BENCH))

import _common as c  # noqa: E402
import _gate as g  # noqa: E402
import pytorch_tests as p  # noqa: E402

FAKE = HERE / "pytorch_fake"
PENSTOCK = """#!/bin/sh
while [ "$1" != -- ]; do
    [ "$1" = --report ] && [ -n "$FAKE_REPORT" ] && echo "$FAKE_REPORT" > "$2"
    shift
done
shift
FAKE_PENSTOCK=1 exec "$@"
"""


@pytest.fixture
def call(tmp_path, monkeypatch):
    """Runs the script in this process; gives its exit status, and the results that it wrote."""
    penstock = tmp_path / "penstock"
    penstock.write_text(PENSTOCK)
    penstock.chmod(0o755)
    monkeypatch.setattr(c, "PENSTOCK", penstock)
    monkeypatch.setattr(c, "BENCH", tmp_path)
    monkeypatch.setattr(c, "Card", g.NoCard)
    monkeypatch.setattr(c, "require_build", lambda: None)
    monkeypatch.setattr(p, "GRACE_S", 1)

    def run(*words, files="fake_tests.py", tests=FAKE):
        monkeypatch.setattr(sys, "argv", [str(BENCH / "pytorch_tests.py"), "--tests", str(tests), "--files", files, *words])
        status = p.body()
        name = "pytorch-tests-cpu" if "cpu" in words else "pytorch-tests"
        return status, json.loads((tmp_path / "results" / f"{name}.json").read_text())

    return run


def states(document, way):
    return {t["name"].rpartition(".")[2]: t[way]["state"] for t in document["tests"]}


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_what_dies_or_hangs_is_one_test_and_the_rest_go_on(call, tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_CHILD", str(tmp_path / "child"))
    status, document = call("--device", "cpu", "--timeout", "3", "--only", "TestEnds")
    assert status == 0 and document["not_run"] == []
    assert states(document, "stock") == states(document, "again") == {
        "test_a_passes": "passed", "test_b_fails": "failed", "test_c_skips": "skipped", "test_d_aborts": "died", "test_e_hangs": "hung",
        "test_f_passes": "passed", "test_g_fails_as_expected": "passed", "test_h_fails_in_part": "failed",
    }  # fmt: skip
    reasons = [t["stock"]["reason"] for t in document["tests"]]
    assert reasons[1:4] == ["AssertionError: of itself in two lines", "not on this machine", "ended by SIGABRT: the last words"]
    assert "fake_tests.py" in reasons[4] and "in test_e_hangs" in reasons[4]
    assert gone(int((tmp_path / "child").read_text()))
    assert document["classes"] == [{"class": "fake_tests.TestEnds", "tests": 8, "run": 7, "passed_stock": 3, "passed_here": 3, "lost": 0}]


def test_what_passes_in_stock_and_not_here_is_lost_and_runs_once_more_alone(call, capsys):
    status, document = call("--only", "TestHere", "--timeout", "20")
    assert status == 1
    assert set(states(document, "stock").values()) == {"passed"}
    here = {t["name"].rpartition(".")[2]: t["explicit"] for t in document["tests"]}
    assert {n: (x["state"], x.get("alone")) for n, x in here.items()} == {
        "test_a_passes": ("passed", None), "test_b_raises_here": ("failed", "failed"), "test_c_dies_here": ("died", "died"),
        "test_d_passes": ("passed", None), "test_e_passes_alone_here": ("failed", "passed"),
    }  # fmt: skip
    assert "invalid argument" in here["test_b_raises_here"]["trace"]
    assert document["classes"] == [{"class": "fake_tests.TestHere", "tests": 5, "run": 5, "passed_stock": 5, "passed_here": 2, "lost": 3}]
    assert "lost  fake_tests.TestHere.test_b_raises_here: failed (alone: failed): RuntimeError: CUDA error: invalid argument" in capsys.readouterr().out


def test_a_class_that_cannot_be_set_up_fails_as_a_whole(call):
    status, document = call("--device", "cpu", "--only", "TestNotSetUp")
    assert status == 1  # nothing passes in stock, so nothing was tried
    assert states(document, "stock") == {"test_a": "failed", "test_b": "failed"}
    assert "setUpClass (fake_tests.TestNotSetUp): RuntimeError: there is no such card" in document["tests"][1]["stock"]["reason"]


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"FAKE_ABSENT": "1"}, "Penstock was not in the process"),
        ({"FAKE_REPORT": '{"engine": "explicit", "hooked": true, "failure": "a copy"}'}, "the engine failed: a copy"),
        ({"FAKE_REPORT": '{"engine": "managed", "hooked": true}'}, "not fully there"),
    ],
)
def test_passing_without_all_of_penstock_is_no_passing(call, monkeypatch, variables, words):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    status, document = call("--only", "test_a_passes")
    assert status == 1 and words in document["problems"][0]["problem"]
    assert set(states(document, "explicit").values()) == {"passed"}


def test_a_whole_penstock_is_no_problem(call, monkeypatch):
    monkeypatch.setenv("FAKE_REPORT", '{"engine": "explicit", "hooked": true}')
    status, document = call("--only", "test_a_passes")
    assert (status, document["problems"]) == (0, [])


def test_a_death_after_the_last_test_is_told():
    lines = [{"begun": "a"}, {"test": "a", "state": "passed"}, {"ended": True, "penstock": True, "cuda": False}]
    ran = p.Ran(-11, lines, "the last words", None, FAKE)
    assert ran.unfinished() is None
    assert ran.problem(True) == "after its tests were done: ended by SIGSEGV: the last words"
    assert p.ending(139) == "ended by SIGSEGV" and p.ending(3) == "exit status 3"


def test_cuda_without_a_report_is_a_problem():
    lines = [{"ended": True, "penstock": True, "cuda": True}]
    assert "no report" in p.Ran(0, lines, "", None, FAKE).problem(True)


def test_nothing_begins_after_the_minutes(call, capsys):
    status, document = call("--device", "cpu", "--only", "TestHere", "--minutes", "0.00001")
    assert status == 1 and document["tests"] == [] and len(document["not_run"]) == 5
    assert "not run: 5 tests, from fake_tests.TestHere.test_a_passes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ("fake_missing.py", "needs? the package a_package_that_is_nowhere"),
        ("nowhere.py", "takes the folder test of PyTorch's sources"),
    ],
)
def test_what_is_missing_is_said(call, files, words):
    with pytest.raises(c.Refused, match=words):
        call("--device", "cpu", files=files)


def test_tests_of_another_version_are_told_from_a_missing_package():
    assert "that is installed?" in p.hint({"missing": "torch.testing._internal.common_new"})
    assert "that is installed?" in p.hint({"missing": None})


def test_a_file_without_tests_here_says_why(call, capsys):
    call("--device", "cpu", files="fake_skipped.py")
    assert "fake_skipped.py has no tests here: no card" in capsys.readouterr().out


def test_groups_are_neighbours_of_one_class(monkeypatch):
    monkeypatch.setattr(p, "GROUP", 2)
    assert p.groups(["m.A.a", "m.A.b", "m.A.c", "m.B.a", "m.B.b"]) == [["m.A.a", "m.A.b"], ["m.A.c"], ["m.B.a", "m.B.b"]]


@pytest.mark.parametrize(("name", "chosen"), [("TestCuda.test_graph", True), ("TestMemPool.test_a", True), ("TestGDS.test_a", False), ("TestCudaOptimsCUDA.test_a", False)])
def test_of_the_large_file_some_classes_run(name, chosen):
    assert bool(re.search(p.FILES["test_cuda.py"], f"test_cuda.{name}")) == chosen


def test_who_ends_it_ends_what_it_started(tmp_path):
    child = tmp_path / "child"
    env = {**os.environ, "FAKE_CHILD": str(child), "PENSTOCK_BENCH_COMMIT": "none"}
    words = ["--tests", FAKE, "--files", "fake_tests.py", "--only", "hangs", "--device", "cpu", "--timeout", "100", "--name", "ended"]
    script = subprocess.Popen([sys.executable, BENCH / "pytorch_tests.py", *map(str, words)], env=env)
    deadline = time.monotonic() + 30
    while not (child.exists() and child.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    script.send_signal(signal.SIGTERM)
    assert script.wait(15) == 143
    assert gone(int(child.read_text()))
