"""The benchmarks run and write what they say; their figures are no test's business."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import orjson

ROOT = Path(__file__).resolve().parents[1]


def test_turn_cost_writes_its_figures_its_table_and_its_plot(qwen3_dir: Path, tmp_path: Path) -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "benchmarks.turn_cost", "--turns", "20", "--sessions", "2", "--memory-sessions", "3",
         "--output", tmp_path],
        cwd=ROOT, capture_output=True, text=True, timeout=170, check=False,
    )  # fmt: skip
    assert shown.returncode == 0, shown.stderr
    figures = orjson.loads((tmp_path / "turn_cost.json").read_bytes())
    turns = figures["turns"]
    assert [turn["turn"] for turn in turns] == list(range(1, 21))
    assert all(later["tokens"] > earlier["tokens"] for earlier, later in pairwise(turns))
    assert all(turn["sidecar_ms"] > 0 and turn["floor_ms"] > 0 and turn["pass_through_ms"] > 0 for turn in turns)
    assert figures["memory"]["tokens_per_session"] > turns[-1]["tokens"]
    assert "growth from turn" in shown.stdout
    assert (tmp_path / "turn_cost.png").read_bytes().startswith(b"\x89PNG")


def test_turn_cost_refuses_too_few_turns() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "benchmarks.turn_cost", "--turns", "3"],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert shown.returncode == 2
    assert "--turns is 3" in shown.stderr
