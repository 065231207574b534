"""How a call's reply leaves: as one JSON body or as server-sent events, with signs of life while it is silent.

A step is committed before the first byte that completes it. Headers leave with the first token, or after a
heartbeat: an engine error before that is a real status. One task writes; another watches for the agent to go.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import orjson
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from adapters.protocols.chat_replies import Choice, Usage, delta_json, error_body
from sidecar.gateway.exchange import Exchange
from sidecar.gateway.replay import Reader
from sidecar.sessions.errors import refusal_of
from sidecar.sessions.step_run import StepResult
from sidecar.silence import Silence
from sidecar.web.connection import break_off
from sidecar.web.refusals import refusal_response

log = logging.getLogger(__name__)

_KEEPALIVE_AFTER = 4
"""Heartbeat intervals after which a JSON reply begins with white space."""
_ONE_WRITE = 8192
"""Bytes of a stream that are written in one go, about."""


class BrokenReply(Exception):  # noqa: N818 - what the agent sees
    """The reply failed after its headers had left; the connection is closed without an end."""


class StepResponse(Response, ABC):
    """Base of both kinds: watches the agent, and follows the steps no longer when it is gone."""

    def __init__(self, exchange: Exchange) -> None:
        super().__init__()
        self._exchange = exchange
        self._send: Send
        self._gone: asyncio.Task[None]
        self._writer: asyncio.Task[None]
        self._pulse: Silence
        self._patience: Silence
        self._beats = 0
        """Heartbeats that are due."""
        self._sending = False
        self._stuck = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Write the reply; mark the steps delivered if all of it went to a connected agent."""
        pace = self._exchange.pace
        self._exchange.session.readers += 1
        self._send = send
        self._gone = asyncio.create_task(_wait_gone(receive))
        self._writer = asyncio.create_task(self._write(scope, receive))
        self._pulse = Silence(pace.heartbeat, self._beat)
        self._patience = Silence(pace.slow_reader, self._leave_a_stuck_agent)
        try:
            await asyncio.wait({self._gone, self._writer}, return_when=asyncio.FIRST_COMPLETED)
            if not self._writer.done():
                self._writer.cancel()
            await self._end_of(scope)
        finally:
            self._pulse.close()
            self._patience.close()
            for task in (self._gone, self._writer):
                task.cancel()
            for reader in self._exchange.readers:
                reader.close()
            self._exchange.session.readers -= 1

    def _beat(self) -> None:
        self._beats += 1
        self._exchange.wake.set()

    def _leave_a_stuck_agent(self) -> None:
        if self._sending:
            self._stuck = True
            self._writer.cancel()

    async def _end_of(self, scope: Scope) -> None:
        try:
            await self._writer
        except asyncio.CancelledError:
            if self._stuck:
                await self._cut(scope, "the agent takes no bytes; see --slow-reader")
        except BrokenReply as error:
            await self._cut(scope, str(error))

    async def _cut(self, scope: Scope, why: str) -> None:
        exchange = self._exchange
        log.info("reply cut: session_id=%s id=%s: %s", exchange.session.session_id, exchange.head.id, why)
        break_off(scope)  # a response without its end; closing would wait for an agent that reads nothing
        await self._gone

    @abstractmethod
    async def _write(self, scope: Scope, receive: Receive) -> None:
        """Write the whole reply. Raises `BrokenReply`."""

    async def _emit(self, message: Message) -> None:
        """Send; a peer that takes nothing for `slow_reader` seconds counts as gone."""
        self._patience.heard()
        self._sending = True
        await self._send(message)
        self._sending = False

    async def _emit_headers(self, content_type: str, length: int | None = None) -> None:
        headers = {
            **self._exchange.headers,
            "content-type": content_type,
            "cache-control": "no-store",
            "x-accel-buffering": "no",
        }
        if length is not None:
            headers["content-length"] = str(length)
        raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        await self._emit({"type": "http.response.start", "status": 200, "headers": raw})

    async def _emit_body(self, data: bytes) -> None:
        await self._emit({"type": "http.response.body", "body": data, "more_body": True})

    async def _complete(self, results: Sequence[StepResult]) -> None:
        """All bytes were accepted: if the agent is still there, it has the reply. Then end the body."""
        await self._emit_body(b"")  # uvicorn writes first and waits for a slow peer with the next message
        await asyncio.sleep(0)  # let a disconnect that the transport has seen be noticed
        if not self._gone.done():
            for result in results:
                self._exchange.session.mark_delivered(result.step_id)
        await self._emit({"type": "http.response.body", "body": b"", "more_body": False})


