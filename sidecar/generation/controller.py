"""gate -> send -> collect -> (finished | preempted -> gate -> send the rest): one step's way through the engine.

Whoever ends a generation before the model does (a pause, a weight update, a router, a lost connection), it goes
on from the ids it has. Runs as part of the step's task; cancelling that closes the connection, and SGLang aborts.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass

from adapters.engines.base import (
    EngineFailure,
    EngineRequest,
    EngineUnreachable,
    ReportedVersions,
)
from adapters.engines.sglang import ReplyReader, generate_body
from sidecar.generation.engine_parsing import EngineParsing
from sidecar.generation.gate import Gate
from sidecar.generation.generation import Generation
from sidecar.generation.signal import Signal
from sidecar.generation.transport import EngineTransport
from sidecar.tito.reply_text import ReplyText

_FIRST_BACKOFF, _LONGEST_BACKOFF = 0.1, 5.0
_REPEAT_ABORT, _CUT_AFTER = 0.2, 2.0
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
    """Drives generations of all sessions. `active` maps the rids in flight to what cuts their connections."""

    def __init__(self, transport: EngineTransport, gate: Gate, limits: Limits) -> None:
        self._transport = transport
        self._gate = gate
        self._limits = limits
        self.active: dict[str, asyncio.Timeout] = {}
        self.parsing = EngineParsing(transport)
        self.weight_version: str | None = None
        """The version that the engine named last."""
        self._ended = Signal()
        self.incremental: bool | None = None
        """Whether the engine's streams carry deltas; None until it said so."""

    async def run(self, generation: Generation, fresh_text: Callable[[], ReplyText]) -> None:
        """Sample until the model, the budget or a stop string ends the reply; then `generation.finish` is set.

        Raises `Stalled`, or the engine's error if it cannot be retried; the ids sampled so far stay."""
        failures = stalled = 0
        if generation.output_ids:  # its agent left in the middle, and a retry came
            self._prepare_resume(generation, fresh_text)
        while not generation.settle():
            await self._gate.wait_open()
            held = len(generation.output_ids)
            try:
                await self._attempt(generation)
            except (EngineUnreachable, EngineFailure) as error:
                if isinstance(error, EngineFailure) and error.status != 503:
                    raise
                progress = generation.request.resumable and len(generation.output_ids) > held
                failures = 1 if progress else failures + 1
                if failures > self._limits.engine_retries:
                    raise
                if generation.finish is None:
                    self._prepare_resume(generation, fresh_text)
                    await _back_off(failures)
                continue
            failures = 0
            if generation.finish is not None:
                return
            stalled = stalled + 1 if self._gate.open and len(generation.output_ids) == held else 0
            self._prepare_resume(generation, fresh_text)
            if stalled > self._limits.max_stalled_resumes:
                raise Stalled(f"the engine ended the call {stalled} times without a new token")
            if stalled:
                await _back_off(stalled)

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
        first_version: str | None = None
        lifeline = asyncio.timeout(None)
        try:
            body = self._body(rid, generation)
            # leaving the stream early closes its connection, and SGLang aborts the call
            async with lifeline, aclosing(self._transport.generate(body, generation.request.session_id)) as chunks:
                self.active[rid] = lifeline
                async for chunk in chunks:
                    if reader.finish is not None:
                        continue
                    held = len(reader.output_ids)
                    try:
                        reader.read(chunk)
                    finally:  # an error that may be retried comes with ids, too
                        first_version = first_version or reader.weight_version
                        generation.append(reader.output_ids[held:], reader.logprobs[held:])
                    if generation.finish is not None:
                        return  # a stop string of the client's
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
            self.active.pop(rid, None)
            self._ended.notify()
            generation.stamp(start, self._versions(reader, first_version))

    def _versions(self, reader: ReplyReader, first_version: str | None) -> ReportedVersions:
        """Spans if the server gave them. One name is true only if it did not change inside the call."""
        self.weight_version = reader.weight_version or self.weight_version
        if reader.versions.spans:
            return reader.versions
        unchanged = reader.weight_version == first_version
        return ReportedVersions(single=reader.weight_version if unchanged else None)

    def _body(self, rid: str, generation: Generation) -> bytes:
        request = generation.request
        return generate_body(
            EngineRequest(
                rid=rid,
                session_id=request.session_id,
                input_ids_json=generation.input_ids_json(),
                sampling=request.sampling,
                max_new_tokens=generation.budget,
                stop_token_ids=tuple(sorted(request.stop_ids)),
                stream_interval=self._stream_interval(request.max_new_tokens, request.streaming),
            )
        )

    def _stream_interval(self, max_new_tokens: int, streaming: bool) -> int:
        """Tokens per chunk. A cumulative chunk repeats everything, so there are at most 64 (16) of them. Where
        nobody watches, a chunk decides no more than how many ids a lost connection costs."""
        if self.incremental:
            return 1 if streaming else 32
        return max(8, max_new_tokens // (64 if streaming else 16))

    async def abort_active(self, timeout: float) -> tuple[list[str], list[str]]:
        """Abort everything in flight until it has ended. `(ended, failed)` rids; `failed` still ran after `timeout`
        seconds.

        Aborts are repeated: a rid that the engine does not know yet is a silent no-op there. Where the engine
        cannot be asked (a router), or does not react (a call that it holds at a pause of its own is marked as
        aborted and never is, SGLang 0.5.23), the connection is cut, which aborts too."""
        wanted = list(self.active)
        started = now = asyncio.get_running_loop().time()
        while (remaining := self._still_active(wanted)) and (now == started or now < started + timeout):
            asked = await asyncio.gather(*(self._transport.abort(rid) for rid in remaining))
            for rid, accepted in zip(remaining, asked, strict=True):
                if rid in self.active and not (accepted and now < started + _CUT_AFTER):
                    self.active[rid].reschedule(now)
            await self._wait_ended(wanted, min(_REPEAT_ABORT, max(0.0, started + timeout - now)))
            now = asyncio.get_running_loop().time()
        return [rid for rid in wanted if rid not in remaining], remaining

    def _still_active(self, rids: list[str]) -> list[str]:
        return [rid for rid in rids if rid in self.active]

    async def _wait_ended(self, rids: list[str], seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._still_active(rids):
                    await self._ended.wait()


async def _back_off(attempt: int) -> None:
    longest = min(_LONGEST_BACKOFF, _FIRST_BACKOFF * 2 ** (attempt - 1))
    await asyncio.sleep(longest * random.uniform(0.5, 1.0))
