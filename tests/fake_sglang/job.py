"""One request inside the scheduler: waits for its turn, generates id by id, ends.

Promise: what ends a generation is decided in SGLang's order: an abort, a stop string, a stop id,
`max_new_tokens`, then the script. A job stands still while the engine is paused `in_place` or `retract`; it
never waits for the reader of its chunks. Concurrency: `run` is one task; `abort`, `retract` and
`version_changed` are called from other tasks between its steps.
"""

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from tests.fake_sglang import faults
from tests.fake_sglang.contract import GenerateCall
from tests.fake_sglang.plan import Plan
from tests.fake_sglang.recorder import RecordedRequest
from tests.fake_sglang.signals import wait_any
from tests.fake_sglang.text import OutputText, final_text

if TYPE_CHECKING:
    from tests.fake_sglang.state import EngineState


@dataclass(frozen=True, slots=True)
class Mark:
    """A chunk is due: the first `count` ids and the first `text_length` characters. `version` is what the server
    called its weights then, which counts, however late the chunk leaves."""

    count: int
    text_length: int
    version: str


@dataclass(frozen=True, slots=True)
class End:
    """Why a job ended. `cut` is set when a fault of the connection, not the model, ended it."""

    kind: Literal["finished", "abort", "queue_abort", "cut"]
    finish_reason: dict[str, Any]
    cut: faults.Cut | None = None


ABORTED = End("abort", {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None})
QUEUE_FULL = End(
    "queue_abort",
    {"type": "abort", "message": "The request queue is full.", "status_code": 503, "err_type": None},
)
QUEUE_ABORTED = End("queue_abort", {"type": "abort", "message": "Abort in waiting queue"})


