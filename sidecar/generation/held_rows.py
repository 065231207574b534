"""Routing replay: which experts processed a step's tokens, gathered from the engine's calls while it is sampled.

Rows are counted by their place in the step's segment: row i belongs to token i, and the last token has none, since
it was never fed back. Held are always the rows from `first` on, without a gap; each call asks for those from `end`
on, which is one less than the ids kept, unless rows were lost with a connection: the next call brings them, too.
Owned by one generation, on one event loop; a large reply is decoded in slices, with turns of the loop in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from adapters.engines.routed_experts import Experts, ExpertShape, RoutedReply, RoutingError, decode
from sidecar.tito.records import UNKNOWN_VERSION, RoutedRows, VersionSpan


@dataclass(frozen=True, slots=True)
class _Pending:
    reply: RoutedReply
    asked: int
    expected: int
    kept: int


class HeldRows:
    """Rows of one step. The rows before `first` belong to earlier steps of its segment."""

    def __init__(self, shape: ExpertShape, first: int) -> None:
        self._shape = shape
        self.first = first
        self.problem: str | None = None
        """What was wrong with an engine's rows; it stays, since an engine that errs once is not to be trusted."""
        self._parts: list[Experts] = []
        self._pending: _Pending | None = None

    @property
    def end(self) -> int:
        """Rows `[first, end)` are held; the next call asks for rows from here on."""
        return self.first + sum(map(len, self._parts))

    def offer(
        self, reply: RoutedReply, *, prompt: int, before: int, kept: int, spans: Sequence[VersionSpan]
    ) -> None:
        """Rows of a call that began with `before` tokens, `prompt` of them not sampled by this step, after which
        the segment keeps `kept`. `spans` say which weights sampled the step's ids. Decoded by `settle`.

        A call's rows cover all that it sampled, also what was cut off again (at a client's stop string)."""
        lost = max(0, self.end + 1 - prompt)
        if lost < before - prompt:  # ids of an earlier call, whose own rows never came
            if kept <= before:
                return  # nothing tells which weights processed them now; the next call asks again
            versions = {span.version for span in spans if span.end > lost}
            if len(versions) > 1 or UNKNOWN_VERSION in versions:
                self.problem = (
                    "rows were lost with a connection, and other weights may have made those that came later"
                )
        expected = max(0, before + reply.completion_tokens - 1 - self.end)
        self._pending = _Pending(reply, self.end, expected, kept)

    async def settle(self) -> None:
        """Decode what was offered. Cancelled, it can be called again."""
        pending = self._pending
        if pending is None:
            return
        try:
            rows = await self._decoded(pending.reply)
        except RoutingError as error:
            self.problem = str(error)
        else:
            self._take(rows, pending)
        self._pending = None

    async def _decoded(self, reply: RoutedReply) -> Experts:
        work = decode(reply.payload, self._shape, reply.wire)
        large = isinstance(reply.payload, str | bytes) and len(reply.payload) > _AT_ONCE
        while True:
            try:
                next(work)
            except StopIteration as done:
                rows: Experts = done.value
                return rows
            if large:
                await asyncio.sleep(0)

    def _take(self, rows: Experts, pending: _Pending) -> None:
        if pending.asked and len(rows) == pending.expected + pending.asked:
            rows = rows[pending.asked :]  # servers before 0.5.12 send all rows
        if len(rows) != pending.expected:
            self.problem = (
                f"the engine sent {len(rows)} rows of routed_experts from {pending.asked} on, where "
                f"{pending.expected} are right"
            )
            return
        rows = rows[: max(0, pending.kept - 1 - pending.asked)]
        if len(rows):
            self._parts.append(rows)

    def clear(self) -> None:
        """The step starts over: its rows, and what was wrong with them, are void."""
        self._parts, self._pending, self.problem = [], None, None

    def missing(self, tokens: int) -> str | None:
        """Why the segment of `tokens` tokens lacks rows after this step, or has some that cannot be trusted; None
        if it has all of them."""
        if self.problem is not None:
            return self.problem
        if self.end < tokens - 1:
            return f"the engine sent no rows for tokens {self.end} to {tokens - 2}"
        return None

    def summary(self, tokens: int) -> RoutedRows | None:
        """What is stored of a step whose segment has `tokens` tokens; None if nothing is held."""
        end = min(self.end, tokens - 1)
        if end <= self.first:
            return None
        itemsize = max(part.itemsize for part in self._parts)
        return RoutedRows(self.first, end, self._shape.layers, self._shape.topk, itemsize)

    def data(self, stored: RoutedRows) -> bytes:
        """The bytes of `summary`'s rows, little-endian, shape [end - start, layers, topk]."""
        rows = np.concatenate(self._parts)[: stored.end - stored.start]
        return rows.astype(f"<u{stored.itemsize}", copy=False).tobytes()


_AT_ONCE = 2**19
"""Characters of a reply that are decoded without a turn of the loop."""
