"""Secrets out of text and JSON before anything of a rollout is kept or logged.

What is known to be secret goes exactly; what looks like a secret goes by its shape. That is a net with holes
for unknown shapes: keep logs where the trainer's own files are. Immutable; safe from any thread.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

REDACTED = "[redacted]"

# Repeats are bounded and names are not searched backwards: the policy writes the text, and quadratic patterns would
# let it hold up the trainer.
_SHAPES = re.compile(
    r"(?<![\w-])(?:tito-[\w-]{4,400}\.[\w-]{16,64}"  # session keys
    r"|sk-[\w-]{16,}|gh[pousr]_\w{20,}|github_pat_\w{20,}|hf_\w{20,}|glpat-[\w-]{16,}|xox[abprs]-[\w-]{10,}"
    r"|(?:AKIA|ASIA)[0-9A-Z]{16}\b|AIza[\w-]{30,}"
    r"|eyJ[\w-]{8,500}\.eyJ[\w-]{8,8000}\.[\w-]+)"  # signed JSON web tokens
)
_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)", re.DOTALL
)
_BEARER = re.compile(r"\b(bearer|basic)([ \t]{1,8})[\w.~+/=-]{8,}", re.IGNORECASE)
_HEADERS = re.compile(
    r"""\b((?:proxy-)?authorization|x-api-key|api-key|(?:set-)?cookie)(["']?\s{0,8}[:=]\s{0,8}["']?)[^\s"'][^\r\n"']*""",
    re.IGNORECASE,
)
_ASSIGNED = re.compile(
    r"""((?:api_?key|secret|token|password|passwd|credentials?)(?![a-z])[\w-]{0,64})"""
    r"""(["']?\s{0,8}[:=]\s{0,8}["']?)[^\s"',;&<>(){}\[\]]{8,}""",
    re.IGNORECASE,
)
_IN_URL = re.compile(r"(://[^\s/:@]+:)[^\s/@]+(@)")
_SECRET_NAME = re.compile(
    r"(?:^|[_-])(?:authorization|api_?key|secret|token|password|passwd|credentials?|cookie)$", re.IGNORECASE
)


_BLOCK = 32 * 1024
"""Characters matched in one go: that holds the interpreter's lock, for which the rollout's event loop waits."""

_PASSES = (
    (_SHAPES, REDACTED, ("tito-", "sk-", "gh", "hf_", "glpat-", "xox", "akia", "asia", "aiza", "eyj")),
    (_HEADERS, rf"\1\2{REDACTED}", ("authorization", "api-key", "cookie")),
    (_BEARER, rf"\1\2{REDACTED}", ("bearer", "basic")),
    (_ASSIGNED, rf"\1\2{REDACTED}", ("key", "secret", "token", "passw", "credential")),
    (_IN_URL, rf"\1{REDACTED}\2", ("://",)),
)
"""Pattern, replacement, and words (in lower case) of which each match holds one: most text holds none."""


class Redactor:
    """Replaces `secrets` and whatever looks like one by `[redacted]`."""

    def __init__(self, secrets: Iterable[str | None] = ()) -> None:
        # Longest first: one may be part of another.
        self._known = sorted({one for one in secrets if one and len(one) >= 4}, key=len, reverse=True)

    def __repr__(self) -> str:
        return "Redactor(...)"

    def text(self, text: str) -> str:
        """`text` without secrets."""
        for secret in self._known:
            text = text.replace(secret, REDACTED)
        if "PRIVATE KEY" in text:
            text = _PRIVATE_KEY.sub(REDACTED, text)
        return "".join(_by_shape(block) for block in _blocks(text))

    def tree(self, value: Any) -> Any:
        """A JSON-like value without secrets, in its strings, its keys, and under names that tell of one."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(str(key)): self._member(str(key), one) for key, one in value.items()}
        if isinstance(value, (list, tuple)):
            # Long arrays hold numbers: strings come first, or not at all.
            return [self.tree(one) for one in value] if value and not isinstance(value[0], (int, float)) else value
        return value

    def _member(self, name: str, value: Any) -> Any:
        if isinstance(value, str) and value and _SECRET_NAME.search(name):
            return REDACTED
        return self.tree(value)


def _by_shape(block: str) -> str:
    lowered = block.lower()
    for pattern, replacement, words in _PASSES:
        if any(word in lowered for word in words):
            block = pattern.sub(replacement, block)
    return block


def _blocks(text: str) -> Iterator[str]:
    """Cut after a line, else after a space or a comma."""
    start = 0
    while len(text) - start > _BLOCK:
        ends = (text.rfind(mark, start + _BLOCK // 2, start + _BLOCK) + 1 for mark in ("\n", " ", ","))
        end = next((end for end in ends if end), start + _BLOCK)
        yield text[start:end]
        start = end
    yield text[start:]
