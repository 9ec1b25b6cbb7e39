"""The index of bench/results is made from the files, and each of them is cited."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

import results_index  # noqa: E402


def test_the_index_is_current_and_every_result_is_cited():
    if subprocess.run(["git", "rev-parse"], cwd=results_index.ROOT, capture_output=True).returncode:
        pytest.skip("not a git checkout, so what belongs to it is not known")
    done = subprocess.run([sys.executable, results_index.__file__, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_row_is_what_the_file_says(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"command": "x | y", "commit": "abc", "gpu": "NVIDIA H200", "date": "2026-11-24T03:41:56Z"}))
    assert results_index.row(path) == "| [a.json](a.json) | `x \\| y` | abc | NVIDIA H200 | 2026-11-24 03:41 |\n"
    path.write_text(json.dumps({"simulated": True, "gpu_profile": "h200"}))
    assert results_index.row(path) == "| [a.json](a.json) | `-` | - | simulated H200 | - |\n"


def test_a_stale_index_and_a_result_that_nobody_cites_are_found(monkeypatch, tmp_path, capsys):
    (tmp_path / "nobody-speaks-of-this-one.json").write_text("{}")
    (tmp_path / "README.md").write_text(results_index.HEAD)
    monkeypatch.setattr(results_index, "RESULTS", tmp_path)
    monkeypatch.setattr(results_index, "uncited", lambda: ["nobody.json"])
    monkeypatch.setattr(sys, "argv", ["results_index.py", "--check"])
    assert results_index.main() == 1
    said = capsys.readouterr().err
    assert "is not what the files say" in said and "nobody.json is named nowhere" in said
