"""The benchmark of reading runs, and counts what it reads."""

from __future__ import annotations

from pathlib import Path

from benchmarks.read_cost import measure_all


def test_reading_is_measured_in_both_forms(tmp_path: Path) -> None:
    found = list(measure_all(tmp_path, 2_000, 3, ["branches"]))
    assert [(one.form, one.tokens) for one in found] == [("json", 3 * 2_104), ("binary", 3 * 2_104)]
    assert found[0].megabytes > found[1].megabytes > 9e-6 * found[1].tokens
    assert all(one.milliseconds > 0 and one.server_cpu_ms > 0 for one in found)
