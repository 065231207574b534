"""Lines that clients write into system messages and change with every call: stripped by named, counted rules. Pure.

They are no instruction to the model, and a prompt that differs at its beginning shares no token with the one before
(Claude Code's billing header: anthropics/claude-code issue 68900). A rule looks at the beginning of a block alone
(a text content, or one part of a list), so that what a message says about such a line stays.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

_RULES = {"billing_header": re.compile(r"x-anthropic-billing-header:[^\n]*\n*")}
"""Name -> what is stripped from the beginning of a block, the empty lines after it included."""


def strip_client_lines(block: str) -> tuple[str, list[str]]:
    """A block of a system message without such lines, and the names of the rules that took them out."""
    names: list[str] = []
    while (found := _first_rule(block)) is not None:
        name, end = found
        names.append(name)
        block = block[end:]
    return block, names


def count_client_lines(wire: Iterable[dict[str, Any]]) -> dict[str, int]:
    """Rule -> lines that it takes out of the system messages of a request (type-checked wire objects)."""
    counts = Counter(
        name
        for message in wire
        if message["role"] in ("system", "developer")
        for block in _blocks(message.get("content"))
        for name in strip_client_lines(block)[1]
    )
    return dict(counts)


def _first_rule(block: str) -> tuple[str, int] | None:
    matches = ((name, rule.match(block)) for name, rule in _RULES.items())
    return next(((name, match.end()) for name, match in matches if match is not None), None)


def _blocks(content: Any) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    for part in content if isinstance(content, list) else ():
        yield part.get("text") or ""
