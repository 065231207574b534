"""gate -> send -> collect -> (finished | preempted -> gate -> send the rest): one step's way through the engine.

Whoever ends a generation before the model does (a pause, a weight update, a router, a lost connection), it goes
on from the ids it has. Runs as part of the step's task; cancelling that closes the connection, and SGLang aborts.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any

from adapters.engines.base import (
    EngineError,
    EngineFailure,
    EngineRequest,
    EngineUnreachable,
    ReportedVersions,
)
from adapters.engines.sglang import ReplyReader, generate_body
from sidecar.generation.active import ActiveCalls
from sidecar.generation.call_versions import CallVersions
from sidecar.generation.engine_parsing import EngineParsing
from sidecar.generation.gate import Gate
from sidecar.generation.generation import Generation
from sidecar.generation.transport import EngineTransport
from sidecar.tito.reply_text import ReplyText

_FIRST_BACKOFF, _LONGEST_BACKOFF = 0.1, 5.0
_LAST_CHUNK = 5.0
"""Seconds that a call which was aborted for its routed experts may take to send them."""
_END_SECONDS = 0.2
"""How long the end of a stream may take to come after its last ids."""


class Stalled(Exception):  # noqa: N818 - a state of the engine
    """The engine ended the call again and again without a new token, while no pause of ours was in force."""


@dataclass(frozen=True, slots=True)
class Limits:
    """`engine_retries`: failed engine calls in a row; `max_stalled_resumes`: preemptions without a new token."""

    engine_retries: int = 3
    max_stalled_resumes: int = 20


class Controller:
    """Drives generations of all sessions. `active` are the engine calls in flight.
    Without `record_versions` every sampled token's version is "unknown"."""

    def __init__(
        self, transport: EngineTransport, gate: Gate, limits: Limits, *, record_versions: bool = True
    ) -> None:
        self._transport = transport
        self._gate = gate
        self._limits = limits
        self._record_versions = record_versions
        self.active = ActiveCalls(transport.workers)
        self.parsing = EngineParsing(transport.workers)
        self.weight_version: str | None = None
        """The version that the engine named last."""
        self.incremental: bool | None = None
        """Whether the engine's streams carry deltas; None until it said so."""

    async def run(
        self,
        generation: Generation,
        fresh_text: Callable[[], ReplyText],
        check_version: Callable[[str | None], None] = lambda version: None,
    ) -> None:
        """Sample until the model, the budget or a stop string ends the reply; then `generation.finish` is set.

        Before each engine call `check_version` is given the version that the engine named last. Raises what it
        raises, `Stalled`, or the engine's error if it cannot be retried; the ids sampled so far stay."""
        failures = stalled = 0
        if generation.output_ids:  # its agent left in the middle, and a retry came
            self._prepare_resume(generation, fresh_text)
        while not self._complete(generation, fresh_text):
            await generation.settle_rows()
            # from here to the request nothing is awaited: a pause finds each call at the gate or in flight
            await self._gate.wait_open(generation.request.scopes)
            check_version(self.weight_version)
            held = len(generation.output_ids)
            try:
                await self._attempt(generation)
            except (EngineUnreachable, EngineFailure) as error:
                if isinstance(error, EngineFailure) and error.status != 503:
                    raise
                if self._gate.open_for(generation.request.scopes):  # else a pause may well have caused it
                    progress = generation.request.resumable and len(generation.output_ids) > held
                    failures = 1 if progress else failures + 1
                if failures > self._limits.engine_retries:
                    raise
                if generation.finish is None:
                    self._prepare_resume(generation, fresh_text)
                if generation.finish is None and self._gate.open_for(generation.request.scopes):
                    await _back_off(failures)
                continue
            failures = 0
            if generation.finish is not None:
                continue
            stalled = (
                stalled + 1
                if self._gate.open_for(generation.request.scopes) and len(generation.output_ids) == held
                else 0
            )
            self._prepare_resume(generation, fresh_text)
            if stalled > self._limits.max_stalled_resumes:
                raise Stalled(f"the engine ended the call {stalled} times without a new token")
            if stalled:
                await _back_off(stalled)

    @staticmethod
    def _complete(generation: Generation, fresh_text: Callable[[], ReplyText]) -> bool:
        if not generation.settle():
            return False
        if generation.must_restart:
            generation.preemptions += 1
            generation.restart(fresh_text())
            return False
        return True

    @staticmethod
    def _prepare_resume(generation: Generation, fresh_text: Callable[[], ReplyText]) -> None:
        """What was sampled stays, unless the sampler cannot go on from it and it is not complete by itself."""
        if generation.settle():
            return
        generation.preemptions += 1
        if not generation.request.resumable:
            generation.restart(fresh_text())

    async def _attempt(self, generation: Generation) -> None:
        """One engine call. Returns with `finish` still None if the engine was interrupted."""
        rid = uuid.uuid4().hex  # SGLang aborts by prefix and kills a rid that is used again within 2 s
        start = len(generation.output_ids)
        reader = ReplyReader()
        versions = CallVersions(self.weight_version)
        lifeline = asyncio.timeout(None)
        try:
            body = self._body(rid, generation)
            # leaving the stream early closes its connection, and SGLang aborts the call
            async with lifeline, aclosing(self._transport.generate(body, generation.request.session_id)) as chunks:
                self.active.add(rid, generation.request.scopes, lifeline)
                async for chunk in chunks:
                    if reader.finish is not None:
                        continue
                    held = len(reader.output_ids)
                    try:
                        reader.read(chunk)
                    finally:  # an error that may be retried comes with ids, too
                        versions.read(reader)
                        self.weight_version = reader.weight_version or self.weight_version
                        generation.append(reader.output_ids[held:], reader.logprobs[held:])
                    if generation.finish is not None:  # a stop string of the client's
                        if generation.rows is not None and reader.finish is None:
                            await self._read_on(rid, chunks, reader)
                        return
                    if reader.finish is not None:
                        if reader.finish.kind != "abort":
                            generation.finish = reader.finish
                        # read on to the stream's end: then its connection serves the next call, too
                        lifeline.reschedule(asyncio.get_running_loop().time() + _END_SECONDS)
            if reader.finish is None:
                raise EngineUnreachable("the engine ended its stream without a finish reason")
        except EngineUnreachable:
            if reader.finish is None:
                raise
        except TimeoutError:
            if not lifeline.expired():
                raise
        finally:
            self.active.remove(rid)
            reported = versions.reported if self._record_versions else ReportedVersions()
            generation.stamp(start, reported, changed=versions.changed)
            generation.rows_came(reader.routed, start)

    async def _read_on(self, rid: str, chunks: AsyncIterator[dict[str, Any]], reader: ReplyReader) -> None:
        """To the last chunk, with which the routed experts come, of a call whose ids are complete without it."""
        with suppress(EngineError, TimeoutError):
            async with asyncio.timeout(_LAST_CHUNK):
                await self._transport.workers.abort(rid)
                async for chunk in chunks:
                    reader.read(chunk)
                    if reader.finish is not None:
                        return

    def _body(self, rid: str, generation: Generation) -> bytes:
        request = generation.request
        return generate_body(
            EngineRequest(
                rid=rid,
                session_id=request.session_id,
                input_ids_json=generation.input_ids_json(),
                sampling=generation.sampling,
                max_new_tokens=generation.budget,
                stop_token_ids=tuple(sorted(request.stop_ids)),
                stream_interval=self._stream_interval(request.max_new_tokens, request.streaming),
                routed_experts_start=generation.rows.end if generation.rows is not None else None,
            )
        )

    def _stream_interval(self, max_new_tokens: int, streaming: bool) -> int:
        """Tokens per chunk. A cumulative chunk repeats everything, so there are at most 64 (16) of them."""
        if self.incremental:
            return 1 if streaming else 8
        return max(8, max_new_tokens // (64 if streaming else 16))


async def _back_off(attempt: int) -> None:
    longest = min(_LONGEST_BACKOFF, _FIRST_BACKOFF * 2 ** (attempt - 1))
    await asyncio.sleep(longest * random.uniform(0.5, 1.0))
