"""What is parsed of a body behind a mark is what the whole body says there, and the whole body is valid then."""

from __future__ import annotations

import hashlib
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sidecar.tito.raw_body import Mark, first_mark, look

Wire = list[dict[str, Any]]

HEADS = [b"{", b'{"model":"m",', b'{ "model" : "m" ,\n"n":1,"stream":true,', b'{"model":"]","messages":"x",']
TEXTS = ["", "a", 'quo"ted', "back\\slash", '],"messages":[{"role":"user"}]', "é\u2028\x7f", "},{"]
SCRAPS = [
    *(b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b" ", b"1e400", b"\xff", b"[" * 1100),
    *(b'],"messages":[{"role":"user","content":"other"}', b'],"\\u006dessages":[', b'],"messages":null,"x":['),
    *(b'{"role":"user","content":"x"},', b',{"role":"user"}', b'],"n":2,"tools":[{}', b'"role":"tool",'),
]
MESSAGES = st.lists(
    st.builds(
        lambda role, text: {"role": role, "content": text},
        st.sampled_from(["user", "tool"]),
        st.sampled_from(TEXTS),
    ),
    min_size=1,
    max_size=3,
)


def listed(messages: Wire) -> bytes:
    """Canonical JSON without brackets."""
    return orjson.dumps(messages)[1:-1]


def marked(head: bytes, messages: Wire, tail: bytes = b"]}") -> Mark | None:
    """The mark of a request with those messages."""
    body = head + b'"messages":[' + listed(messages) + tail
    return first_mark(body, b"[" + listed(messages), len(messages))


def edited(text: bytes, edits: list[tuple[int, int, bytes]]) -> bytes:
    for place, removed, scrap in edits:
        at = place % (len(text) + 1)
        text = text[:at] + scrap + text[at + removed :]
    return text


EDITS = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 3), st.sampled_from(SCRAPS)), max_size=2)


@given(st.sampled_from(HEADS), MESSAGES, MESSAGES, EDITS)
@example(HEADS[0], [{"role": "user"}], [{"role": "user"}], [(16, 0, b'],"messages":[{"role":"tool"}')])
@example(HEADS[0], [{"role": "user"}], [{"role": "user"}], [(16, 0, b'],"\\u006dessages":[{"role":"tool"}')])
def test_what_is_parsed_stands_behind_the_mark_of_a_valid_body(
    head: bytes, known: Wire, new: Wire, edits: list[tuple[int, int, bytes]]
) -> None:
    mark = marked(head, known)
    assert mark is not None
    begun = head + b'"messages":[' + listed(known)
    data = begun + edited(b"," + listed(new) + b'],"model":"m","tools":[{"messages":[]}]}', edits)
    beginning = look(data, [mark])
    assert beginning.body_hash == hashlib.sha256(data).digest()[:16]
    rest = beginning.rest()
    if not edits and head != HEADS[3]:
        assert rest is not None
    if rest is not None:
        whole = orjson.loads(data)
        assert whole["messages"][: mark.count] == known
        assert rest == {**whole, "messages": whole["messages"][mark.count :]}


@given(st.sampled_from(HEADS[:3]), MESSAGES, MESSAGES)
def test_a_mark_moves_on_with_each_request(head: bytes, known: Wire, new: Wire) -> None:
    mark = marked(head, known)
    assert mark is not None
    more = b"," + listed(new)
    moved = look(head + b'"messages":[' + listed(known) + more + b"]}", [mark]).next_mark(more, len(new))
    assert moved == marked(head, known + new, b'],"model":"n"}')


@pytest.mark.parametrize(
    ("head", "tail", "why"),
    [
        (b'{"tools":[],', b"]}", "the list may stand inside another value"),
        (b'{"\\u006dodel":"m",', b"]}", "an escaped name may be messages"),
        (b'["messages",{', b"]}]", "no object"),
        (b"\xef\xbb\xbf{", b"]}", "a byte order mark"),
    ],
)
def test_a_body_that_begins_with_more_than_plain_fields_gets_no_mark(head: bytes, tail: bytes, why: str) -> None:
    assert marked(head, [{"role": "user"}], tail) is None, why


@pytest.mark.parametrize(
    "spelled", [b'{"role": "user"}', b'{"role":"us\\u0065r"}', b'{"role":"user","role":"user"}']
)
def test_messages_that_are_spelled_otherwise_get_no_mark(spelled: bytes) -> None:
    text = b"," + listed([{"role": "user"}])
    assert first_mark(b'{"messages":[' + spelled + b"]}", b"[" + text[1:], 1) is None
    mark = marked(b"{", [{"role": "user"}])
    assert mark is not None
    beginning = look(b'{"messages":[{"role":"user"},' + spelled + b"]}", [mark])
    assert beginning.next_mark(text, 1) is None
    assert beginning.rest() == {"messages": [{"role": "user"}]}  # and yet they are read


def test_the_last_mark_with_messages_behind_it_counts() -> None:
    wire: Wire = [{"role": "user", "content": str(n)} for n in range(4)]
    marks = [mark for n in (3, 1, 4, 2) if (mark := marked(b"{", wire[:n])) is not None]
    other = marked(b"{", [{"role": "user", "content": "x"}, *wire[1:3]])
    assert other is not None
    data = b'{"messages":[' + listed(wire) + b"]}"
    beginning = look(data, [*marks, other])
    assert (beginning.count, beginning.rest()) == (3, {"messages": wire[3:]})
    nothing = look(data, [other])
    assert (nothing.count, nothing.rest(), nothing.next_mark(b"", 0)) == (0, None, None)
    assert nothing.body_hash == beginning.body_hash


def test_nothing_is_behind_a_mark_inside_a_message() -> None:
    mark = marked(b"{", [{"role": "user", "content": "a"}])
    assert mark is not None
    for longer in (b',"name":"x"}', b" ", b'],"n":1'):
        assert look(b'{"messages":[{"role":"user","content":"a"}' + longer + b"]}", [mark]).rest() is None
