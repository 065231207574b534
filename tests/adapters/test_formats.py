"""What is between a call's markers is a call or is not; agents can always read the arguments of one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.models.formats import HERMES, THINK, parse_hermes

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), texts),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=6,
)


@given(texts.filter(bool), st.dictionaries(texts, values, max_size=4), st.booleans())
def test_a_well_formed_call_is_read_whatever_its_spelling(
    name: str, arguments: dict[str, Any], ascii_: bool
) -> None:
    body = "\n" + json.dumps({"arguments": arguments, "name": name}, ensure_ascii=ascii_, indent=1) + "\n"
    parsed = parse_hermes(body)
    assert parsed is not None
    assert parsed[0] == name
    assert json.loads(parsed[1]) == arguments


def test_arguments_keep_their_order_and_their_characters() -> None:
    assert parse_hermes('{"name": "f", "arguments": {"b": 1.0, "a": "Tür"}}') == ("f", '{"b": 1.0, "a": "Tür"}')


def test_a_call_without_arguments_has_none() -> None:
    assert parse_hermes('{"name": "f"}') == ("f", "{}")


@pytest.mark.parametrize(
    "body",
    [
        "",
        "nonsense",
        '{"name": "f", "arguments": {"a": 1}',
        '["f", {}]',
        '"f"',
        '{"arguments": {}}',
        '{"name": "", "arguments": {}}',
        '{"name": 1, "arguments": {}}',
        '{"name": null, "arguments": {}}',
        '{"name": "f", "arguments": null}',
        '{"name": "f", "arguments": [1]}',
        '{"name": "f", "arguments": "{}"}',
        '{"name": "f", "arguments": {}} {"name": "g", "arguments": {}}',
        "[" * 100_000,
    ],
)
def test_what_is_no_call_is_none(body: str) -> None:
    assert parse_hermes(body) is None


@pytest.mark.parametrize(
    "body",
    [
        '{"name": "f", "arguments": {"a": NaN}}',
        '{"name": "f", "arguments": {"a": [-Infinity]}}',
        '{"name": "f", "arguments": {"a": 1e999}}',
        '{"name": "f", "arguments": {"a": "\\ud800"}}',
        '{"name": "f", "arguments": {"\\udc00": 1}}',
        '{"name": "\\ud800", "arguments": {}}',
    ],
)
def test_arguments_that_no_agent_could_read_make_no_call(body: str) -> None:
    assert parse_hermes(body) is None


def test_the_markers_are_those_of_the_published_formats() -> None:
    assert (HERMES.opener, HERMES.closer) == ("<tool_call>", "</tool_call>")
    assert (THINK.opener, THINK.closer) == ("<think>", "</think>")
