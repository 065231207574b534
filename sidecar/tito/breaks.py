"""Why does a root or branch not continue an earlier step? Found when somebody asks, never for a call. Pure.

All histories of a session are laid into one tree of messages, in order of commit. Where a step leaves the paths
that are there, it is compared with the message that the newest of them has in its place: the first field for which
the two are not one message broke the match. Reads no store: `blobs` are the messages that `needed_keys` names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from sidecar.tito.differences import breaking_field
from sidecar.tito.fingerprint import MatchRules, digest, exact_form, lenient_form
from sidecar.tito.messages import Message
from sidecar.tito.records import StepRecord


def to_explain(records: Sequence[StepRecord]) -> list[StepRecord]:
    """The roots besides the first, and the steps that leave a history which another step has gone on with. A step
    whose reason was known when it was planned is none of them."""
    parents: set[str | None] = set()
    found = []
    for record in records:
        if record.parent_id in parents and (record.parent_id is None or record.segment_reason is None):
            found.append(record)
        parents.add(record.parent_id)
    return found


def needed_keys(records: Sequence[StepRecord]) -> list[bytes]:
    """Blobs that `find_breaks` reads."""
    return list(dict.fromkeys(key for record in records for key in record.message_hashes))


Place = tuple[int | None, str | None]
"""Message index and field of a difference. Without an index the field is one of the request; without a field the
message is one that no earlier history has an equivalent of; without both nothing differs."""

_NOWHERE: Place = (None, None)


def find_breaks(records: Sequence[StepRecord], blobs: Mapping[bytes, bytes], rules: MatchRules) -> dict[str, Place]:
    """Step id -> where its history left all earlier ones, for every step of `to_explain`. `records` are a session's
    steps in order of commit."""
    tree = _Tree(blobs, rules)
    places = {record.step_id: tree.add(record) for record in records}
    return {record.step_id: places[record.step_id] for record in to_explain(records)}


@dataclass(slots=True)
class _Point:
    """A place in the tree: `message` was said after `depth` others."""

    depth: int
    message: Message | None = None
    next: dict[bytes, _Point] = field(default_factory=dict)
    """By fingerprint, the one that was said last at the end."""


class _Tree:
    """Histories as paths. One root per set of template arguments, which are part of every history."""

    def __init__(self, blobs: Mapping[bytes, bytes], rules: MatchRules) -> None:
        self._blobs = blobs
        self._rules = rules
        self._roots: dict[bytes, _Point] = {}
        self._kwargs: dict[str, Any] = {}
        self._before_reply: dict[str, _Point] = {}
        self._after_reply: dict[str, _Point] = {}

    def add(self, record: StepRecord) -> Place:
        """Lay a step's history into the tree; where it left the paths that were there."""
        point, place = self._start(record)
        for key in record.message_hashes:
            message = Message.from_json(self._blobs[key])
            if place == _NOWHERE and self._form(message) not in point.next:
                place = self._difference(point, message)
            point = self._step(point, message)
        self._before_reply[record.step_id] = point
        last = record.reply or record.prefix
        self._after_reply[record.step_id] = self._step(point, Message.from_json(last)) if last else point
        return place

    def _start(self, record: StepRecord) -> tuple[_Point, Place]:
        if record.parent_id is not None:
            parent = record.parent_id
            point = self._after_reply[parent]
            goes_on = record.message_count - bool(record.reply) == self._before_reply[parent].depth
            return (self._before_reply[parent] if goes_on else point), _NOWHERE
        key = orjson.dumps(record.template_kwargs, option=orjson.OPT_SORT_KEYS)
        place = _NOWHERE
        if self._roots and key not in self._roots:
            place = None, f"chat_template_kwargs.{_first_changed(self._kwargs, record.template_kwargs)}"
        self._kwargs = record.template_kwargs
        return self._roots.setdefault(key, _Point(0)), place

    def _difference(self, point: _Point, message: Message) -> Place:
        others = list(point.next.values())
        if not others:
            return (point.depth, None) if point.depth else _NOWHERE
        other = others[-1].message
        assert other is not None
        return point.depth, breaking_field(other, message, self._rules)

    def _step(self, point: _Point, message: Message) -> _Point:
        form = self._form(message)
        following = point.next.pop(form, None) or _Point(point.depth + 1, message)
        point.next[form] = following
        return following

    def _form(self, message: Message) -> bytes:
        counted = self._rules.counted(message)
        return digest(exact_form(counted) if self._rules.exact else lenient_form(counted))


def _first_changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    def told(kwargs: Mapping[str, Any], name: str) -> bytes | None:
        return orjson.dumps(kwargs[name], option=orjson.OPT_SORT_KEYS) if name in kwargs else None

    return min(name for name in {*before, *after} if told(before, name) != told(after, name))
