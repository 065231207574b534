"""Reading a request's messages: their canonical form and their chains. What an earlier request of the session began
with is not read again, so that a turn costs what is new in it: recognised in the body's bytes if it can be
(`raw_body.py`), else in the messages' canonical JSON. No I/O; one owner (the session).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from sidecar.tito.client_lines import count_client_lines
from sidecar.tito.fingerprint import Chain, MatchRules, chain_of, extend_chains
from sidecar.tito.messages import Message, normalise, normalise_following
from sidecar.tito.raw_body import Beginning, Mark, first_mark, look
from sidecar.tito.wire_json import wire_json

MOST_READINGS = 8
"""Lineages of a session (its sub-agents) whose last request is remembered."""


@dataclass(frozen=True, slots=True)
class Text:
    """Messages as canonical JSON but the closing bracket, `size` bytes; `hashed` with the template arguments before
    them."""

    size: int
    hashed: hashlib._Hash

    def longer(self, more: bytes) -> Text:
        """With `more` behind it."""
        hashed = self.hashed.copy()
        hashed.update(more)
        return Text(self.size + len(more), hashed)


@dataclass(frozen=True, slots=True)
class Reading:
    """A request's messages. `chains[i]` is the chain after `i` of them."""

    messages: Sequence[Message]
    chains: Sequence[Chain]
    stripped: Mapping[str, int]
    """Rule -> lines that it took out (`client_lines.py`)."""
    wire_count: int
    """How many messages of the request it is."""
    text: Text
    digest: bytes
    """Of `text`."""
    arguments: bytes
    """The template arguments as JSON."""
    mark: Mark | None
    """Behind them in the request's body, if they can be recognised there."""
    before: bytes | None = None
    """`digest` of the reading that it goes on from."""


@dataclass(frozen=True, slots=True)
class Known:
    """How a request begins (`reading`, None if unheard of), and what follows it."""

    reading: Reading | None
    following: Sequence[Any]
    """The messages that were not read before; not type-checked yet."""
    text: Text
    arguments: bytes
    mark: Mark | None
    """As of a reading of all of it."""

    @property
    def count(self) -> int:
        """Messages of the request that were read before."""
        return self.reading.wire_count if self.reading is not None else 0


class Readings:
    """The last readings of a session: one per lineage, the newest last."""

    def __init__(self) -> None:
        self._readings: list[Reading] = []

    def look(self, body: bytes) -> Beginning:
        """Recognise the beginning of a body."""
        return look(body, [reading.mark for reading in self._readings if reading.mark is not None])

    def behind(
        self, beginning: Beginning, following: Sequence[Any], template_kwargs: Mapping[str, Any]
    ) -> Known | None:
        """What `find` says of a request of which only the messages behind its mark were parsed. None if all of them
        are needed. Raises `MessageError`."""
        arguments, mark = _arguments(template_kwargs), beginning.mark
        reading = next((one for one in self._readings if (one.mark, one.arguments) == (mark, arguments)), None)
        if reading is None or not _may_go_on(reading, following[0]):
            return None
        more = b"," + wire_json(following, "messages")[1:-1]
        return Known(
            reading, following, reading.text.longer(more), arguments, beginning.next_mark(more, len(following))
        )

    def find(self, wire: Sequence[Any], template_kwargs: Mapping[str, Any], body: bytes = b"") -> Known:
        """The longest reading that a request begins with, in one pass over its messages' JSON. Raises
        `MessageError`."""
        text, arguments = wire_json(wire, "messages")[:-1], _arguments(template_kwargs)
        view, hashed = memoryview(text), hashlib.sha256(arguments)
        best, done = None, 0
        for reading in sorted(self._readings, key=lambda one: one.text.size):
            size = reading.text.size
            if size > len(text):
                break
            hashed.update(view[done:size])
            done = size
            whole = reading.wire_count == len(wire)
            if hashed.digest() == reading.digest and (whole or _may_go_on(reading, wire[reading.wire_count])):
                best = reading
        hashed.update(view[done:])
        following = wire[best.wire_count if best is not None else 0 :]
        return Known(best, following, Text(len(text), hashed), arguments, first_mark(body, text, len(wire)))

    def keep(self, reading: Reading) -> None:
        """Remember a reading in the place of the one it goes on from, or of the oldest."""
        replaced = (reading.before, reading.digest)
        kept = [one for one in self._readings if one.digest not in replaced]
        self._readings = [*kept[1 - MOST_READINGS :], reading]


def _arguments(template_kwargs: Mapping[str, Any]) -> bytes:
    return wire_json(dict(template_kwargs), "chat_template_kwargs", orjson.OPT_SORT_KEYS)


def _may_go_on(reading: Reading, following: Any) -> bool:
    """Whether later messages, of which the first is given, leave the reading as it is: tool results are ordered
    together, and leading system messages are folded into one."""
    role = following.get("role") if isinstance(following, dict) else None  # not type-checked yet
    return role != "tool" and reading.messages[-1].role != "system"


def read(template_kwargs: Mapping[str, Any], rules: MatchRules, known: Known) -> Reading:
    """Read the messages that were not read before: type-checked objects in OpenAI's form. Raises `MessageError`."""
    before, following = known.reading, known.following
    if before is None:
        messages = normalise(following)
        chains = chain_of(template_kwargs, messages, rules)
        stripped = count_client_lines(following)
    else:
        new = normalise_following(following, before.wire_count)
        messages = [*before.messages, *new]
        chains = extend_chains(before.chains, new, rules)
        stripped = dict(Counter(before.stripped) + Counter(count_client_lines(following)))
    return Reading(
        messages=messages,
        chains=chains,
        stripped=stripped,
        wire_count=known.count + len(following),
        text=known.text,
        digest=known.text.hashed.digest(),
        arguments=known.arguments,
        mark=known.mark,
        before=before.digest if before is not None else None,
    )
