"""The least a gateway can do: starlette hands the body to aiohttp and back, nothing is read or kept.

`python -m benchmarks.pass_through PORT UPSTREAM_PORT` serves it; `--upstream PORT` serves a server behind it that
answers every POST with two kilobytes of JSON.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route


def build_pass_through(upstream: str) -> Starlette:
    """An application that forwards `/v1/chat/completions` to `upstream`."""
    client: list[aiohttp.ClientSession] = []

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with aiohttp.ClientSession() as session:
            client.append(session)
            yield

    async def forward(request: Request) -> Response:
        body = await request.body()
        async with client[0].post(f"{upstream}/generate", data=body) as reply:
            return Response(await reply.read(), media_type="application/json")

    return Starlette(routes=[Route("/v1/chat/completions", forward, methods=["POST"])], lifespan=lifespan)


def build_upstream() -> Starlette:
    """An application that answers every `/generate` alike."""
    answer = b'{"text": "' + b"x" * 2000 + b'"}'

    async def generate(request: Request) -> Response:
        async for _ in request.stream():
            pass
        return Response(answer, media_type="application/json")

    return Starlette(routes=[Route("/generate", generate, methods=["POST"])])


def main(arguments: list[str]) -> None:
    """See the module's docstring."""
    if arguments[0] == "--upstream":
        application, port = build_upstream(), int(arguments[1])
    else:
        application, port = build_pass_through(f"http://127.0.0.1:{arguments[1]}"), int(arguments[0])
    uvicorn.run(application, host="127.0.0.1", port=port, log_level="warning", http="httptools")


if __name__ == "__main__":
    main(sys.argv[1:])