class Job:
    """The scheduler's side of one `/generate` request; `due` ends with None when the job does."""

    def __init__(self, record: RecordedRequest, call: GenerateCall, plan: Plan, state: "EngineState") -> None:
        self.record = record
        self.call = call
        self.plan = plan
        self.state = state
        self.vocabulary = state.vocabulary
        self.ids = record.output_ids
        self.logprobs = record.output_logprobs
        self.incremental = state.options.incremental and call.stream
        self.cached_tokens = state.cached_tokens(record.input_ids)
        self.started = time.monotonic()
        self.entries: list[list[Any]] = []
        self._marks: asyncio.Queue[Mark | faults.GarbageChunk | None] = asyncio.Queue()
        self.ended = asyncio.Event()
        self.end: End | None = None
        self.phase: Literal["waiting", "running", "retracted"] = "waiting"
        self.num_retractions = 0
        self.text_sent = 0
        self.text: OutputText | None = None
        if self.vocabulary.tokenizer is not None:
            skip = call.param("skip_special_tokens", True)
            self.text = OutputText(self.vocabulary, call.stop_strings, skip_special_tokens=skip)
        self._stop_ids = {*call.stop_token_ids, *self.vocabulary.eos_token_ids}
        self._forced = _forced_id(call)
        self._interval = plan.reply.chunk_tokens or call.param("stream_interval", 1)
        self._sent = 0
        self._garbage = plan.of_type(faults.GarbageChunk)
        self._matched: str | None = None
        self._to_finish = False
        self._queue_aborted = False
        self._refused = state.queue_full()
        self._wake = asyncio.Event()
        self._version_changes: list[tuple[str, int]] = []
        self._last_version: str | None = None

    # Called by the engine.

    def abort(self) -> None:
        """At once in the waiting queue; a running job ends with its next step, so not while it stands still."""
        if self.phase == "running":
            self._to_finish = True
        else:
            self._queue_aborted = True
        self._wake.set()

    def retract(self) -> None:
        """Back to the waiting queue, keeping the ids."""
        if self.phase == "running":
            self.phase = "retracted"
            self.num_retractions += 1

    def wake(self) -> None:
        """Look again at what holds this job."""
        self._wake.set()

    def version_changed(self, old_version: str) -> None:
        """Ids generated so far belong to `old_version`."""
        if self.ids:
            self._version_changes.append((old_version, len(self.ids)))

    def spans(self) -> list[dict[str, Any]]:
        """Which output ids were sampled by which weight version; one empty span when there are none."""
        spans: list[dict[str, Any]] = []
        last = self._last_version or self.state.weight_version  # the last chunk may leave after the next update
        for version, end in [*self._version_changes, (last, len(self.ids))]:
            start = spans[-1]["end"] if spans else 0
            if spans and end <= start:
                continue
            if spans and spans[-1]["version"] == version:
                spans[-1]["end"] = end
            else:
                spans.append({"version": version, "start": start, "end": end})
        return spans

    async def due(self) -> list[Mark | faults.GarbageChunk | None]:
        """What is to be sent, at least one thing; None is the end. A late reader may get only the newest chunk."""
        due = [await self._marks.get()]
        while not self._marks.empty():
            due.append(self._marks.get_nowait())
        if self.plan.reply.coalesce:
            pairs = zip(due, [*due[1:], None], strict=True)
            due = [mark for mark, newer in pairs if not (isinstance(mark, Mark) and isinstance(newer, Mark))]
        return due

    def final_text(self) -> str | None:
        """The reply's text, None without a tokenizer."""
        if self.end is None or self.text is None:
            return None
        skip = self.call.param("skip_special_tokens", True)
        trim = not self.call.param("no_stop_trim", False)
        return final_text(self.vocabulary, self.ids, self.end.finish_reason, skip_special=skip, trim=trim)

    # The job itself.

    async def run(self) -> None:
        """Generate to the end. `end` is set and `due` ends, also on cancellation (then `end` is None)."""
        try:
            self.end = await self._generate()
            if self.end.cut is not None:
                self._mark()
        finally:
            self._last_version = self.state.weight_version
            self.ended.set()
            self._marks.put_nowait(None)

    async def _generate(self) -> End:
        if self._refused:
            return QUEUE_FULL
        while True:
            self._litter()
            if (end := self._verdict()) is not None:
                return end
            if self._due():
                self._mark()
                await self._rest()
            if (end := await self._turn()) is not None:
                return end
            self._sample()

    def _verdict(self) -> End | None:
        cut = self.plan.cut
        if cut is not None and cut.after == len(self.ids):
            if isinstance(cut, faults.EngineAbort):
                reason = {"message": cut.message, "status_code": cut.status_code, "err_type": cut.err_type}
                return End("abort", {"type": "abort", **reason})
            return End("cut", {}, cut)
        if self._matched is not None:
            return End("finished", {"type": "stop", "matched": self._matched})
        ignore_eos = self.call.param("ignore_eos", False)
        if self.ids and self.ids[-1] in self._stop_ids and not ignore_eos:
            return End("finished", {"type": "stop", "matched": self.ids[-1]})
        budget = self.call.max_new_tokens
        if budget is not None and len(self.ids) >= budget:
            return End("finished", {"type": "length", "length": budget})
        if self.plan.start + len(self.ids) >= len(self.plan.ids):
            return End("finished", self._scripted_finish())
        return None

    def _scripted_finish(self) -> dict[str, Any]:
        finish = self.plan.reply.finish
        if finish == "length":
            return {"type": "length", "length": len(self.ids)}
        matched = self.plan.stop_id if finish == "stop" else finish.removeprefix("stop_str:")
        return {"type": "stop", "matched": matched}

    def _sample(self) -> None:
        index = self.plan.start + len(self.ids)
        token_id = self.plan.ids[index]
        logprob = self.plan.logprobs[index]
        if self._forced is not None:
            token_id, logprob = self._forced, 0.0
        self.ids.append(token_id)
        self.logprobs.append(logprob)
        if self.text is not None:
            self._matched = self.text.push(token_id)
        self.state.changed.fire()

    def _due(self) -> bool:
        unsent = len(self.ids) - self._sent
        # The first id leaves at once, then every `interval`; text that may become a stop string is held back.
        due = unsent >= self._interval or (self._sent == 0 and unsent > 0)
        return due and not (self.text is not None and self.text.ends_in_part_of_a_stop)

    def _mark(self) -> None:
        count = len(self.ids)
        if count > self._sent:
            shown = len(self.text.visible) if self.text is not None else 0
            self._marks.put_nowait(Mark(count, shown, self.state.named_version))
            self._sent = count

    def _litter(self) -> None:
        while self._garbage and self._garbage[0].after <= len(self.ids):
            self._mark()
            self._marks.put_nowait(self._garbage.pop(0))

    async def _rest(self) -> None:
        """Let others run; with a scripted delay, wait it out unless an abort comes."""
        await asyncio.sleep(0)
        until = time.monotonic() + self.plan.reply.delay
        while (left := until - time.monotonic()) > 0 and not (self._to_finish or self._queue_aborted):
            self._wake.clear()
            await wait_any(self._wake, timeout=left)

    async def _turn(self) -> End | None:
        """Wait until the next id may be sampled; the end, if an abort came instead."""
        while True:
            self._wake.clear()
            if self._queue_aborted:
                return QUEUE_ABORTED
            if self._to_finish and not self.state.frozen:
                self._overrun()
                return ABORTED
            held_by = self._held_by()
            if held_by is None:
                return None
            await wait_any(self._wake, *held_by)

    def _held_by(self) -> list[asyncio.Event] | None:
        """The scripted events this job waits for (none: for the engine to wake it), or None if it may go on."""
        if self.state.frozen:
            return []
        reply = self.plan.reply
        if self.phase == "waiting":
            if reply.queue is not None and self.plan.waits_in_queue():
                return [reply.queue]
            if not self.state.has_slot():
                return []
        self.phase = "running"
        if reply.hold is not None and self.plan.waits_at_hold(len(self.ids)):
            return [reply.hold]
        if reply.meter is not None and len(self.ids) >= reply.meter.limit:
            return [reply.meter.raised]
        return None

    def _overrun(self) -> None:
        # SGLang runs one more decode pass before it ends an aborted request, and does not look for a stop in it.
        for _ in range(self.state.options.abort_overrun):
            if self.plan.start + len(self.ids) < len(self.plan.ids):
                self._sample()


def _forced_id(call: GenerateCall) -> int | None:
    """The id that a `logit_bias` of 100 leaves no choice but to sample; smaller ones change nothing here."""
    bias = call.param("logit_bias", {})
    return next((int(index) for index, value in bias.items() if value >= 100), None)
