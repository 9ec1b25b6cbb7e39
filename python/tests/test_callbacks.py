"""The figures that loggers get, and the callbacks with the libraries that they are for, where these are installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from penstock import _runtime, _scalars


@pytest.fixture
def running(monkeypatch):
    """Statistics of a job that moves 1,000 bytes each way each time that somebody looks."""
    looks = 0

    def stats():
        nonlocal looks
        looks += 1
        return {
            "enabled": True, "started": True, "engine": "explicit", "process": "rank0", "hooked": True,
            "resident_bytes": 5, "allocated_bytes": 9, "budget_bytes": 6, "h2d_bytes": 1000 * looks, "d2h_bytes": 1000 * looks,
            "faults": None, "stall_seconds": 0.5, "prediction_hit_rate": 0.99, "iteration_seconds": 0, "in_memory_share_estimated": 0.84,
            "explicit": {"host_bytes": 4, "made_bytes": 0},
        }  # fmt: skip

    monkeypatch.setattr(_runtime, "stats", stats)


def test_scalars(running):
    assert penstock.scalars() == {
        "penstock/resident_bytes": 5, "penstock/allocated_bytes": 9, "penstock/budget_bytes": 6, "penstock/host_bytes": 4,
        "penstock/to_gpu_bytes": 1000, "penstock/from_gpu_bytes": 1000, "penstock/made_again_bytes": 0,
        "penstock/stall_seconds": 0.5, "penstock/prediction_hit_rate": 0.99, "penstock/in_memory_share": 0.84,
    }  # fmt: skip
    assert all(isinstance(v, float) for v in penstock.scalars().values())


def test_every_figure_is_documented():
    names = [*_scalars._FIGURES, *_scalars._RATES.values()]
    assert names
    from penstock import callbacks

    for name in names:
        assert f"``{name}``" in penstock.scalars.__doc__ or f"penstock/{name}``" in callbacks.__doc__, name


def test_the_engine_has_every_figure():
    # The names in the Go source are those of stats().
    root = Path(__file__).resolve().parents[2] / "um" / "live" / "stats"
    top, own = (root / "stats.go").read_text(), (root / "explicit.go").read_text()
    for path in _scalars._FIGURES.values():
        assert f'`json:"{path[-1]}"`' in (own if len(path) > 1 else top), path


def test_nothing_where_penstock_has_not_started():
    assert penstock.scalars() == {}
    assert _scalars.Meter().read() == {}


def test_rates(running, monkeypatch):
    clock = iter([10.0, 12.0])
    monkeypatch.setattr(_scalars.time, "monotonic", lambda: next(clock))
    meter = _scalars.Meter()
    assert not any("per_second" in name for name in meter.read())
    values = meter.read()
    assert values["penstock/to_gpu_bytes_per_second"] == 500
    assert values["penstock/stall_share"] == 0


def test_libraries_are_imported_when_used():
    program = (
        "import sys, penstock, penstock.callbacks\n"
        "assert set(penstock.callbacks.__all__) <= set(dir(penstock.callbacks))\n"
        "print([m for m in ('torch', 'transformers', 'lightning', 'tensorboard') if m in sys.modules])\n"
        "sys.modules.update(transformers=None, lightning=None, pytorch_lightning=None, torch=None)\n"
        "for use in (lambda: penstock.callbacks.TrainerCallback, lambda: penstock.callbacks.LightningCallback, lambda: penstock.callbacks.TensorBoardWriter('x')):\n"
        "    try: use()\n"
        "    except penstock.PenstockError as e: print(e)\n"
        "try: penstock.callbacks.Nothing\n"
        "except AttributeError as e: print(e)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(Path(penstock.__file__).parents[1])})
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert lines[0] == "[]"
    assert [line.split("`")[1] for line in lines[1:4]] == [f"pip install penstock[{extra}]" for extra in ("trainer", "lightning", "tensorboard")]
    assert "Nothing" in lines[4]


def events(folder):
    """What a TensorBoard folder has, as name -> steps and values."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    read = accumulator.EventAccumulator(str(folder)).Reload()
    return {name: [(e.step, e.value) for e in read.Scalars(name)] for name in read.Tags()["scalars"]}


def test_tensorboard(running, tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("tensorboard")
    writer = penstock.callbacks.TensorBoardWriter(tmp_path / "runs", every=2)
    for step in range(5):
        writer.log(step)
    writer.close()
    found = events(tmp_path / "runs")
    assert [step for step, _ in found["penstock/to_gpu_bytes"]] == [0, 2, 4]
    assert [step for step, _ in found["penstock/to_gpu_bytes_per_second"]] == [2, 4]
    assert found["penstock/in_memory_share"][0][1] == pytest.approx(0.84)
    with pytest.raises(penstock.PenstockError, match="at least 1"):
        penstock.callbacks.TensorBoardWriter(tmp_path, every=0)


def test_an_own_summary_writer():
    class Writer:
        def add_scalar(self, name, value, step): ...
        def close(self):
            raise AssertionError("it is not ours to close")

    writer = penstock.callbacks.TensorBoardWriter(Writer())
    writer.log(0)
    writer.close()


@pytest.mark.parametrize("attached", [True, False])
def test_trainer(running, tmp_path, attached):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    pytest.importorskip("accelerate")
    pytest.importorskip("tensorboard")
    from penstock.callbacks import TrainerCallback

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def forward(self, x, labels=None):
            return {"loss": ((self.layer(x) - labels) ** 2).mean()}

    data = [{"x": torch.randn(4), "labels": torch.randn(1)} for _ in range(16)]
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path / "out"), max_steps=4, per_device_train_batch_size=4, logging_steps=2, use_cpu=True, report_to=[], disable_tqdm=True, save_strategy="no",
    )  # fmt: skip
    board = transformers.integrations.TensorBoardCallback(torch.utils.tensorboard.SummaryWriter(str(tmp_path / "runs"))) if attached else None
    trainer = transformers.Trainer(model=Model(), args=arguments, train_dataset=data, callbacks=[board] if attached else [TrainerCallback()])
    if attached:
        TrainerCallback().attach(trainer)
    trainer.train()
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert len(logged) == 2
    assert all(entry["penstock/in_memory_share"] == 0.84 for entry in logged)
    assert "penstock/to_gpu_bytes_per_second" in logged[1]
    json.dumps(trainer.state.log_history)  # it is saved with the model
    if attached:  # who writes logs has them, too
        assert any(name.endswith("penstock/resident_bytes") for name in events(tmp_path / "runs"))


def test_lightning(running, tmp_path):
    pytest.importorskip("torch")
    try:
        import lightning.pytorch as pl
    except ImportError as e:
        pytest.skip(str(e))
    import torch
    from lightning.pytorch.loggers import CSVLogger

    from penstock.callbacks import LightningCallback

    class Model(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch, _):
            return self.layer(batch).mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    logger = CSVLogger(str(tmp_path))
    trainer = pl.Trainer(
        max_steps=6, log_every_n_steps=2, accelerator="cpu", logger=logger, callbacks=[LightningCallback()], enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
    )  # fmt: skip
    trainer.fit(Model(), torch.utils.data.DataLoader(torch.randn(64, 4), batch_size=4))
    logger.save()
    rows = (tmp_path / "lightning_logs" / "version_0" / "metrics.csv").read_text().splitlines()
    assert "penstock/to_gpu_bytes_per_second" in rows[0]
    assert len(rows) == 4, rows  # steps 2, 4 and 6
