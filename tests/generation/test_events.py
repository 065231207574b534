"""However the network cuts a stream of events, the same objects come out."""

from __future__ import annotations

from itertools import pairwise

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.engines.base import ContractError
from sidecar.generation.events import EventSplitter

OBJECTS = [{"n": 1}, {"text": "a\\n\\nb"}, {"text": "Tür" * 50}, {}]
STREAM = b": a comment\n\n" + b"".join(b"data: %b\n\n" % orjson.dumps(one) for one in OBJECTS) + b"data: [DONE]\n\n"


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_any_cut_gives_the_same_objects(cuts: list[int]) -> None:
    splitter, seen = EventSplitter(), []
    places = [0, *sorted(cuts), len(STREAM)]
    for start, end in pairwise(places):
        assert not splitter.done or start == len(STREAM)
        seen += splitter.feed(STREAM[start:end])
    assert seen == OBJECTS
    assert splitter.done


def test_an_event_in_one_piece_is_read_at_once() -> None:
    splitter = EventSplitter()
    assert list(splitter.feed(b'data: {"a": 1}\n\n')) == [{"a": 1}]
    assert list(splitter.feed(b'data: {"a": 2}\n\ndata: {"a"')) == [{"a": 2}]
    assert list(splitter.feed(b": 3}\n\ndata: [DONE]\n\n")) == [{"a": 3}]
    assert splitter.done


@pytest.mark.parametrize("data", [b"data: {nonsense}\n\n", b"data: [1]\n\n", b"data: nonsense\n\n"])
def test_what_is_no_object_is_refused(data: bytes) -> None:
    with pytest.raises(ContractError):
        list(EventSplitter().feed(data))


def test_objects_before_what_is_none_are_given_first() -> None:
    payloads = iter(EventSplitter().feed(b'data: {"a": 1}\n\ndata: nonsense\n\n'))
    assert next(payloads) == {"a": 1}
    with pytest.raises(ContractError):
        next(payloads)
