"""What differs between a stored message and another telling of it, field by field. Pure functions.

The same comparison serves the audit (what lenient matching let pass) and the explanation of a broken match (the
first field that it could not let pass). It agrees with `fingerprint.py`: two messages have one lenient fingerprint
if and only if every difference between them is forgiven.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sidecar.tito.fingerprint import MatchRules, canonical_arguments
from sidecar.tito.messages import Call, Message, bare_id
from sidecar.tito.records import Forgiven


@dataclass(frozen=True, slots=True)
class FieldDifference:
    """`field` is a path in OpenAI's message form; `kind` says how it is forgiven, None if it is not."""

    field: str
    kind: str | None


def differences(stored: Message, told: Message, rules: MatchRules) -> Iterator[FieldDifference]:
    """Every differing field, in the order of their weight."""
    if stored.role != told.role:
        yield FieldDifference("role", None)
    if stored.content != told.content:
        yield FieldDifference("content", _content_kind(stored, told, rules))
    yield from _call_differences(stored.calls, told.calls)
    if stored.call_id != told.call_id:
        same = bare_id(stored.call_id or "") == bare_id(told.call_id or "")
        yield FieldDifference("tool_call_id", "punctuation" if same else None)
    if stored.reasoning != told.reasoning:
        yield FieldDifference("reasoning_content", _optional_kind(stored.reasoning, told.reasoning))
    if stored.name != told.name:
        yield FieldDifference("name", _optional_kind(stored.name, told.name))


def forgiven_differences(stored: Message, told: Message, message_index: int, rules: MatchRules) -> list[Forgiven]:
    """What lenient matching let pass between a stored message and its replay, for the audit."""
    found = differences(stored, told, rules)
    return [Forgiven(message_index, one.field, one.kind) for one in found if one.kind is not None]


def breaking_field(stored: Message, told: Message, rules: MatchRules) -> str | None:
    """The first field for which `told` is not `stored` in another telling; None if it is."""
    return next((one.field for one in differences(stored, told, rules) if rules.breaks(one.kind)), None)


def _content_kind(stored: Message, told: Message, rules: MatchRules) -> str | None:
    mine, theirs = rules.counted(stored).content, rules.counted(told).content
    if mine == theirs:
        return "volatile"
    return "trailing_whitespace" if mine.rstrip() == theirs.rstrip() else None


def _optional_kind(stored: str | None, told: str | None) -> str:
    if told is None:
        return "missing"
    return "added" if stored is None else "changed"


def _call_differences(stored: tuple[Call, ...], told: tuple[Call, ...]) -> Iterator[FieldDifference]:
    if len(stored) != len(told):
        yield FieldDifference("tool_calls", None)
        return
    for position, (mine, theirs) in enumerate(zip(stored, told, strict=True)):
        where = f"tool_calls[{position}]"
        if mine.name != theirs.name:
            yield FieldDifference(f"{where}.function.name", None)
        if mine.arguments != theirs.arguments:
            same = canonical_arguments(mine) == canonical_arguments(theirs)
            yield FieldDifference(f"{where}.function.arguments", "spelling" if same else None)
        if mine.id != theirs.id:
            same = bare_id(mine.id) == bare_id(theirs.id)
            yield FieldDifference(f"{where}.id", "punctuation" if same else None)
