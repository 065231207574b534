"""How a call's reply leaves: as one JSON body or as server-sent events, with signs of life while it is silent.

A step is committed before the first byte that completes it. Headers leave with the first token, or after a
heartbeat: an engine error before that is a real status. One task writes; another watches for the agent to go.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import orjson
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from adapters.protocols.chat_replies import Choice, Head, Usage, error_body
from sidecar.gateway.replay import Reader
from sidecar.sessions.errors import refusal_of
from sidecar.sessions.session import Session
from sidecar.sessions.step_run import StepResult
from sidecar.tito.codec import Codec
from sidecar.web.connection import break_off
from sidecar.web.refusals import refusal_response

log = logging.getLogger(__name__)

_KEEPALIVE_AFTER = 4
"""Heartbeat intervals after which a JSON reply begins with white space."""


class BrokenReply(Exception):  # noqa: N818 - what the agent sees
    """The reply failed after its headers had left; the connection is closed without an end."""


class AgentGone(Exception):  # noqa: N818 - what the agent did
    """The agent does not read its reply any more."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds: between signs of life, and until a blocked reader counts as gone."""

    heartbeat: float
    slow_reader: float
    json_keepalive: bool


@dataclass(frozen=True, slots=True)
class Exchange:
    """One admitted call: its readers (one per choice) and what its reply says besides."""

    session: Session
    readers: Sequence[Reader]
    wake: asyncio.Event
    head: Head
    headers: dict[str, str]
    include_usage: bool
    logprobs: bool
    codec: Codec
    pace: Pace

    def token_logprobs(self, result: StepResult) -> list[tuple[str, float]] | None:
        """`(text, logprob)` of the sampled tokens, if they were asked for. None too for a reply from before a
        restart with another tokenizer: nothing here tells which text such a token is."""
        record = result.record
        if not self.logprobs or record.tokenizer_sha256 != self.codec.sha256:
            return None
        texts = [self.codec.decode([index]) for index in record.output_ids.tolist()]
        return list(zip(texts, record.output_logprobs.tolist(), strict=True))

    async def wait(self, seconds: float) -> None:
        """Until there is something new, or for `seconds`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.wake.wait()
        self.wake.clear()


class StepResponse(Response):
    """Base of both kinds: watches the agent, and follows the steps no longer when it is gone."""

    def __init__(self, exchange: Exchange) -> None:
        super().__init__()
        self._exchange = exchange
        self._send: Send
        self._gone: asyncio.Task[None]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Write the reply; mark the steps delivered if all of it went to a connected agent."""
        self._send = send
        self._gone = asyncio.create_task(_wait_gone(receive))
        writer = asyncio.create_task(self._write(scope, receive))
        try:
            await asyncio.wait({self._gone, writer}, return_when=asyncio.FIRST_COMPLETED)
            if not writer.done():
                writer.cancel()
            await self._end_of(writer, scope)
        finally:
            for task in (self._gone, writer):
                task.cancel()
            for reader in self._exchange.readers:
                reader.close()

    async def _end_of(self, writer: asyncio.Task[None], scope: Scope) -> None:
        try:
            await writer
        except asyncio.CancelledError:
            pass
        except (AgentGone, BrokenReply) as error:
            exchange = self._exchange
            log.info("reply cut: session_id=%s id=%s: %s", exchange.session.session_id, exchange.head.id, error)
            break_off(scope)  # a response without its end; closing would wait for an agent that reads nothing
            await self._gone

    async def _write(self, scope: Scope, receive: Receive) -> None:
        raise NotImplementedError

    async def _emit(self, message: Message) -> None:
        """Send; a peer that takes nothing for `slow_reader` seconds counts as gone."""
        try:
            async with asyncio.timeout(self._exchange.pace.slow_reader):
                await self._send(message)
        except TimeoutError:
            raise AgentGone("the agent takes no bytes; see --slow-reader") from None

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
        except (BrokenReply, AgentGone):
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
        started, beats, next_beat = False, 0, time.monotonic() + exchange.pace.heartbeat
        while True:
            try:
                results = [result for reader in exchange.readers if (result := reader.result) is not None]
            except Exception as error:
                if started:
                    raise BrokenReply(f"it failed after its headers had left: {error}") from error
                raise
            if len(results) == len(exchange.readers):
                return results, started
            remaining = next_beat - time.monotonic()
            if remaining > 0:
                await exchange.wait(remaining)
                continue
            beats, next_beat = beats + 1, next_beat + exchange.pace.heartbeat
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
        self._last_sent = time.monotonic()
        self._opened = [False] * len(exchange.readers)
        self._calls = [0] * len(exchange.readers)

    async def _write(self, scope: Scope, receive: Receive) -> None:
        try:
            results = await self._stream()
        except AgentGone:
            raise
        except Exception as error:
            await self._fail(error, scope, receive)
            return
        await self._event(b"[DONE]")
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
            silence_left = self._last_sent + exchange.pace.heartbeat - time.monotonic()
            if silence_left > 0:
                await exchange.wait(silence_left)
                continue
            await self._start()
            await self._emit_body(b": heartbeat\n\n")
        finished = [results[index] for index in range(len(exchange.readers))]
        if exchange.include_usage:
            await self._json_event(exchange.head.usage_chunk(_usage(finished)))
        return finished

    async def _advance(self, index: int, reader: Reader) -> StepResult | None:
        """Send what is new of one choice; its result when it is complete."""
        result = reader.result
        for delta in reader.read():
            await self._open(index)
            await self._json_event(self._exchange.head.delta_chunk(index, delta, self._calls[index]))
            self._calls[index] += delta.call is not None
        if result is None:
            if reader.sampled:
                await self._open(index)
            return None
        await self._open(index)
        chunk = self._exchange.head.last_chunk(index, result.finish_reason, self._exchange.token_logprobs(result))
        await self._json_event(chunk)
        return result

    async def _fail(self, error: Exception, scope: Scope, receive: Receive) -> None:
        refusal = refusal_of(error)
        if not self._started:
            await refusal_response(refusal)(scope, receive, self._send)
            return
        await self._json_event(error_body(refusal))
        await self._emit({"type": "http.response.body", "body": b"", "more_body": False})

    async def _open(self, index: int) -> None:
        if not self._opened[index]:
            self._opened[index] = True
            await self._start()
            await self._json_event(self._exchange.head.first_chunk(index))

    async def _emit_body(self, data: bytes) -> None:
        await super()._emit_body(data)
        self._last_sent = time.monotonic()

    async def _start(self) -> None:
        if not self._started:
            self._started = True
            await self._emit_headers("text/event-stream; charset=utf-8")

    async def _json_event(self, payload: dict[str, Any]) -> None:
        await self._event(orjson.dumps(payload))

    async def _event(self, data: bytes) -> None:
        await self._emit_body(b"data: " + data + b"\n\n")


def _usage(results: Sequence[StepResult]) -> Usage:
    return Usage(results[0].prompt_tokens, sum(result.completion_tokens for result in results))
