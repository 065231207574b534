"""The text of a growing list of output ids, and the stop strings in it.

Promise: `visible` only ever grows and never ends in half a character; stop strings are found in the text with
special tokens spelled out, as SGLang looks for them. Concurrency: belongs to one job.
"""

from collections.abc import Sequence
from typing import Any

from tests.fake_sglang.vocabulary import Vocabulary

HALF_CHARACTER = "\ufffd"
# No UTF-8 character has more bytes; ids that are still unreadable after that many are no half character.
LONGEST_CHARACTER = 4


class GrowingText:
    """Decodes ids one by one; an id that ends inside a character is held back until the rest comes."""

    def __init__(self, vocabulary: Vocabulary, *, skip_special_tokens: bool) -> None:
        self.text = ""
        self._vocabulary = vocabulary
        self._skip = skip_special_tokens
        self._context: list[int] = []
        self._pending: list[int] = []

    def push(self, token_id: int) -> None:
        """Add one id."""
        self._pending.append(token_id)
        before = self._vocabulary.decode(self._context, skip_special_tokens=self._skip)
        after = self._vocabulary.decode(self._context + self._pending, skip_special_tokens=self._skip)
        if after.endswith(HALF_CHARACTER) and len(self._pending) < LONGEST_CHARACTER:
            return
        self.text += after[len(before) :]
        self._context, self._pending = self._pending, []


class OutputText:
    """What the client sees (`visible`), and the search for stop strings."""

    def __init__(self, vocabulary: Vocabulary, stop_strings: Sequence[str], *, skip_special_tokens: bool) -> None:
        self._seen = GrowingText(vocabulary, skip_special_tokens=skip_special_tokens)
        self._raw = GrowingText(vocabulary, skip_special_tokens=False)
        self._stops = [stop for stop in stop_strings if stop]

    @property
    def visible(self) -> str:
        """The text so far."""
        return self._seen.text

    def push(self, token_id: int) -> str | None:
        """Add one id; returns the stop string it completes, if any."""
        self._seen.push(token_id)
        if not self._stops:
            return None
        before = len(self._raw.text)
        self._raw.push(token_id)
        found = (stop for stop in self._stops if stop in self._raw.text[max(0, before - len(stop) + 1) :])
        return next(found, None)

    @property
    def ends_in_part_of_a_stop(self) -> bool:
        """Whether a chunk must wait because its end may become a stop string."""
        text = self._raw.text
        return any(text.endswith(stop[:size]) for stop in self._stops for size in range(1, len(stop)))


def final_text(
    vocabulary: Vocabulary, ids: Sequence[int], finish_reason: dict[str, Any], *, skip_special: bool, trim: bool
) -> str:
    """The text of a finished reply: without the matched stop token or stop string, unless `no_stop_trim`."""
    matched = finish_reason.get("matched")
    if trim and isinstance(matched, int) and ids and ids[-1] == matched:
        ids = ids[:-1]
    text = vocabulary.decode(ids, skip_special_tokens=skip_special)
    if trim and isinstance(matched, str) and matched in text:
        text = text[: text.index(matched)]
    return text
