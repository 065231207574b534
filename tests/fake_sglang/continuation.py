"""Replies that were interrupted, and the request that goes on with one.

Promise: a script is written per generation, not per request: when a client that lost a generation (pause,
abort, dropped connection, failure) asks again with the prompt, or with the prompt and the ids it already has,
it gets the rest of the same reply. Concurrency: one event loop.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from tests.fake_sglang.plan import Plan
from tests.fake_sglang.recorder import RecordedRequest


@dataclass(slots=True, eq=False)
class Interrupted:
    """A generation that can be continued; its client knows `record.output_ids`, or lost the end of them."""

    record: RecordedRequest
    plan: Plan

    def known_ids(self, request: RecordedRequest) -> int | None:
        """How many of our output ids `request` already holds as its end, None if it does not continue us."""
        prompt, output = self.record.input_ids, self.record.output_ids
        known = len(request.input_ids) - len(prompt)
        if request.session != self.record.session or not 0 <= known <= len(output):
            return None
        if self.plan.start + known >= len(self.plan.ids):
            return None
        fits = request.input_ids[: len(prompt)] == prompt and request.input_ids[len(prompt) :] == output[:known]
        return known if fits else None


class Ledger:
    """All interrupted generations of one engine; each is continued once."""

    def __init__(self) -> None:
        self._open: list[Interrupted] = []

    def add(self, interrupted: Interrupted) -> None:
        """Remember a generation that did not end by itself."""
        self._open.append(interrupted)

    def clear(self) -> None:
        """Forget all of them."""
        self._open.clear()

    def take(self, request: RecordedRequest, in_flight: Iterable[Interrupted]) -> tuple[Interrupted, int] | None:
        """The generation `request` continues and how many of its ids are known; most known ids, then the oldest.

        in_flight: generations whose connection may be gone without the server having noticed yet. They count
            only when the request holds some of their ids: an equal prompt alone may as well be a sibling.
        """
        candidates = [*self._open, *(one for one in in_flight if one.known_ids(request))]
        best, known = None, -1
        for one in candidates:
            known_here = one.known_ids(request)
            if known_here is not None and known_here > known:
                best, known = one, known_here
        if best is None:
            return None
        if best in self._open:
            self._open.remove(best)
        return best, known
