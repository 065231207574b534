"""Reading a request's messages: their canonical form and their chains. What an earlier request of the session began
with, byte for byte, is not read again, so that a turn costs what is new in it. No I/O; one owner (the session).
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

MOST_READINGS = 8
"""Lineages of a session (its sub-agents) whose last request is remembered."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A request's messages. `chains[i]` is the chain after `i` of them.

    `wire_digest` is a hash of the template arguments and the first `wire_size` bytes of the messages' JSON, which
    are all of it but the closing bracket; `wire_count` is how many messages those are."""

    messages: Sequence[Message]
    chains: Sequence[Chain]
    stripped: Mapping[str, int]
    """Rule -> lines that it took out (`client_lines.py`)."""
    wire_count: int
    wire_size: int
    wire_digest: bytes
    before: bytes | None = None
    """`wire_digest` of the reading that it goes on from."""


@dataclass(frozen=True, slots=True)
class Known:
    """How a request begins (`reading`, None if unheard of), and its own size and digest."""

    reading: Reading | None
    wire_size: int
    wire_digest: bytes

    @property
    def count(self) -> int:
        """Messages of the request that were read before."""
        return self.reading.wire_count if self.reading is not None else 0


class Readings:
    """The last readings of a session: one per lineage, the newest last."""

    def __init__(self) -> None:
        self._readings: list[Reading] = []

    def find(self, wire: Sequence[Any], template_kwargs: Mapping[str, Any]) -> Known:
        """The longest reading that a request begins with, in one pass over its bytes."""
        text = memoryview(orjson.dumps(wire))[:-1]
        hashed = hashlib.sha256(orjson.dumps(dict(template_kwargs), option=orjson.OPT_SORT_KEYS))
        best, done = None, 0
        for reading in sorted(self._readings, key=lambda one: one.wire_size):
            if reading.wire_size > len(text):
                break
            hashed.update(text[done : reading.wire_size])
            done = reading.wire_size
            if hashed.copy().digest() == reading.wire_digest and _may_go_on(reading, wire):
                best = reading
        hashed.update(text[done:])
        return Known(best, len(text), hashed.digest())

    def keep(self, reading: Reading) -> None:
        """Remember a reading in the place of the one it goes on from, or of the oldest."""
        replaced = (reading.before, reading.wire_digest)
        kept = [one for one in self._readings if one.wire_digest not in replaced]
        self._readings = [*kept[1 - MOST_READINGS :], reading]


def _may_go_on(reading: Reading, wire: Sequence[Any]) -> bool:
    """Whether later messages leave the reading as it is: tool results are ordered together, and leading system
    messages are folded into one."""
    if reading.wire_count == len(wire):
        return True
    following = wire[reading.wire_count]  # not type-checked yet
    role = following.get("role") if isinstance(following, dict) else None
    return role != "tool" and reading.messages[-1].role != "system"


def read(
    wire: Sequence[dict[str, Any]], template_kwargs: Mapping[str, Any], rules: MatchRules, known: Known
) -> Reading:
    """Read the messages that `known` does not cover. Raises `MessageError`.

    `wire` are type-checked objects in OpenAI's form."""
    before = known.reading
    if before is None:
        messages = normalise(wire)
        chains = chain_of(template_kwargs, messages, rules)
        stripped = count_client_lines(wire)
    else:
        following = wire[before.wire_count :]
        new = normalise_following(following, before.wire_count)
        messages = [*before.messages, *new]
        chains = extend_chains(before.chains, new, rules)
        stripped = dict(Counter(before.stripped) + Counter(count_client_lines(following)))
    return Reading(
        messages,
        chains,
        stripped,
        len(wire),
        known.wire_size,
        known.wire_digest,
        before.wire_digest if before is not None else None,
    )
