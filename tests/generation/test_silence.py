"""An engine that says nothing, not even the head of its answer: asked whether it lives, and left if it does not."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from adapters.engines.base import EngineUnreachable
from sidecar.generation.transport import EngineTransport
from tests.fake_sglang import faults
from tests.generation.driver import driving
from tests.support.waiting import LIVENESS, until


@asynccontextmanager
async def hanging() -> AsyncIterator[tuple[str, list[bytes], asyncio.Event]]:
    """A server that takes `/generate` and says nothing, and closes whatever else it is asked; its URL, the request
    lines that came, and whether the hanging call was left."""
    lines: list[bytes] = []
    left = asyncio.Event()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines.append(await reader.readline())
        if lines[-1].startswith(b"POST /generate"):
            await reader.read()
            left.set()
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", lines, left
    finally:
        server.close()


@asynccontextmanager
async def transport_to(url: str) -> AsyncIterator[EngineTransport]:
    transport = EngineTransport(url, None, None, silence=0.05)
    await transport.start()
    try:
        yield transport
    finally:
        await transport.close()


async def test_a_server_that_hangs_before_its_headers_and_does_not_live_is_left() -> None:
    async with hanging() as (url, lines, left), transport_to(url) as transport, asyncio.timeout(LIVENESS):
        with pytest.raises(EngineUnreachable, match="silent"):
            async for _ in transport.generate(b"{}", "s"):
                pass
        await left.wait()
        assert [line.split()[1] for line in lines if b"generate" not in line]


async def test_a_call_that_is_cancelled_before_the_headers_is_left() -> None:
    async with hanging() as (url, lines, left), transport_to(url) as transport, asyncio.timeout(LIVENESS):
        transport._silence = LIVENESS
        call = asyncio.ensure_future(anext(transport.generate(b"{}", "s")))
        await until(lambda: lines, "the call")
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await left.wait()


async def test_a_server_that_is_slow_to_begin_but_lives_is_waited_for(qwen3_dir: Path) -> None:
    async with driving(qwen3_dir, silence=0.05) as driver:
        begin = asyncio.Event()
        expected = driver.says(faults=faults.SlowStart(until=begin))
        running = driver.start()
        await until(lambda: len(driver.engine.recorder.calls_to("/model_info")) > 1, "questions to the engine")
        begin.set()
        driver.assert_pieces(await running, expected)
        assert len(driver.requests) == 1


async def test_the_kernel_looks_whether_the_engine_is_still_there(qwen3_dir: Path) -> None:
    async with driving(qwen3_dir) as driver:
        driver.says(hold=asyncio.Event(), hold_after=3)
        running = driver.start()
        await driver.at_hold()
        connector = driver.controller._transport._streams.connector
        [protocol] = connector._acquired
        connection = protocol.transport.get_extra_info("socket")
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
