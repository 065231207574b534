"""What the stand-in engine answers: one `Reply` per generation.

Promise: a `Reply` is plain, immutable data that says what the model would sample and how slowly; it knows
nothing of HTTP. A script that makes no sense is refused with `ScriptError`, never repaired. Concurrency:
replies are values.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from tests.fake_sglang.faults import Fault


class ScriptError(Exception):
    """A test scripted something impossible; says which field, its value and what to do."""


class Meter:
    """How many ids one request may have generated so far; whoever holds the meter raises it while it runs."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.raised = asyncio.Event()

    def raise_to(self, limit: int) -> None:
        """Let the request go on to `limit` ids; a lower limit than before changes nothing."""
        if limit > self.limit:
            raised, self.raised = self.raised, asyncio.Event()
            self.limit = limit
            raised.set()


@dataclass(frozen=True, kw_only=True)
class Reply:
    """One generation of the scripted model, independent of how many requests it takes to collect it.

    ids / text: exactly one. `text` is encoded with the engine's tokenizer (special tokens by their spelling).
    finish: what ends the reply when its ids are used up and no stop id, stop string or `max_new_tokens` ended
        it before: `"stop"`, `"length"`, or `"stop_str:XYZ"` (the engine matched the stop string XYZ).
    logprobs: one per id (the appended stop id may be left out); None: finite pseudo-random values <= 0 that
        depend on the token's position in the whole sequence and its id, so an interrupted generation reports
        the same ones.
    append_stop: with `finish="stop"`, add the stop id to ids and logprobs (never to `text`), as SGLang does.
        False: the ids end as given, as from an engine that trims the stop token.
    chunk_tokens: ids per streamed chunk; as in SGLang the first chunk comes with the first id. None: what the
        request asks with `stream_interval`, else 1.
    coalesce: a reader that is late gets only the newest chunk (SGLang 0.5.23 does that), instead of every
    one.
    delay: seconds of rest after each chunk but the last.
    hold, hold_after: after `hold_after` ids stop generating until the event is set. Acts once: a continuation
        of a reply that was interrupted at its hold does not hold again.
    meter: generate only as far as it allows, again and again. Unlike `hold` it counts the ids of one request; a
        pass that the engine makes after an abort goes beyond it.
    queue: stay in the scheduler's waiting queue (no ids yet) until the event is set. Acts once, as `hold`.
    faults: one fault or several, see `faults.py`.
    """

    ids: Sequence[int] | None = None
    text: str | None = None
    finish: str = "stop"
    logprobs: Sequence[float | None] | None = None
    append_stop: bool = True
    chunk_tokens: int | None = None
    coalesce: bool = False
    delay: float = 0.0
    hold: asyncio.Event | None = None
    hold_after: int = 0
    meter: Meter | None = None
    queue: asyncio.Event | None = None
    faults: Fault | Sequence[Fault] = ()

    def __post_init__(self) -> None:
        if (self.ids is None) == (self.text is None):
            raise ScriptError(f"Reply needs exactly one of ids and text, got ids={self.ids} text={self.text!r}")
        if self.finish not in ("stop", "length") and not self.finish.startswith("stop_str:"):
            raise ScriptError(f"Reply.finish is {self.finish!r}; use 'stop', 'length' or 'stop_str:...'")
        if self.chunk_tokens is not None and self.chunk_tokens < 1:
            raise ScriptError(f"Reply.chunk_tokens is {self.chunk_tokens}; use 1 or more")
        if self.hold is None and self.hold_after:
            raise ScriptError(
                f"Reply.hold_after is {self.hold_after} without a hold event; give hold=asyncio.Event()"
            )

    @property
    def fault_list(self) -> tuple[Fault, ...]:
        """`faults` as a tuple, however it was given."""
        return tuple(self.faults) if isinstance(self.faults, Sequence) else (self.faults,)
