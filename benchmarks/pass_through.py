"""The least a gateway can do: starlette hands the body to aiohttp and back, nothing is read or kept.

`python -m benchmarks.pass_through PORT UPSTREAM_PORT [WATCH_FILE]` serves it: `/v1/chat/completions` whole,
`/stream` as it comes. `--upstream PORT` serves a server behind it that answers every POST with two kilobytes of
JSON.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path

import aiohttp
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from benchmarks.loop_watch import watching
from sidecar.serve import raise_file_limit, run


def build_pass_through(upstream: str) -> Starlette:
    """An application that forwards to `upstream`'s `/generate`."""
    client: list[aiohttp.ClientSession] = []

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as session:
            client.append(session)
            yield

    async def forward(request: Request) -> Response:
        body = await request.body()
        async with client[0].post(f"{upstream}/generate", data=body) as reply:
            return Response(await reply.read(), media_type="application/json")

    async def stream(request: Request) -> Response:
        body = await request.body()

        async def events() -> AsyncIterator[bytes]:
            async with client[0].post(f"{upstream}/generate", data=body) as reply:
                async for piece in reply.content.iter_any():
                    yield piece

        return StreamingResponse(events(), media_type="text/event-stream")

    routes = [
        Route("/v1/chat/completions", forward, methods=["POST"]),
        Route("/stream", stream, methods=["POST"]),
    ]
    return Starlette(routes=routes, lifespan=lifespan)


def build_upstream() -> Starlette:
    """An application that answers every `/generate` alike."""
    answer = b'{"text": "' + b"x" * 2000 + b'"}'

    async def generate(request: Request) -> Response:
        async for _ in request.stream():
            pass
        return Response(answer, media_type="application/json")

    return Starlette(routes=[Route("/generate", generate, methods=["POST"])])


async def _serve(application: Starlette, port: int, watch: Path | None) -> None:
    config = uvicorn.Config(
        application, host="127.0.0.1", port=port, log_level="warning", http="httptools", access_log=False
    )
    with watching(watch) if watch is not None else nullcontext():
        await uvicorn.Server(config).serve()


def main(arguments: list[str]) -> None:
    """See the module's docstring."""
    raise_file_limit()
    watch = None
    if arguments[0] == "--upstream":
        application, port = build_upstream(), int(arguments[1])
    else:
        application, port = build_pass_through(f"http://127.0.0.1:{arguments[1]}"), int(arguments[0])
        watch = Path(arguments[2]) if len(arguments) > 2 else None
    run(_serve(application, port, watch))  # on the same event loop as the sidecar


if __name__ == "__main__":
    main(sys.argv[1:])
