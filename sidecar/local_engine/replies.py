"""The two ways a generation leaves: one JSON body, or server-sent events.

Promise: the first tokens leave as soon as they are there; a client that goes away ends its generation at once,
in both ways alike. Concurrency: one reply per request, on the server's event loop; a slow client makes chunks
larger, never the engine slower.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import orjson
from starlette.types import Receive, Scope, Send

from sidecar.local_engine import wire
from sidecar.local_engine.engine import LocalEngine
from sidecar.local_engine.generation import Generation

_SSE = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
_JSON = [(b"content-type", b"application/json")]


class GenerationReply:
    """An ASGI response that watches for the client's disconnect while the engine works."""

    def __init__(self, engine: LocalEngine, generation: Generation) -> None:
        self._engine = engine
        self._generation = generation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watcher = asyncio.create_task(self._abort_on_disconnect(receive))
        try:
            if self._generation.request.stream:
                await _send_events(send, _chunks(self._generation))
            else:
                await self._generation.wait_end()
                await self._send_json(send)
        finally:
            watcher.cancel()
            self._engine.abort_generation(self._generation)  # only if sending failed: else it has ended

    async def _abort_on_disconnect(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._engine.abort_generation(self._generation)

    async def _send_json(self, send: Send) -> None:
        finish = self._generation.finish or {}
        status = finish.get("status_code") or 200
        body = wire.reply(self._generation) if status == 200 else wire.http_error(status, finish["message"])
        await send({"type": "http.response.start", "status": status, "headers": _JSON})
        await send({"type": "http.response.body", "body": orjson.dumps(body)})


class RefusedStream:
    """An ASGI response for a streaming request that was refused: HTTP 200 with one error event, as SGLang."""

    def __init__(self, event: dict[str, Any]) -> None:
        self._event = event

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def events() -> AsyncIterator[dict[str, Any]]:
            yield self._event

        await _send_events(send, events())


async def _chunks(generation: Generation) -> AsyncIterator[dict[str, Any]]:
    """Yield one chunk at the first token, then one every `stream_interval`, then one that ends it."""
    sent = 0
    wanted = 1
    while True:
        await generation.wait_for(wanted)
        ended = generation.finish is not None
        chunk = wire.reply(generation, since=sent)
        sent = len(generation.output_ids)
        wanted = sent + generation.request.params.stream_interval
        yield chunk
        if ended:
            return


async def _send_events(send: Send, events: AsyncIterator[dict[str, Any]]) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": _SSE})
    async for event in events:
        body = b"data: " + orjson.dumps(event) + b"\n\n"
        await send({"type": "http.response.body", "body": body, "more_body": True})
    await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})
