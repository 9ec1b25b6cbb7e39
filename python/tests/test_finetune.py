"""Full fine-tuning, bench/finetune.py, and saving it, bench/saving.py: what they run, how they judge, and all of it on the CPU, where PyTorch and transformers are."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))

import _common as c  # noqa: E402
import finetune as f  # noqa: E402
import finetune_job as j  # noqa: E402
import saving_job as s  # noqa: E402

needs_models = pytest.mark.skipif(not all(map(importlib.util.find_spec, ("torch", "transformers"))), reason="PyTorch and transformers are not both installed")


def rows(**how):
    return list(f.rows(argparse.Namespace(**{"jobs": {"llama3b": ["24GiB"]}, "tokens": [8192], "length": 2048, "micro": 0, **how})))


def test_rows():
    names = [row["name"] for row in rows(tokens=[8192, 32768], micro=4)]
    assert names[0] == "llama3b checkpointing 4 x 2048"
    assert "llama3b penstock-in-backward 24GiB 4 x 2048" in names and "llama3b zero3-offload 4 x 4 x 2048" in names
    assert len(names) == len(set(names)) == 2 * (len(j.WAYS) + 2)
    assert all(row["batch"] * row["accumulate"] * row["length"] == row["tokens"] for row in rows(tokens=[32768], micro=4))


def test_rows_that_need_not_be_tried(monkeypatch):
    summed = {row["way"]: f.impossible(row, "cuda") for row in rows(tokens=[32768], micro=4)}
    assert {way for way, no in summed.items() if no and no[0] == "refused"} == {"in-backward", "penstock-in-backward 24GiB"}
    monkeypatch.setattr(f.importlib.util, "find_spec", lambda name: None)
    there = {row["way"]: f.impossible(row, "cpu") for row in rows()}
    assert {way: no[0] for way, no in there.items() if no} == {
        "torchao": "not installed", "zero-offload": "not installed", "zero3-offload": "not installed", "penstock 24GiB": "no GPU", "penstock-in-backward 24GiB": "no GPU",
    }  # fmt: skip


def test_lines_changed():
    lines = {name: j.lines_changed(way) for name, way in j.WAYS.items()}
    assert lines["stock"] == 0 and lines["checkpointing"] == 1
    assert lines["in-backward"] == 3  # checkpointing, the import and the call
    assert lines["torchao"] == 3
    assert lines["in-backward"] < lines["fsdp2-offload"] < lines["zero-offload"] < lines["zero3-offload"]


def row(way, seconds, loss, sums=(1, 2)):
    return {"way": way, "state": "ok", "seconds_per_iteration": seconds, "loss": loss, "parameter_checksums": list(sums)}


def test_beside_memory():
    memory, equal = row("checkpointing", 0.5, [2.0, 1.0]), row("penstock 24GiB", 1.0, [2.0, 1.0])
    f.compare(equal, memory, True)
    assert equal["share_of_memory"] == 0.5 and equal["losses_equal"] and equal["parameters_equal"] and not f.failed(equal)
    for other in (row("penstock 24GiB", 1.0, [2.0, 1.0 + 1e-12]), row("in-backward", 1.0, [2.0, 1.0], (1, 3))):
        f.compare(other, memory, True)
        assert other["state"] == "DIFFERS" and f.failed(other)
    peer = row("fsdp2-offload", 1.0, [2.0, 1.1])
    f.compare(peer, memory, True)
    assert peer["state"] == "ok" and peer["loss_distance"] == pytest.approx(0.1)
    assert f.cells({"name": "n", "state": "ok", **peer})[7] == "1e-01"


@pytest.mark.parametrize("way,state,bad", [("stock", "out of memory", False), ("penstock 14GiB", "out of memory", True), ("torchao", "FAILED", False), ("in-backward", "FAILED", True), ("penstock 14GiB", "refused", False)])
def test_what_fails_the_call(way, state, bad):
    assert f.failed({"way": way, "state": state}) == bad


def test_rows_that_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(c, "BENCH", tmp_path)
    (tmp_path / "results").mkdir()
    here = {"gpu": "g", "commit": "c", "versions": {"torch": "1"}}
    had = [{"name": name, "state": state, "deterministic": True} for name, state in (("a", "ok"), ("b", "FAILED"))]
    (tmp_path / "results" / "n.json").write_text(json.dumps({**here, "rows": had}))
    a = argparse.Namespace(resume=True, deterministic=True)
    assert list(f.kept(a, here, "n")) == ["a"]
    assert not f.kept(a, {**here, "commit": "d"}, "n") and not f.kept(argparse.Namespace(resume=True, deterministic=False), here, "n")
    assert not f.kept(argparse.Namespace(resume=False, deterministic=True), here, "n")


def call(*arguments, out, script="finetune.py"):
    env = {k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")} | {"PENSTOCK_BENCH_OUT": str(out)}
    try:
        return subprocess.run([sys.executable, BENCH / script, *map(str, arguments), "--device", "cpu", "--json", "--name", "test"], env=env, capture_output=True, text=True, timeout=300)
    finally:
        (BENCH / "results" / "test-cpu.json").unlink(missing_ok=True)


@needs_models
def test_the_whole(tmp_path):
    done = call("tiny", "--tiny", "--rows", "tiny (checkpointing|in-backward|fsdp2|torchao|penstock)", "--steps", 2, "--deterministic", out=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(done.stdout)
    assert document == json.loads((tmp_path / "test-cpu.json").read_text())
    found = {row["way"]: row for row in document["rows"]}
    assert found["in-backward"]["losses_equal"] and found["in-backward"]["parameters_equal"]
    assert found["fsdp2-offload"]["state"] == "ok" and 0 < found["fsdp2-offload"]["loss_distance"] < 1e-3
    assert found["penstock 128MiB"]["state"] == "no GPU"
    for way in ("checkpointing", "in-backward", "fsdp2-offload"):
        assert found[way]["tokens_per_second"] > 0 and found[way]["host_peak_bytes"] > 1 << 20 and len(found[way]["loss"]) == 2
    assert not document["not_run"]


@needs_models
def test_a_row_that_takes_too_much_of_the_host(tmp_path):
    done = call("tiny", "--tiny", "--rows", "tiny stock", "--steps", 1, "--host-limit", 0.1, out=tmp_path)
    assert [row["state"] for row in json.loads(done.stdout)["rows"]] == ["host memory"], done.stderr


@needs_models
@pytest.mark.parametrize("way", s.WAYS)
def test_each_way_of_saving(way, tmp_path):
    """What comes back is what was saved, also where parameters and states have changed meanwhile."""
    import torch
    import transformers

    config = transformers.LlamaConfig(vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, tie_word_embeddings=True)
    model = transformers.LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

    def state():
        return [p.detach().clone() for p in model.parameters()] + [v.clone() for s in optimizer.state_dict()["state"].values() for v in s.values()]

    def step():
        model(input_ids=torch.arange(8)[None], labels=torch.arange(8)[None]).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    before = state()
    s.WAYS[way]().save(model, optimizer, tmp_path)
    step()
    assert not all(map(torch.equal, before, state()))
    s.WAYS[way]().load(model, optimizer, tmp_path)
    assert len(before) == len(state()) and all(map(torch.equal, before, state()))


@needs_models
def test_saving(tmp_path):
    done = call("--tiny", "--ways", "dcp", "--steps", 1, out=tmp_path, script="saving.py")
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = json.loads(done.stdout)["rows"]
    assert row["state"] == "equal" and row["saved_bytes"] > 10 * 3475712 and row["save"]["seconds"] > 0