async def _wait_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class JsonResponse(StepResponse):
    """The whole reply as one JSON body. A late one is preceded by white space, which is legal JSON and resets
    the read timeout of the agent's library."""

    async def _write(self, scope: Scope, receive: Receive) -> None:
        exchange = self._exchange
        try:
            results, started = await self._results()
        except BrokenReply:
            raise
        except Exception as error:
            await refusal_response(refusal_of(error))(scope, receive, self._send)
            return
        choices = [
            Choice(index, result.reply, result.finish_reason, exchange.token_logprobs(result))
            for index, result in enumerate(results)
        ]
        body = orjson.dumps(exchange.head.completion(choices, _usage(results)))
        if not started:
            await self._emit_headers("application/json", len(body))
        await self._emit_body(body)
        await self._complete(results)

    async def _results(self) -> tuple[list[StepResult], bool]:
        """All committed steps, and whether headers have left already."""
        exchange = self._exchange
        started, beats = False, 0
        while True:
            try:
                results = [result for reader in exchange.readers if (result := reader.result) is not None]
            except Exception as error:
                if started:
                    raise BrokenReply(f"it failed after its headers had left: {error}") from error
                raise
            if len(results) == len(exchange.readers):
                return results, started
            if self._beats == beats:
                await exchange.wait()
                continue
            beats = self._beats
            if exchange.pace.json_keepalive and beats >= _KEEPALIVE_AFTER:
                if not started:
                    await self._emit_headers("application/json")
                    started = True
                await self._emit_body(b" ")


class StreamResponse(StepResponse):
    """Server-sent events: deltas as they become certain, comments while there are none."""

    def __init__(self, exchange: Exchange) -> None:
        super().__init__(exchange)
        self._started = False
        self._opened = [False] * len(exchange.readers)
        self._calls = [0] * len(exchange.readers)
        self._frames = [exchange.head.delta_frame(index) for index in range(len(exchange.readers))]

    async def _write(self, scope: Scope, receive: Receive) -> None:
        try:
            results = await self._stream()
        except Exception as error:
            await self._fail(error, scope, receive)
            return
        await self._emit_body(b"data: [DONE]\n\n")
        await self._complete(results)

    async def _stream(self) -> list[StepResult]:
        exchange = self._exchange
        results: dict[int, StepResult] = {}
        while True:
            for index, reader in enumerate(exchange.readers):
                if index not in results:
                    result = await self._advance(index, reader)
                    if result is not None:
                        results[index] = result
            if len(results) == len(exchange.readers):
                break
            # New tokens are no sign of life as long as they cannot be shown (a call that is not complete).
            if self._beats:
                await self._emit_body(b": heartbeat\n\n")
            else:
                await exchange.wait()
        finished = [results[index] for index in range(len(exchange.readers))]
        if exchange.include_usage:
            await self._emit_body(_event(exchange.head.usage_chunk(_usage(finished))))
        return finished

    async def _advance(self, index: int, reader: Reader) -> StepResult | None:
        """Send what is new of one choice; its result when it is complete."""
        head, result = self._exchange.head, reader.result
        deltas, ready, (before, after) = reader.read(), b"", self._frames[index]
        if not self._opened[index] and (deltas or result is not None or reader.sampled):
            self._opened[index] = True
            ready = _event(head.first_chunk(index))
        for delta in deltas:
            ready += before + delta_json(delta, self._calls[index]) + after
            self._calls[index] += delta.call is not None
            if len(ready) > _ONE_WRITE:  # an agent that reads late has much to read
                await self._emit_body(ready)
                ready = b""
        if result is not None:
            logprobs = self._exchange.token_logprobs(result)
            ready += _event(head.last_chunk(index, result.finish_reason, logprobs))
        if ready:
            await self._emit_body(ready)
        return result

    async def _fail(self, error: Exception, scope: Scope, receive: Receive) -> None:
        refusal = refusal_of(error)
        if not self._started:
            await refusal_response(refusal)(scope, receive, self._send)
            return
        await self._emit_body(_event(error_body(refusal)))
        await self._emit({"type": "http.response.body", "body": b"", "more_body": False})

    async def _emit_body(self, data: bytes) -> None:
        """Headers go out with the first bytes. Whatever is sent is a sign of life."""
        if not self._started:
            self._started = True
            await self._emit_headers("text/event-stream; charset=utf-8")
        self._patience.heard()
        self._sending = True
        await self._send({"type": "http.response.body", "body": data, "more_body": True})
        self._sending = False
        self._pulse.heard()
        self._beats = 0


def _event(payload: dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % orjson.dumps(payload)


def _usage(results: Sequence[StepResult]) -> Usage:
    return Usage(results[0].prompt_tokens, sum(result.completion_tokens for result in results))
