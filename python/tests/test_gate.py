"""The gate of real programs, bench/_gate.py: whose death is whose, what ends in time, what is compared, and what is kept. No GPU, no PyTorch."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "bench"))

import _common as c  # noqa: E402
import _gate as g  # noqa: E402
import opinfo  # noqa: E402
import zoo  # noqa: E402


@pytest.fixture
def zygote(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(HERE / "gate"))
    (tmp_path / "nvidia-uvm").write_text("")
    made = []

    def make(*imports):
        z = g.Zygote(imports, False, {"CARD_FILE": str(tmp_path / "nvidia-uvm")})
        made.append(z)
        return z

    yield make
    for z in made:
        z.stop()


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_job_answers_from_a_process_that_has_imported(zygote):
    z = zygote("gate_jobs")
    first, second = (z.run("gate_jobs:tells", {}, 20, {"SAID": word}) for word in ("this", "that"))
    assert [x.line("result")["result"]["environment"] for x in (first, second)] == ["this", "that"]
    assert first.line("result")["result"]["parent"] == second.line("result")["result"]["parent"]
    assert (first.rc, first.death()) == (0, None)


@pytest.mark.parametrize(
    ("job", "state", "detail"),
    [
        ("raises", "FAILED", "MemoryError: there is"),
        ("dies", "DIED", "ended by SIGSEGV"),
        ("dies_at_exit", "DIED", "after its work was done, exit status 5"),
    ],
)
def test_what_became_of_a_job_is_its_own(zygote, job, state, detail):
    z = zygote("gate_jobs")
    found = g.failure(z.run(f"gate_jobs:{job}", {}, 20), None)
    assert found[0] == state and detail in found[1]
    assert g.failure(z.run("gate_jobs:well", {"value": 1.0}, 20), None) is None


@pytest.mark.parametrize(
    ("log", "state"),
    [
        ('{"error": "out of memory: void conv<float>(int) touches 96 MiB, and of the device budget of 64 MiB plain memory takes 64 MiB: give --budget 160MiB or more"}', "cannot"),
        ("a copy failed", "FAILED"),
    ],
)
def test_a_launch_larger_than_the_budget_cannot_run(log, state):
    lines = [{"error": "RuntimeError", "message": "CUDA error: out of memory"}]
    assert g.failure(g.Outcome(1, False, 1.0, lines, log), "explicit")[0] == state


def test_a_job_that_hangs_ends_with_all_that_it_started(zygote):
    z = zygote("gate_jobs")
    began = time.monotonic()
    outcome = z.run("gate_jobs:hangs", {}, 2)
    assert time.monotonic() - began < 15
    assert g.failure(outcome, None)[0] == "TIMEOUT"
    deadline = time.monotonic() + 5
    while not gone(outcome.line("child")["child"]) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert gone(outcome.line("child")["child"])
    assert g.failure(z.run("gate_jobs:well", {"value": 1.0}, 20), None) is None


def test_what_forks_is_started_again_when_it_has_died(zygote):
    z = zygote("gate_jobs")
    assert g.failure(z.run("gate_jobs:ends_its_parent", {}, 20), None)[0] == "DIED"
    assert g.failure(z.run("gate_jobs:well", {"value": 1.0}, 20), None) is None


def test_what_initialises_cuda_is_left_to_the_children(zygote):
    z = zygote("gate_jobs", "opens_card")
    assert z.run("gate_jobs:tells", {}, 20).line("result")["result"]["modules"] == ["gate_jobs"]
    assert z.skipped == ["opens_card"]


def test_an_engine_that_was_not_there_is_a_failure():
    line = {"result": {"losses": [], "digests": []}}
    for report, words in (
        (None, "no report"),
        ({"engine": "managed", "hooked": True}, "not fully there"),
        ({"engine": "explicit", "hooked": False}, "not fully there"),
        ({"engine": "explicit", "hooked": True, "failure": "lost"}, "the engine failed: lost"),
    ):
        lines = [line] + ([{"report": report}] if report else [])
        assert words in g.failure(g.Outcome(0, False, 1, lines, ""), "explicit")[1]
    whole = {"report": {"engine": "explicit", "hooked": True}}
    assert g.failure(g.Outcome(0, False, 1, [line, whole], ""), "explicit") is None
    short = g.Outcome(1, False, 1, [{"error": "OutOfMemoryError", "message": "CUDA out of memory."}], "")
    assert g.failure(short, "explicit") == ("cannot", "OutOfMemoryError: CUDA out of memory.")


def figures(*losses: float, digest: int = 7) -> dict:
    return {"losses": list(losses), "digests": [digest]}


@pytest.mark.parametrize(
    ("again", "ours", "state"),
    [
        (figures(2.0, 1.0), figures(2.0, 1.0), "equal"),
        (figures(2.0, 1.0), figures(2.0, 1.0000001), "WRONG"),
        (figures(2.0, 1.0), figures(2.0, 1.0, digest=8), "WRONG"),
        (figures(2.0, 1.001, digest=8), figures(2.0, 1.003, digest=9), "near"),
        (figures(2.0, 1.001, digest=8), figures(2.0, 1.03, digest=9), "WRONG"),
        (figures(2.0, 1.1, digest=8), figures(2.0, 1.3, digest=9), "near"),
        (figures(2.0, 1.1, digest=8), figures(2.0, float("nan"), digest=9), "WRONG"),
        (figures(2.0, 1.1, digest=8), figures(2.0, digest=9), "WRONG"),
        (None, figures(2.0, 1.1), "WRONG"),
    ],
)
def test_wrong_is_told_from_what_does_not_repeat_itself(again, ours, state):
    assert g.compare(figures(2.0, 1.0), again, ours)[0] == state


def test_stock_runs_again_only_when_something_differs():
    def never():
        raise AssertionError("stock ran again")

    outcome = g.Outcome(0, False, 1, [{"result": figures(float("nan"))}], "")
    assert zoo.judged(outcome, figures(float("nan")), never) == ("equal", "")
    with pytest.raises(AssertionError, match="ran again"):
        zoo.judged(outcome, figures(1.0), never)


@pytest.fixture
def gate(tmp_path, monkeypatch):
    monkeypatch.setattr(c, "BENCH", tmp_path)
    monkeypatch.setattr(g.Zygote, "start", lambda self: None)

    def make(*words):
        a = g.parser("A test.", "test", 1, 5).parse_args(["--device", "cpu", *words])
        return g.Gate(a, [], "")

    make.results = lambda: json.loads((tmp_path / "results" / "test-cpu.json").read_text())
    return make


def row(name: str, state: str = "equal") -> dict:
    return {"name": name, "ways": {"half": {"state": state, "detail": "it is so", "wall_s": 1}}}


def test_results_are_written_row_by_row_and_name_the_card(gate):
    seen = []

    def run_row(name):
        if name == "second":
            seen.append([r["name"] for r in gate.results()["rows"]])
        return row(name)

    assert gate().run(["first", "second"], run_row) == 0
    assert seen == [["first"]]
    assert gate.results()["gpu"] == "none (CPU)" and gate.results()["not_run"] == []


@pytest.mark.parametrize("state", [*g.BAD, "stock"])
def test_what_is_wrong_or_was_not_tried_stands_in_the_table_by_name(gate, capsys, state):
    assert gate().run(["first", "second"], lambda name: row(name, state if name == "second" or state == "stock" else "equal")) == 1
    assert f"{state:7}  second, half: it is so" in capsys.readouterr().out


def test_no_row_begins_after_the_minutes_and_what_was_not_run_is_said(gate, capsys):
    g1 = gate("--minutes", "10")

    def run_row(name):
        g1.began -= 601
        return row(name)

    g1.run(["first", "second", "third"], run_row)
    assert gate.results()["not_run"] == ["second", "third"]
    assert "not run: second, third" in capsys.readouterr().out


def test_resume_keeps_rows_of_the_same_card_only(gate, monkeypatch):
    gate().run(["first"], row)
    asked = []
    gate("--resume").run(["first", "second"], lambda name: asked.append(name) or row(name))
    assert asked == ["second"] and len(gate.results()["rows"]) == 2
    monkeypatch.setattr(g.NoCard, "facts", lambda self: {"gpu": "another", "driver": None})
    asked.clear()
    gate("--resume").run(["first"], lambda name: asked.append(name) or row(name))
    assert asked == ["first"]


def test_shards_are_parts_of_all_rows():
    names = g.dealt([f"row {i}" for i in range(11)])
    parts = [g.select(names, SimpleNamespace(shard=f"{i}/3", only="", list=False)) for i in (1, 2, 3)]
    assert sorted(sum(parts, [])) == sorted(names) and max(map(len, parts)) == 4
    with pytest.raises(c.Refused, match="1 to N"):
        g.select(names, SimpleNamespace(shard="4/3", only="", list=False))
    assert g.select(names, SimpleNamespace(shard="1/1", only="7$", list=False)) == ["row 7"]


def test_a_group_of_rows_comes_from_one_process(gate):
    asked = []
    names = [f"row {i}" for i in range(5)]
    gate().run(names, lambda group: asked.append(group) or [row(n) for n in group], 2)
    assert asked == [names[:2], names[2:4], names[4:]]
    assert [r["name"] for r in gate.results()["rows"]] == names


class Operators:
    """A zygote whose jobs run operators that are named by what becomes of them."""

    def __init__(self):
        self.asked = []

    def run(self, target, arguments, timeout_s, env=None):
        self.asked.append(arguments["chosen"])
        lines = []
        for name in arguments["chosen"]:
            lines.append({"begun": name})
            if name.startswith("dies"):
                return g.Outcome(-11, False, 1, lines, "the last words")
            if name.startswith("hangs"):
                return g.Outcome(None, True, 9, lines, "")
            if name.startswith("raises"):
                lines.append({"operator": name, "raised": "OutOfMemoryError", "why": "no room\nat all"})
            else:
                lines.append({"operator": name, "rounds": [{"float32": [[1], [2]]}] * arguments["rounds"]})
        return g.Outcome(5 if "last" in arguments["chosen"] else 0, False, 1, [*lines, {"result": {}}], "")


def runs(names, z=None):
    return opinfo.Runs(z or Operators(), SimpleNamespace(device="cpu", samples=0, timeout=9), names, 2, False)


def test_a_death_is_its_operators_and_the_rest_goes_on():
    z = Operators()
    found = runs(["a", "dies", "b", "hangs", "raises", "c"], z)
    assert z.asked == [["a", "dies", "b", "hangs", "raises", "c"], ["b", "hangs", "raises", "c"], ["raises", "c"]]
    assert sorted(found.results) == ["a", "b", "c"]
    assert {n: s for n, (s, _) in found.bad.items()} == {"dies": "DIED", "hangs": "TIMEOUT", "raises": "cannot"}
    assert "SIGSEGV: the last words" in found.bad["dies"][1]


def test_a_death_after_the_last_operator_is_told():
    assert runs(["a", "last"]).bad["last"][0] == "DIED"
    assert runs(["a", "last"]).results["a"]


@pytest.mark.parametrize(
    ("first", "second", "ours", "state", "compared"),
    [
        ([[1], [2]], [[1], [2]], [[1], [2]], "equal", 2),
        ([[1], [2]], [[1], [2]], [[1], [3]], "WRONG", 2),
        ([[1], [2]], [[1], [9]], [[1], [3]], "near", 1),
        ([[1], [2]], [[1], [9]], [[4], [3]], "WRONG", 1),
        ([[1], "RuntimeError"], [[1], "RuntimeError"], [[1], "RuntimeError"], "equal", 2),
        ([[1], "RuntimeError"], [[1], "RuntimeError"], [[1], [2]], "WRONG", 2),
        ([[1], [2]], [[1], [2]], [[1]], "WRONG", 0),
    ],
)
def test_samples_are_compared_where_stock_repeats_them(first, second, ours, state, compared):
    found = opinfo.compare([{"float32": first}, {"float32": second}], [{"float32": ours}])
    assert (found[0], found[2:]) == (state, (2, compared))


def test_samples_that_differ_in_a_later_round_with_stock_are_not_compared():
    rounds = [{"float32": [[1], [x]]} for x in (2, 2, 2, 9)]
    assert opinfo.compare(rounds[:3], [{"float32": [[1], [3]]}])[0] == "WRONG"
    state, detail, samples, compared = opinfo.compare(rounds, [{"float32": [[1], [3]]}])
    assert (state, samples, compared) == ("near", 2, 1) and "4 rounds" in detail
