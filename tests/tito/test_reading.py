"""Reading a request with what earlier requests began with gives what reading it alone gives."""

from __future__ import annotations

import json
from itertools import chain
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.tito import reading as module
from sidecar.tito.errors import MessageError
from sidecar.tito.fingerprint import LENIENT
from sidecar.tito.reading import MOST_READINGS, Reading, Readings, read

Wire = list[dict[str, Any]]

_TEXT = st.sampled_from(
    ["", "a", "b", "x-anthropic-billing-header: v1\n", "x-anthropic-billing-header: v1\nbe brief"]
)
_PLAIN = st.builds(
    lambda role, content: [{"role": role, "content": content}],
    st.sampled_from(["system", "developer", "user", "assistant"]),
    _TEXT,
)


def _round(ids: list[str], order: list[str]) -> Wire:
    calls = [{"id": one, "type": "function", "function": {"name": "f", "arguments": "{}"}} for one in ids]
    results = [{"role": "tool", "tool_call_id": one, "content": one} for one in order]
    return [{"role": "assistant", "content": None, "tool_calls": calls}, *results]


_ROUND = st.permutations(["c1", "c2", "c3"]).map(lambda order: _round(["c1", "c2", "c3"], order))
_HISTORY = st.lists(_PLAIN | _ROUND, min_size=1, max_size=6).map(lambda parts: list(chain(*parts)))


def _alone(wire: Wire, **kwargs: Any) -> Reading | str:
    try:
        return read(kwargs, LENIENT, Readings().find(wire, kwargs))
    except MessageError as error:
        return str(error)


def _after(readings: Readings, wire: Wire, **kwargs: Any) -> Reading | str:
    try:
        reading = read(kwargs, LENIENT, readings.find(wire, kwargs))
    except MessageError as error:
        return str(error)
    readings.keep(reading)
    return reading


def _of_body(readings: Readings, body: bytes) -> Reading | str:
    """As the gateway does: what is behind a mark, or all of it."""
    beginning, known = readings.look(body), None
    fields = beginning.rest()
    if fields is not None:
        known = readings.behind(beginning, fields["messages"], fields.get("chat_template_kwargs", {}))
    if known is None:
        fields = orjson.loads(body)
        known = readings.find(fields["messages"], fields.get("chat_template_kwargs", {}), body)
    try:
        reading = read(fields.get("chat_template_kwargs", {}), LENIENT, known)
    except MessageError as error:
        return str(error)
    readings.keep(reading)
    return reading


def _said(reading: Reading | str) -> object:
    return reading if isinstance(reading, str) else (list(reading.messages), list(reading.chains))


@given(_HISTORY, st.data())
def test_a_history_that_grows_is_read_as_if_it_were_new(history: Wire, data: st.DataObject) -> None:
    readings = Readings()
    for count in sorted(data.draw(st.lists(st.integers(1, len(history)), min_size=1, max_size=4))):
        wire = history[:count]
        assert _said(_after(readings, wire)) == _said(_alone(wire))


@given(st.lists(_HISTORY, min_size=2, max_size=4), st.data())
def test_histories_that_alternate_and_share_beginnings_are_kept_apart(
    many: list[Wire], data: st.DataObject
) -> None:
    readings, shared = Readings(), many[0]
    for _ in range(6):
        wire = shared[: data.draw(st.integers(0, len(shared)))] + data.draw(st.sampled_from(many))
        assert _said(_after(readings, wire)) == _said(_alone(wire))


_FIELDS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({}, {"model": "m", "tools": [{"messages": []}]}),
    ({"model": "m"}, {"stream": True}),
    ({"tools": []}, {}),
    ({}, {"chat_template_kwargs": {"enable_thinking": False}}),
]


def _body(wire: Wire, fields: tuple[dict[str, Any], dict[str, Any]], compact: bool = True) -> bytes:
    value = {**fields[0], "messages": wire, **fields[1]}
    return orjson.dumps(value) if compact else json.dumps(value).encode()


