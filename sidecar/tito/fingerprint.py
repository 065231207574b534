"""Canonical fingerprints of messages, chained over a history. Pure functions.

Two fingerprints per message: the *lenient* one ignores what clients are known to lose or rewrite on replay
(reasoning, argument key order and spacing, punctuation of call ids, trailing white space); the *exact* one
ignores nothing. Both leave out what the user named as volatile. Equal chain hashes mean equal histories under
that reading.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import orjson

from sidecar.tito.messages import Call, Message, bare_id

DIGEST_SIZE = 16


@dataclass(frozen=True, slots=True)
class MatchRules:
    """`exact`: nothing is forgiven (`--match exact`). `volatile` are patterns of text in system messages that
    changes from call to call and counts in neither reading (`--volatile-pattern`)."""

    exact: bool = False
    volatile: tuple[re.Pattern[str], ...] = ()

    def counted(self, message: Message) -> Message:
        """The message without what does not count."""
        if not self.volatile or message.role != "system":
            return message
        content = message.content
        for pattern in self.volatile:
            content = pattern.sub("", content)
        return replace(message, content=content)

    def breaks(self, kind: str | None) -> bool:
        """Whether a difference of that kind (`differences.py`) makes two tellings two messages."""
        return kind is None or (self.exact and kind != "volatile")


LENIENT = MatchRules()


@dataclass(frozen=True, slots=True)
class Chain:
    """Hash of a history (16 bytes each), under both readings."""

    lenient: bytes
    exact: bytes


def digest(data: bytes) -> bytes:
    """16-byte BLAKE2b of `data`."""
    return hashlib.blake2b(data, digest_size=DIGEST_SIZE).digest()


def start_chain(template_kwargs: Mapping[str, Any]) -> Chain:
    """The chain before the first message; what is passed to the template is part of every history."""
    root = digest(orjson.dumps(dict(template_kwargs), option=orjson.OPT_SORT_KEYS))
    return Chain(lenient=root, exact=root)


def extend_chain(chain: Chain, message: Message, rules: MatchRules = LENIENT) -> Chain:
    """The chain after one more message. `rules` matter to system messages alone."""
    message = rules.counted(message)
    return Chain(
        lenient=digest(chain.lenient + lenient_form(message)),
        exact=digest(chain.exact + exact_form(message)),
    )


def extend_chains(chains: Iterable[Chain], messages: Iterable[Message], rules: MatchRules = LENIENT) -> list[Chain]:
    """`chains`, which are at least one, and the chain after each further message."""
    longer = list(chains)
    for message in messages:
        longer.append(extend_chain(longer[-1], message, rules))
    return longer


def chain_of(
    template_kwargs: Mapping[str, Any], messages: Iterable[Message], rules: MatchRules = LENIENT
) -> list[Chain]:
    """Chains of every prefix of a history: entry `i` is the chain after `i` messages."""
    return extend_chains([start_chain(template_kwargs)], messages, rules)


def lenient_form(message: Message) -> bytes:
    """What has to be equal for two messages to be the same message in two tellings."""
    return orjson.dumps(
        [
            message.role,
            message.content.rstrip(),
            [[bare_id(call.id), call.name, canonical_arguments(call)] for call in message.calls],
            bare_id(message.call_id or ""),
        ]
    )


def exact_form(message: Message) -> bytes:
    """Every field as it came."""
    return orjson.dumps(
        [
            message.role,
            message.content,
            message.reasoning,
            [[call.id, call.name, call.arguments] for call in message.calls],
            message.call_id,
            message.name,
        ]
    )


def canonical_arguments(call: Call) -> str:
    """Arguments with sorted keys and no spacing: `1` and `1.0` stay different, and so does what is no JSON object
    or has duplicate keys (compared as its raw text)."""
    if call.parsed is None:
        return call.arguments
    try:
        return orjson.dumps(call.parsed, option=orjson.OPT_SORT_KEYS).decode()
    except TypeError:  # an integer beyond 64 bits, or nested deeper than orjson goes
        return json.dumps(call.parsed, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
