"""A place in text that may still grow: the primitives from which every call grammar is written. One per reading.

Each primitive either decides for good or raises `Incomplete`; nothing it has decided changes when text is added.
"""

from __future__ import annotations

import re
from typing import NoReturn

NAME = re.compile(r"\w[\w.:/\-]*")
"""A function's name: wider than the API's `[a-zA-Z0-9_-]{1,64}`, for a call to an unknown tool is passed on."""
_SPACE = re.compile(r"\s*")
_JSON = re.compile(
    r"""(?P<string>"[^"\\\n]*(?:\\.[^"\\\n]*)*(?P<closed>")?)|(?P<open>[{\[])|(?P<close>[}\]])|[\s,:\w.+\-]+"""
)


class Malformed(Exception):  # noqa: N818 - a finding, not a failure
    """What stands here is no call."""


class Incomplete(Exception):  # noqa: N818 - a finding, not a failure
    """More text is needed to tell."""


class Cursor:
    """`text[at:]` is still to be read. `ended`: no text will be added, so what is incomplete is malformed."""

    def __init__(self, text: str, at: int, ended: bool) -> None:
        self.text = text
        self.at = at
        self.ended = ended

    def short(self) -> NoReturn:
        """The text ends here too early."""
        raise Malformed if self.ended else Incomplete

    @property
    def exhausted(self) -> bool:
        """Nothing is left, for now."""
        return self.at >= len(self.text)

    def space(self) -> None:
        """Skip white space."""
        self.skip(_SPACE)

    def skip(self, pattern: re.Pattern[str]) -> None:
        """Skip what `pattern` matches, if anything."""
        match = pattern.match(self.text, self.at)
        self.at = match.end() if match else self.at

    def sees(self, literal: str) -> bool:
        """Whether `literal` stands here."""
        if self.text.startswith(literal, self.at):
            return True
        if not self.ended and literal.startswith(self.text[self.at : self.at + len(literal)]):
            raise Incomplete
        return False

    def take(self, *literals: str) -> None:
        """Read `literals`, one behind the other. Raises `Malformed` if something else stands here."""
        for literal in literals:
            if not self.sees(literal):
                raise Malformed
            self.at += len(literal)

    def word(self, pattern: re.Pattern[str]) -> str:
        """Read what `pattern` matches. Raises `Malformed` if it matches nothing."""
        match = pattern.match(self.text, self.at)
        end = match.end() if match else self.at
        if end >= len(self.text) and not self.ended:
            raise Incomplete
        if end == self.at:
            raise Malformed
        word, self.at = self.text[self.at : end], end
        return word

    def until(self, literal: str) -> str:
        """Read up to `literal`, and that too; the text before it."""
        end = self.text.find(literal, self.at)
        if end < 0:
            self.short()
        before, self.at = self.text[self.at : end], end + len(literal)
        return before

    def skip_to(self, *literals: str) -> str:
        """Read at least one character, up to the first of `literals` or to the end of the reply; what was read."""
        found = [end for end in (self.text.find(literal, self.at + 1) for literal in literals) if end >= 0]
        if not found and not self.ended:
            raise Incomplete
        end = min(found, default=len(self.text))
        skipped, self.at = self.text[self.at : end], end
        return skipped

    def json(self) -> str:
        """Read one JSON object or list by its brackets and strings alone; whether it is one its decoder says."""
        start, depth = self.at, 0
        while True:
            match = _JSON.match(self.text, self.at)
            if match is None:
                if self.exhausted:
                    self.short()
                raise Malformed
            if match["string"] and not match["closed"]:
                if self.text[match.end() : match.end() + 2] in ("", "\\"):
                    self.short()
                raise Malformed  # a raw newline, which JSON's strings cannot hold
            depth += bool(match["open"]) - bool(match["close"])
            self.at = match.end()
            if match["close"] and depth == 0:
                return self.text[start : self.at]
            if depth < 1:
                raise Malformed
