"""The table of the explicit engine's runs, bench/explicit_table.py: runs of one card are never taken for another's."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

import explicit_table  # noqa: E402


def result(folder: Path, name: str, gpu: str, date: str, memory: float, budget: float) -> Path:
    path = folder / f"{name}.json"
    rows = [
        {"name": "m in memory", "model": "m", "seconds_per_iteration": memory},
        {"name": "m explicit 2 GiB", "model": "m", "budget": "2GiB", "seconds_per_iteration": budget, "losses_equal": True},
    ]
    path.write_text(json.dumps({"date": date, "gpu": gpu, "driver": "1", "command": "", "commit": "c", "rows": rows}))
    return path


def table(monkeypatch, folder: Path, *paths: Path) -> list[str]:
    (folder / "m.tsv.gz").write_bytes(b"")
    asked = []

    def simulate(penstock, trace, budget, policy, cost=None):
        asked.append(policy)
        return {"iteration_seconds": 1.0, "compute_seconds": 100.0}, ""

    monkeypatch.setattr(explicit_table, "simulate", simulate)
    out = folder / "out.md"
    monkeypatch.setattr(sys, "argv", ["explicit_table.py", "--out", str(out), "--traces", str(folder), *map(str, paths)])
    explicit_table.main()
    return [x for x in out.read_text().splitlines() if x.startswith("| m ")], asked


def test_runs_of_two_cards_stay_apart_and_the_simulated_h200_beside_its_own(monkeypatch, tmp_path):
    old = result(tmp_path, "a", "NVIDIA H200", "2026-01-01", 1.0, 1.25)
    new = result(tmp_path, "b", "NVIDIA H100", "2026-02-01", 2.0, 4.0)
    rows, asked = table(monkeypatch, tmp_path, old, new)
    assert len(rows) == 4
    h100, h200 = (next(r for r in rows if gpu in r and "explicit" in r) for gpu in ("H100", "H200"))
    assert "| 4.000 | 2.00 |" in h100 and "80 %" not in h100
    assert "| 1.250 | 1.25 |" in h200 and "80 %" in h200
    assert asked == ["oracle", "penstock"]


def test_the_newest_run_of_a_card_is_taken(monkeypatch, tmp_path):
    old = result(tmp_path, "a", "NVIDIA H200", "2026-01-01", 1.0, 1.25)
    new = result(tmp_path, "b", "NVIDIA H200", "2026-02-01", 1.0, 1.5)
    rows, _ = table(monkeypatch, tmp_path, old, new)
    assert len(rows) == 2 and "| 1.500 | 1.50 |" in rows[1] and "H200" not in rows[1]
