"""From sampled ids to what the agent sees. One object per step, fed with ids as they come; no I/O.

Incomplete UTF-8 and the possible beginning of a stop string are held back, so joined pieces equal the whole
whatever the chunking. Ids are never changed here: text is derived from them, never the other way round.
"""

from __future__ import annotations

from collections.abc import Sequence

from adapters.models.held import HeldReply
from adapters.models.marks import REPLACEMENT, Marks
from adapters.models.parser import Parser
from adapters.models.reply import Delta, Reply, spread
from sidecar.tito.codec import Codec

_LONGEST_CHARACTER = 4
"""Bytes of the longest UTF-8 character, and so the most ids that make one up."""


class Detokenizer:
    """Ids to text with control tokens as marks (`adapters.models.marks`)."""

    def __init__(self, codec: Codec, marks: Marks) -> None:
        self._codec = codec
        self._marks = marks
        self._shown: list[int] = []  # ids of the last text given out: some decoders look at what precedes
        self._held: list[int] = []  # ids whose text ends inside a character

    @property
    def pending(self) -> bool:
        """The last ids end inside a character."""
        return bool(self._held)

    def push(self, ids: Sequence[int]) -> str:
        """Text that `ids` complete."""
        marks = self._marks.by_token
        if self._codec.decodes_apart and not self._held and len(ids) == 1 and ids[0] not in marks:
            text = self._codec.decode(ids)
            if not text.endswith(REPLACEMENT):
                return self._marks.ordinary(text)  # as for nearly all ids of a stream
        text = ""
        for index in ids:
            mark = marks.get(index)
            if mark is None:
                self._held.append(index)
            else:
                text += self.flush() + mark
                self._shown = []
        return text + self._complete()

    def flush(self) -> str:
        """What is held, with U+FFFD for bytes that never became a character."""
        text = self._text()
        self._shown, self._held = [], []
        return text

    def _complete(self) -> str:
        text = self._text()
        if text.endswith(REPLACEMENT):
            return self._release() if len(self._held) > _LONGEST_CHARACTER else ""
        if self._held:
            self._shown, self._held = [] if self._codec.decodes_apart else self._held, []
        return text

    def _release(self) -> str:
        """Text of held ids that no further id can change: a run of bytes that are no UTF-8 would else be decoded
        again with every id. Only the last character may be incomplete, so a split that decodes to the same text
        on both sides leaves it whole."""
        whole = self._codec.decode(self._held)
        for count in range(len(self._held) - 1, len(self._held) - 1 - _LONGEST_CHARACTER, -1):
            ready, rest = self._held[:count], self._held[count:]
            if self._codec.decode(ready) + self._codec.decode(rest) == whole:
                self._held = ready
                text = self._text()
                self._shown, self._held = ready, rest
                return text
        return ""

    def _text(self) -> str:
        if not self._held:
            return ""
        if not self._shown:
            return self._marks.ordinary(self._codec.decode(self._held))
        before = self._codec.decode(self._shown)
        return self._marks.ordinary(self._codec.decode([*self._shown, *self._held])[len(before) :])


class StopStrings:
    """Finds the first of the client's stop strings in text that arrives in pieces."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._pending = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """Text that is certainly before any stop string; nothing after a match."""
        if self.matched is not None:
            return ""
        if not self._stops:
            return text
        self._pending += text
        found = [(self._pending.find(stop), stop) for stop in self._stops if stop in self._pending]
        if found:
            position, self.matched = min(found)
            before, self._pending = self._pending[:position], ""
            return before
        held = max(self._overlap(stop) for stop in self._stops)
        ready = len(self._pending) - held
        before, self._pending = self._pending[:ready], self._pending[ready:]
        return before

    def flush(self) -> str:
        """What was held back and turned out to be no stop string."""
        text, self._pending = self._pending, ""
        return text

    def _overlap(self, stop: str) -> int:
        longest = min(len(stop) - 1, len(self._pending))
        return next((n for n in range(longest, 0, -1) if stop.startswith(self._pending[-n:])), 0)


class ReplyText:
    """The pipeline of one step: ids -> text -> stop strings -> reasoning, content and calls.

    `unseen_ids` (stop tokens) leave no trace in the text. `deltas` grows as ids are pushed and is shared by
    everybody who reads the step; those of a `held` reply come all at once, from `release`."""

    def __init__(
        self,
        detokenizer: Detokenizer,
        parser: Parser,
        unseen_ids: frozenset[int],
        stop_strings: Sequence[str],
    ) -> None:
        self._detokenizer = detokenizer
        self._parser = parser
        self._unseen_ids = unseen_ids
        self._stops = StopStrings(stop_strings)
        self._watch = bool(stop_strings)
        self._finished = False
        self.consumed = 0
        """Ids read so far."""
        self.stopped_at: int | None = None
        """Ids up to and with the one that completed a stop string; the rest does not belong to the reply."""
        self.deltas: list[Delta] = []

    @property
    def held(self) -> HeldReply | None:
        """The reply that waits for an answer of the engine; None if it is read here."""
        return self._parser if isinstance(self._parser, HeldReply) else None

    def release(self, reply: Reply) -> None:
        """Show a reply that was held."""
        self.deltas.extend(spread(reply))

    def push(self, ids: Sequence[int]) -> None:
        """Read further ids of the step."""
        if self.stopped_at is not None:
            return
        if not self._watch:
            self._read(ids)
            return
        for index in ids:  # one at a time: the id that completes the stop string has to be known
            self._read([index])
            if self._stops.matched is not None:
                self.stopped_at = self.consumed
                return

    def _read(self, ids: Sequence[int]) -> None:
        self.consumed += len(ids)
        visible = [index for index in ids if index not in self._unseen_ids]
        text = self._stops.push(self._detokenizer.push(visible))
        if text:
            self.deltas.extend(self._parser.feed(text))

    def finish(self) -> None:
        """The reply is complete: give out what was held back."""
        if self._finished:
            return
        self._finished = True
        text = self._stops.push(self._detokenizer.flush()) + self._stops.flush()
        if text:
            self.deltas.extend(self._parser.feed(text))
        self.deltas.extend(self._parser.finish())
