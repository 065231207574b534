"""`--volatile-pattern` is repeatable, and a pattern that is none is refused at start-up."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from sidecar import cli
from sidecar.config import SettingsError, load_settings


def test_a_pattern_that_is_none_is_refused_by_its_flag() -> None:
    with pytest.raises(SettingsError, match=r"--volatile-pattern is .*'\(' is no regular expression"):
        load_settings({"volatile_pattern": "("})


def test_patterns_come_one_per_line_and_may_hold_commas(tmp_path: Path) -> None:
    assert load_settings({"volatile_pattern": "a{1,2}\nb"}).volatile_pattern == ["a{1,2}", "b"]
    config = tmp_path / "c.yaml"
    config.write_text("volatile_pattern: ['a{1,2}', b]\n")
    assert load_settings({}, config).volatile_pattern == ["a{1,2}", "b"]


def test_the_flag_may_be_given_several_times() -> None:
    result = CliRunner().invoke(
        cli.app, ["serve", "--volatile-pattern", "a{1,2}", "--volatile-pattern", "(", "--tokenizer", "x"]
    )
    assert isinstance(result.exception, SettingsError)
    assert str(result.exception).startswith("--volatile-pattern is 'a{1,2}\\n('")
