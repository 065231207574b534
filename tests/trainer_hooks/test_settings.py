"""Settings of the hooks: the variable, else the YAML key on args, else the default; wrong values are named."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from trainer_hooks.slime.control import control_token, control_urls
from trainer_hooks.slime.errors import SettingError
from trainer_hooks.slime.settings import flag_setting, list_setting, number_setting, text_setting


def args(**values: Any) -> SimpleNamespace:
    return SimpleNamespace(**values)


def test_the_variable_wins_over_the_yaml_key_and_that_over_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert text_setting(args(), "TITO_X", "default") == "default"
    assert text_setting(args(tito_x="yaml"), "TITO_X", "default") == "yaml"
    monkeypatch.setenv("TITO_X", "env")
    assert text_setting(args(tito_x="yaml"), "TITO_X", "default") == "env"
    monkeypatch.setenv("TITO_X", "")
    assert text_setting(args(tito_x=""), "TITO_X", "default") == "default"


@pytest.mark.parametrize(("value", "expected"), [(5, 5.0), ("2.5", 2.5), (0, 0.0), (None, 7.0)])
def test_a_number_is_a_number(value: Any, expected: float) -> None:
    assert number_setting(args(tito_x=value), "TITO_X", 7.0) == expected


@pytest.mark.parametrize("value", ["many", -1, 11, math.nan, math.inf, True, [1], "2.5"])
def test_a_number_that_is_none_or_out_of_bounds_is_refused(value: Any) -> None:
    with pytest.raises(SettingError, match=r"TITO_X is .*: it must be a whole number between 0 and 10"):
        number_setting(args(tito_x=value), "TITO_X", 7, most=10, whole=True)


@pytest.mark.parametrize(("value", "expected"), [(True, True), ("1", True), ("No", False), (0, False)])
def test_a_flag_is_a_flag(value: Any, expected: bool) -> None:
    assert flag_setting(args(tito_x=value), "TITO_X", True) is expected


def test_a_flag_that_is_none_is_refused() -> None:
    with pytest.raises(SettingError, match="TITO_X is 'maybe': set it to 1 or 0"):
        flag_setting(args(tito_x="maybe"), "TITO_X", True)


@pytest.mark.parametrize(("value", "expected"), [("a, b,,", ["a", "b"]), (["a", 1], ["a", "1"]), (None, ["d"])])
def test_a_list_is_a_comma_list_or_a_list(value: Any, expected: list[str]) -> None:
    assert list_setting(args(tito_x=value), "TITO_X", ["d"]) == expected


def test_the_sidecars_and_their_token_have_to_be_named() -> None:
    assert control_urls(args(tito_control_url="http://a, https://b")) == ["http://a", "https://b"]
    for values, text in (
        ({}, "TITO_CONTROL_URL is not set"),
        ({"tito_control_url": "a:8801"}, "must start with http"),
    ):
        with pytest.raises(SettingError, match=text):
            control_urls(args(**values))
    with pytest.raises(SettingError, match="TITO_CONTROL_TOKEN is not set"):
        control_token(args())
