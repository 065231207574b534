"""Control tokens inside decoded text, as single private-use characters. Immutable.

A model writes `<tool_call>` either as one control token or, quoting it, as ordinary text. Parsers have to tell
the two apart, so decoded text carries each control token as one character of its own, and `display` gives the
client's text back: special tokens vanish, other control tokens are spelled out.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

_FIRST = 0x100000
_MARKS = re.compile("[\U00100000-\U0010ffff]")
REPLACEMENT = "�"


class Marks:
    """`control` maps ids of added tokens to their spelling; `special` holds the ids hidden from clients.

    Added tokens that are nothing but white space (Gemma has 31 for runs of newlines) are text, not markers."""

    def __init__(self, control: Mapping[int, str], special: frozenset[int]) -> None:
        control = {index: spelling for index, spelling in control.items() if spelling.strip()}
        self._character = {index: chr(_FIRST + n) for n, index in enumerate(sorted(control))}
        self._by_spelling = {control[index]: mark for index, mark in self._character.items()}
        self._spelling = {mark: control[index] for index, mark in self._character.items()}
        self._hidden = {mark for index, mark in self._character.items() if index in special}
        self._paired = [one for one in self._by_spelling if f"{one[0]}/{one[1:]}" in self._by_spelling]
        spellings = sorted(map(re.escape, self._by_spelling), key=len, reverse=True)
        self._spelled = re.compile("|".join(spellings)) if spellings else None

    @property
    def by_token(self) -> Mapping[int, str]:
        """The characters of control tokens by their ids."""
        return self._character

    def of_spellings(self, spellings: Collection[str]) -> frozenset[str]:
        """The marks of those spellings that are control tokens."""
        return frozenset(self._by_spelling[spelling] for spelling in spellings if spelling in self._by_spelling)

    @property
    def special(self) -> frozenset[str]:
        """The marks that are hidden from clients."""
        return frozenset(self._hidden)

    def opened_by(self, text: str) -> str:
        """The control token in which `text` ends, white space aside, if the tokenizer has one that closes it (`<x>`
        and `</x>`, `[X]` and `[/X]`); else `""`."""
        end = text.rstrip()
        return max((one for one in self._paired if end.endswith(one)), key=len, default="")

    def marked(self, text: str) -> str:
        """`text` with every spelling of a control token as its mark: how decoded text looks if the model samples
        the tokens themselves, and so what a parser searches for."""
        return text if self._spelled is None else self._spelled.sub(lambda m: self._by_spelling[m.group()], text)

    def spelled(self, text: str) -> str:
        """`text` with every control token spelled out, special ones too."""
        return _MARKS.sub(lambda match: self._spelling.get(match.group(), ""), text)

    def display(self, text: str, shown: Collection[str] = ()) -> str:
        """Text for the client; the marks in `shown` are spelled out even if they are special."""
        if text.isascii():  # as most text is: it holds no mark
            return text
        return _MARKS.sub(
            lambda match: (
                ""
                if match.group() in self._hidden and match.group() not in shown
                else self._spelling.get(match.group(), "")
            ),
            text,
        )

    @staticmethod
    def ordinary(text: str) -> str:
        """Decoded ordinary text; a model that writes our private characters gets U+FFFD, not a control token."""
        return text if text.isascii() else _MARKS.sub(REPLACEMENT, text)
