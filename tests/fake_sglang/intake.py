"""The books of the stand-in: which requests are admitted, which reply each gets, and how each ends.

Promise: a request takes a reply only when it is admitted, and a reply whose generation was interrupted stays
available for the request that goes on with it. Concurrency: one event loop; every method runs to its end
without waiting.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from tests.fake_sglang.continuation import Interrupted, Ledger
from tests.fake_sglang.contract import GenerateCall
from tests.fake_sglang.faults import Fault
from tests.fake_sglang.job import Job
from tests.fake_sglang.plan import Plan, default_reply, make_plan
from tests.fake_sglang.recorder import ROUTING_KEY, RecordedCall, RecordedRequest
from tests.fake_sglang.script import Reply, ScriptError
from tests.fake_sglang.state import EngineState, Entry
from tests.fake_sglang.wire import RefusalError

if TYPE_CHECKING:
    from tests.fake_sglang.server import FakeSGLang

logger = logging.getLogger(__name__)


class Intake:
    """Belongs to one `FakeSGLang`."""

    def __init__(self, engine: "FakeSGLang") -> None:
        self.engine = engine
        self.one_shots: deque[Fault] = deque()
        self.active: dict[RecordedRequest, Interrupted] = {}
        self._superseded: set[RecordedRequest] = set()
        self._ledger = Ledger()
        self._tasks: set[asyncio.Task[None]] = set()
        self._timers: set[asyncio.TimerHandle] = set()

    # Arrival.

    def record(self, call: GenerateCall, http: RecordedCall) -> RecordedRequest:
        """Write a request down."""
        engine = self.engine
        http.body = call.body
        ids = call.input_ids
        if ids is None and call.text is not None and engine.vocabulary.tokenizer is not None:
            ids = engine.vocabulary.encode(call.text)
        record = RecordedRequest(
            order=http.order,
            rid=call.rid,
            session=http.headers.get(ROUTING_KEY),
            input_ids=ids or [],
            sampling_params=call.sampling_params,
            headers=http.headers,
            stream=call.stream,
            return_logprob=call.return_logprob,
            body=call.body,
        )
        engine.requests.append(record)
        engine.changed.fire()
        return record

    def register(self, record: RecordedRequest, call: GenerateCall) -> Entry:
        """Admit a request, or raise `RefusalError` with SGLang's words."""
        entries = self.engine.state.entries
        if call.text is None and call.input_ids is None:
            raise RefusalError.value("Either text, input_ids or input_embeds should be provided.")
        if call.input_ids is None and self.engine.vocabulary.tokenizer is None:
            raise RefusalError.value(
                "a server with skip_tokenizer_init=True cannot accept text prompts; send input_ids"
            )
        if not record.input_ids:
            raise RefusalError.value("input_ids cannot be empty.")
        if record.rid in entries:
            raise RefusalError.value(f"Duplicate request ID detected: {record.rid}")
        _check_length(
            len(record.input_ids), call.sampling_params.get("max_new_tokens"), self.engine.options.context_length
        )
        _check_rows(call.body, len(record.input_ids))
        entries[record.rid] = Entry(record)
        return entries[record.rid]

    def plan(self, record: RecordedRequest, call: GenerateCall) -> Plan:
        """The reply of an admitted request; `ScriptError` if what the test scripted is impossible."""
        engine = self.engine
        extra = [self.one_shots.popleft()] if self.one_shots else []
        try:
            plan = self._continued(record, extra) or make_plan(
                self._next_reply(record), record.input_ids, call.stop_token_ids, engine.vocabulary, extra
            )
        except ScriptError as error:
            logger.exception("request %s meets an impossible script", record.rid)
            engine.script_errors.append(error)
            raise
        self.active[record] = Interrupted(record, plan)
        return plan

    def _continued(self, record: RecordedRequest, extra: list[Fault]) -> Plan | None:
        if not self.engine.continue_aborted:
            return None
        found = self._ledger.take(record, self.active.values())
        if found is None:
            return None
        interrupted, known = found
        # Still in flight as far as the server knows; when its end is noticed, nothing is left to continue.
        if interrupted.record in self.active:
            self._superseded.add(interrupted.record)
        record.continues = interrupted.record
        return interrupted.plan.resumed(known, len(interrupted.record.output_ids), extra)

    def _next_reply(self, record: RecordedRequest) -> Reply:
        engine = self.engine
        if engine.replies:
            return engine.replies.popleft()
        if engine.script is not None:
            return engine.script(record)
        return default_reply(record.input_ids, engine.vocabulary)

    # Generation.

    def dispatch(self, entry: Entry, call: GenerateCall, plan: Plan, state: EngineState) -> Job:
        """Hand a request to the scheduler."""
        job = entry.job = Job(entry.record, call, plan, state)
        state.add_job(job)
        self.spawn(self._run(entry, job, state))
        return job

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `work` to its end, whoever waits for it; a process that goes down takes it along."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _run(self, entry: Entry, job: Job, state: EngineState) -> None:
        try:
            await job.run()
        finally:
            if job.end is not None:
                entry.record.finish_reason = job.end.finish_reason or None
            entry.record.weight_versions = job.spans()
            self.forget(entry, state)
            state.remove_job(job)

    # Endings.

    def settle(self, record: RecordedRequest, outcome: str, *, error: str | None = None) -> None:
        """Write down how a request ended; the first outcome counts."""
        if record.done:
            return
        record.outcome, record.error = outcome, error
        interrupted = self.active.pop(record, None)
        if interrupted is not None and record.interrupted and record not in self._superseded:
            self._ledger.add(interrupted)
        self._superseded.discard(record)
        self.engine.changed.fire()

    def forget(self, entry: Entry, state: EngineState) -> None:
        """The server no longer knows this rid."""
        if state.entries.get(entry.record.rid) is entry:
            del state.entries[entry.record.rid]

    def after_stream(self, rid: str, state: EngineState) -> None:
        """A finished stream aborts whatever runs under its rid two seconds later (`create_abort_task`)."""
        self.later(self.engine.options.timings.rid_reuse, lambda: state.abort(rid))

    def later(self, delay: float, action: Callable[[], None]) -> None:
        """Run `action` after `delay` seconds unless the engine goes down first."""

        def act() -> None:
            self._timers.discard(timer)
            action()

        timer = asyncio.get_running_loop().call_later(delay, act)
        self._timers.add(timer)

    def crash(self, record: RecordedRequest) -> None:
        """An id without an embedding row kills the process."""
        logger.error("request %s holds an id outside the vocabulary: the engine dies", record.rid)
        self.settle(record, "lost", error="the engine crashed")
        self.engine.crashed = True
        self.spawn(self.engine.down())

    def lose_all(self) -> None:
        """The process is gone: its requests are lost, its jobs end, its timers never fire."""
        for record in list(self.active):
            self.settle(record, "lost", error="the engine went down")
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        for task in self._tasks - {asyncio.current_task()}:
            task.cancel()

    async def close(self) -> None:
        """Wait until all jobs have ended (after `lose_all`)."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def forget_scripts(self) -> None:
        """Drop one-shot faults and interrupted replies."""
        self.one_shots.clear()
        self._ledger.clear()


def _check_rows(body: dict[str, Any], tokens: int) -> None:
    # SGLang says this through its scheduler, as an abort with status 400; a client sees the same words.
    start = body.get("routed_experts_start_len") or 0
    if body.get("return_routed_experts") and not 0 <= start <= tokens:
        raise RefusalError.value(f"routed_experts_start_len={start} is not within the {tokens} input tokens.")


def _check_length(tokens: int, max_new_tokens: int | None, limit: int) -> None:
    if tokens >= limit:
        raise RefusalError.value(
            f"The input ({tokens} tokens) is longer than the model's context length ({limit} tokens)."
        )
    if max_new_tokens is not None and tokens + max_new_tokens > limit:
        raise RefusalError.value(
            f"Requested token count exceeds the model's maximum context length of {limit} tokens. "
            f"You requested a total of {tokens + max_new_tokens} tokens: {tokens} tokens from the input "
            f"messages and {max_new_tokens} tokens for the completion. Please reduce the number of tokens "
            "in the input messages or the completion to fit within the limit."
        )
