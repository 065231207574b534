"""`tito-sidecar demo`, as a newcomer runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.demo
ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.timeout(420)
def test_the_demo_prints_its_table_and_writes_segments_and_samples(tmp_path: Path, smollm2_dir: Path) -> None:
    output = tmp_path / "out"
    shown = subprocess.run(
        [sys.executable, "-m", "sidecar.cli", "demo", "--output", str(output), "--turns", "6"],
        capture_output=True, text=True, timeout=400, cwd=ROOT, check=False,
    )  # fmt: skip
    assert shown.returncode == 0, shown.stdout + shown.stderr
    for row in (
        "turns",
        "tokens sampled",
        "tokens trained",
        "changed by re-tokenising",
        "segments",
        "weight versions",
    ):
        assert row in shown.stdout
    [segment] = [json.loads(line) for line in (output / "segments.jsonl").read_text().splitlines()]
    [sample] = [json.loads(line) for line in (output / "samples.jsonl").read_text().splitlines()]
    assert len(segment["extra_info"]["step_ids"]) == 6
    assert sum(sample["loss_mask"]) == sum(segment["full_loss_mask"]) > 0
    assert sample["tokens"] == segment["tokens"]
    versions = {
        v for v, trained in zip(segment["full_versions"], segment["full_loss_mask"], strict=True) if trained
    }
    assert versions == {"default", "demo-weights-2"}
    mixed = [span for span in segment["extra_info"]["version_spans"] if span["version"] == "demo-weights-2"]
    before = [span for span in segment["extra_info"]["version_spans"] if span["version"] == "default"]
    assert before[-1]["end"] == mixed[0]["start"], "the versions change in the middle of one reply"
