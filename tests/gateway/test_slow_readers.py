"""Agents that read slowly or not at all: they hold up neither a pause nor a finalize, cost bounded memory, and
count as gone after `--slow-reader` seconds, connection included.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fake_sglang import FakeSGLang, Reply
from tests.intercept.wire import Wire
from tests.support.chat import ask, until_states
from tests.support.intercepted import INTERCEPTED
from tests.support.raw_agent import LONG, agent_of, connections, read_until, small_buffers
from tests.support.running import Running, engine_for, running_sidecar
from tests.support.waiting import until

BOTH_WAYS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
HIGH_WATER = 64 * 1024
"""Bytes that uvicorn lets wait for a peer before it holds the writer."""
ONE_WRITE = 16 * 1024
ONE_READ = 256 * 1024
"""What uvloop reads at a time."""


@asynccontextmanager
async def in_front_of(qwen3_dir: Path, state_dir: Path, **settings: Any) -> AsyncIterator[Running]:
    """A sidecar with small socket buffers before an incremental engine."""
    async with (
        engine_for(qwen3_dir, incremental=True) as engine,
        running_sidecar(engine, state_dir, **settings) as running,
    ):
        small_buffers(running)
        yield running


def endless(engine: FakeSGLang, times: int = 1) -> None:
    """Let every reply be `times` as long as a long one, and never end."""
    never = asyncio.Event()
    engine.script = lambda _: Reply(text=LONG * times, chunk_tokens=1, hold=never, hold_after=3900 * times)


@BOTH_WAYS
async def test_an_agent_that_takes_no_bytes_counts_as_gone_and_its_connection_is_closed(
    qwen3_dir: Path, tmp_path: Path, stream: bool
) -> None:
    async with in_front_of(qwen3_dir, tmp_path, slow_reader=0.3) as running:
        if stream:
            endless(running.engine)
        else:
            running.engine.replies.append(Reply(text=LONG))
        async with agent_of(running, "s", ask(stream=stream)):
            [request] = await running.engine.wait_requests(1)
            await running.engine.wait_until(lambda: request.done)
            [step] = (await until_states(running, "s", "detached" if stream else "committed"))["steps"]
            assert step["delivered"] is False
            await until(lambda: not connections(running), "an end of the connection that nobody reads")


async def test_a_whole_reply_that_its_agent_does_not_read_is_not_delivered(qwen3_dir: Path, tmp_path: Path) -> None:
    async with in_front_of(qwen3_dir, tmp_path, slow_reader=0.3) as running:
        running.engine.replies.append(Reply(text=LONG))
        async with agent_of(running, "s", ask()):
            await until(lambda: connections(running), "the agent's connection")
            await until(lambda: not connections(running), "an end of the connection that nobody reads")
        [segment] = await running.segments("s")
        [untrainable] = segment["extra_info"]["untrainable"]
        assert untrainable["reason"] == "undelivered"
        assert not any(segment["full_loss_mask"])


@BOTH_WAYS
async def test_a_late_reader_gets_the_whole_reply_and_it_trains(
    qwen3_dir: Path, tmp_path: Path, stream: bool
) -> None:
    async with in_front_of(qwen3_dir, tmp_path) as running:
        running.engine.replies.append(Reply(text=LONG, chunk_tokens=1))
        async with agent_of(running, "s", ask(stream=stream)) as agent:
            [step] = (await until_states(running, "s", "committed"))["steps"]
            assert step["delivered"] is False
            received = await read_until(agent, b"[DONE]" if stream else b'"total_tokens"')
            assert len(received) > len(LONG)
            await until(lambda: delivered(running), "delivery")
        [segment] = await running.segments("s")
        assert sum(segment["full_loss_mask"]) == len(running.engine.requests[0].output_ids)


async def delivered(running: Running) -> bool:
    [step] = (await running.view("s"))["steps"]
    return bool(step["delivered"])


@BOTH_WAYS
async def test_twenty_agents_that_read_nothing_hold_up_neither_a_pause_nor_a_finalize(
    qwen3_dir: Path, tmp_path: Path, stream: bool
) -> None:
    async with in_front_of(qwen3_dir, tmp_path) as running, AsyncExitStack() as agents:
        engine = running.engine
        endless(engine)
        sessions = [f"s{n}" for n in range(20)]
        for session in sessions:
            await agents.enter_async_context(agent_of(running, session, ask(stream=stream)))
        for request in await engine.wait_requests(20):
            await engine.wait_tokens(request, 10)
        paused = await running.post("/v1/rollout/pause", {"timeout_seconds": 20})
        assert paused["quiesced"]
        assert not paused["abort_failed_request_ids"]
        await running.post("/v1/rollout/resume", {"pause_id": paused["pause_id"]})
        await engine.wait_requests(40)
        finalizing = [running.finalize(session, timeout_seconds=0) for session in sessions]
        for finalized in await asyncio.gather(*finalizing):
            assert len(finalized["aborted_step_ids"]) == 1


async def test_what_waits_for_an_agent_that_reads_nothing_is_bounded(qwen3_dir: Path, tmp_path: Path) -> None:
    async with in_front_of(qwen3_dir, tmp_path) as running:
        running.engine.replies.append(Reply(text=LONG, chunk_tokens=1))
        async with agent_of(running, "s", ask(stream=True)):
            await until_states(running, "s", "committed")  # the engine has not waited for its reader
            [connection] = connections(running)
            await until(lambda: connection.flow.write_paused, "a writer that is held")
            await asyncio.sleep(0.05)
            assert connection.transport.get_write_buffer_size() <= HIGH_WATER + ONE_WRITE


@BOTH_WAYS
async def test_an_intercepted_agent_that_reads_nothing_counts_as_gone_and_holds_up_no_pause(
    qwen3_dir: Path, tmp_path: Path, stream: bool
) -> None:
    async with in_front_of(qwen3_dir, tmp_path, slow_reader=1, **INTERCEPTED) as running:
        endless(running.engine, 4)  # the kernel takes two megabytes on the way
        wire = await silent_intercepted_agent(running, ask(stream=stream))
        [request] = await running.engine.wait_requests(1)
        await running.engine.wait_tokens(request, 10)
        paused = await running.post("/v1/rollout/pause", {"timeout_seconds": 20})
        assert paused["quiesced"]
        await running.post("/v1/rollout/resume", {"pause_id": paused["pause_id"]})
        if stream:  # the other kind has nothing to write yet, and goes on
            await until_states(running, "s", "detached")
            await until(lambda: not connections(running), "an end of the connection that nobody reads")
            assert waiting_in_the_proxy(running) <= 3 * HIGH_WATER + ONE_READ
        assert (await running.finalize("s", timeout_seconds=0))["aborted_step_ids"]
        wire.close()


def proxy_of(running: Running) -> Any:
    """mitmproxy's listener."""
    interception = running.sidecar.interception
    assert interception is not None
    assert interception._interceptor is not None
    assert interception._interceptor._embedded is not None
    return interception._interceptor._embedded.listener


def waiting_in_the_proxy(running: Running) -> int:
    """Bytes that the interceptor holds, read and not yet written."""
    ends = [end for handler in proxy_of(running).connections.values() for end in handler.transports.values()]
    written = sum(end.writer.transport.get_write_buffer_size() for end in ends if end.writer is not None)
    return int(written + sum(len(end.reader._buffer) for end in ends if end.reader is not None))


async def silent_intercepted_agent(running: Running, body: dict[str, object]) -> Wire:
    """A connection through the interceptor that has sent its call, and reads nothing of the reply."""
    interception = running.sidecar.interception
    assert interception is not None
    for server in proxy_of(running).servers:
        for listening in server._servers[0].sockets:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    wire = await Wire.tunnel(interception.addresses[0][1], "api.openai.com:443", trust=interception.bundle)
    data = json.dumps(body).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: api.openai.com\r\nX-Session-Id: s\r\n"
    await wire.send(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    return wire