@given(st.lists(_HISTORY, min_size=1, max_size=3), st.data())
def test_bodies_are_read_as_if_each_were_the_first(many: list[Wire], data: st.DataObject) -> None:
    readings = Readings()
    for _ in range(8):
        history = data.draw(st.sampled_from(many))
        wire = history[: data.draw(st.integers(1, len(history)))]
        fields = data.draw(st.sampled_from(_FIELDS))
        body = _body(wire, fields, data.draw(st.booleans()))
        alone = _alone(wire, **fields[1].get("chat_template_kwargs", {}))
        read_now = _of_body(readings, body)
        assert _said(read_now) == _said(alone)
        if isinstance(read_now, Reading) and isinstance(alone, Reading):
            assert (read_now.digest, read_now.wire_count, read_now.stripped) == (
                alone.digest,
                alone.wire_count,
                alone.stripped,
            )


def _conversation(rounds: int) -> Wire:
    wire: Wire = [{"role": "user", "content": "go"}]
    for _ in range(rounds):
        wire += _round(["c1"], ["c1"])
    return wire


def _count_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of messages that are normalised from here on."""
    counts: list[int] = []
    for name in ("normalise", "normalise_following"):
        original = getattr(module, name)

        def counting(wire: Wire, *rest: Any, original: Any = original) -> Any:
            counts.append(len(wire))
            return original(wire, *rest)

        monkeypatch.setattr(module, name, counting)
    return counts


def test_a_turn_reads_its_new_messages_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    counts, readings = _count_read(monkeypatch), Readings()
    for rounds in range(5):
        _after(readings, _conversation(rounds))
    assert counts == [1, 2, 2, 2, 2]


@pytest.mark.parametrize("fields", _FIELDS[:3])
def test_earlier_messages_are_recognised_in_the_body_alone(fields: tuple[dict[str, Any], dict[str, Any]]) -> None:
    readings = Readings()
    for rounds in range(4):
        body = _body(_conversation(rounds), fields)
        assert readings.look(body).count == max(0, 2 * rounds - 1)
        _of_body(readings, body)


def test_a_body_whose_new_messages_are_spelled_otherwise_is_recognised_again_by_its_messages() -> None:
    readings = Readings()
    _of_body(readings, _body(_conversation(1), _FIELDS[0]))
    _of_body(readings, _body(_conversation(2), _FIELDS[0], compact=False))
    assert readings.look(_body(_conversation(3), _FIELDS[0])).count == 0
    assert readings.find(_conversation(3), {}).count == 5


def test_sub_agents_that_alternate_are_each_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    counts, readings = _count_read(monkeypatch), Readings()
    for rounds in range(3):
        for agent in range(MOST_READINGS):
            _after(readings, [{"role": "system", "content": f"agent {agent}"}, *_conversation(rounds)])
    assert counts == [2] * MOST_READINGS + [2] * MOST_READINGS * 2


def test_a_changed_message_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    counts, readings = _count_read(monkeypatch), Readings()
    _after(readings, _conversation(2))
    changed = _conversation(3)
    changed[0] = {"role": "user", "content": "no, stop"}
    reading = _after(readings, changed)
    assert counts == [5, 7]
    assert isinstance(reading, Reading)
    assert reading.messages[0].content == "no, stop"


def test_other_template_arguments_are_another_history() -> None:
    readings, wire = Readings(), _conversation(2)
    _after(readings, wire)
    reading = _after(readings, wire, enable_thinking=False)
    assert _said(reading) == _said(_alone(wire, enable_thinking=False)) != _said(_alone(wire))


def test_errors_count_messages_from_the_beginning_of_the_request() -> None:
    readings, wire = Readings(), _conversation(2)
    _after(readings, wire)
    wrong = [
        *wire,
        {"role": "assistant", "content": "done"},
        {"role": "tool", "tool_call_id": "c1", "content": "x"},
    ]
    assert "messages[6] is a tool result" in str(_after(readings, wrong))
    assert _after(readings, wrong) == _alone(wrong)
