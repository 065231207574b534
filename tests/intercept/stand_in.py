"""A stand-in for the gateway: starlette on uvicorn, port 0, that shows what reached it and obeys the test's gates.

Promise: every request is recorded before it is answered; a gated answer goes on only when the test opens ``gate``.
Concurrency: lives on the test's own event loop; one instance per test.
"""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route


class StandInGateway:
    """Records requests; answers chat completions whole, streamed behind a gate, or as slow JSON."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.bodies: list[bytes] = []
        self.gate = asyncio.Event()
        self.disconnected = asyncio.Event()
        self.flooded = 0
        self.port = 0

    @contextlib.asynccontextmanager
    async def serve(self) -> AsyncIterator["StandInGateway"]:
        """Listen on a free port of 127.0.0.1 until the block ends."""
        # With the protocol named: asyncio switches Nagle off only for sockets that say they are TCP, and
        # socket.create_server leaves it 0, which costs every kept-alive answer a delayed ACK (40 ms).
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.bind(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        app = Starlette(
            routes=[
                Route("/v1/chat/completions", self.chat, methods=["POST"]),
                Route("/slow-json", self.slow_json),
                Route("/endless", self.endless),
                Route("/flood", self.flood),
                Route("/{rest:path}", self.echo, methods=["GET", "POST"]),
            ]
        )
        config = uvicorn.Config(app, log_level="warning", lifespan="off", timeout_keep_alive=3600)
        server = uvicorn.Server(config)
        task = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield self
        finally:
            server.should_exit = server.force_exit = True
            # uvicorn waits for open connections without end; a test that has failed may have left one.
            _, waiting = await asyncio.wait({task}, timeout=5)
            for left in waiting:
                left.cancel()

    async def _record(self, request: Request) -> bytes:
        self.requests.append(request)
        self.bodies.append(await request.body())
        return self.bodies[-1]

    async def echo(self, request: Request) -> Response:
        """Answer with what was asked."""
        await self._record(request)
        return JSONResponse({"path": request.url.path})

    async def chat(self, request: Request) -> Response:
        """Answer as an OpenAI server would; a stream stops after its first event until the gate opens."""
        wish = json.loads(await self._record(request))
        if not wish.get("stream"):
            message = {"role": "assistant", "content": "whole"}
            choice = {"index": 0, "finish_reason": "stop", "message": message}
            return JSONResponse(_completion("chat.completion", choice))
        return StreamingResponse(self._events(), media_type="text/event-stream")

    async def _events(self) -> AsyncIterator[bytes]:
        yield _event("first")
        await self.gate.wait()
        yield _event("second")
        yield _event("last", finish_reason="stop")
        yield b"data: [DONE]\n\n"

    async def slow_json(self, request: Request) -> Response:
        """Answer chunked JSON behind spaces, as a gateway does that keeps a waiting client alive."""
        await self._record(request)
        return StreamingResponse(self._padded(), media_type="application/json")

    async def _padded(self) -> AsyncIterator[bytes]:
        yield b" "
        await self.gate.wait()
        yield b" "
        yield b'{"answer": 42}'

    async def endless(self, request: Request) -> Response:
        """Send one event, then nothing, until the client is gone."""
        await self._record(request)
        return StreamingResponse(self._silence(), media_type="text/event-stream")

    async def flood(self, request: Request) -> Response:
        """Send as much as is taken; ``flooded`` counts it in bytes."""
        await self._record(request)
        return StreamingResponse(self._flood(), media_type="text/event-stream")

    async def _flood(self) -> AsyncIterator[bytes]:
        try:
            for _ in range(4096):
                yield b"x" * 2**16
                self.flooded += 2**16
        finally:
            self.disconnected.set()

    async def _silence(self) -> AsyncIterator[bytes]:
        yield b": here\n\n"
        try:
            await asyncio.Event().wait()
        finally:
            self.disconnected.set()


def _completion(kind: str, choice: dict[str, Any]) -> dict[str, Any]:
    return {"id": "c1", "object": kind, "created": 1, "model": "m", "choices": [choice]}


def _event(text: str, finish_reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish_reason}
    return b"data: " + json.dumps(_completion("chat.completion.chunk", choice)).encode() + b"\n\n"
