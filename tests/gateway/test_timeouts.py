"""No timeout of ours ends a call that lives, or a connection that waits for the next one; and until the fourth
heartbeat a JSON reply's failure still has its status.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.fake_sglang import FakeSGLang, Reply, faults
from tests.support.chat import Held, ask, completion, until_states
from tests.support.intercepted import HOST, INTERCEPTED, behind_proxy
from tests.support.raw_agent import connections
from tests.support.running import Running, running_sidecar

WEEK = 7 * 24 * 3600
UVICORNS_OWN = 5
"""Seconds after which uvicorn by default closes a connection without a request."""


async def test_a_connection_that_waits_for_its_next_call_is_kept(engine: FakeSGLang, tmp_path: Path) -> None:
    async with running_sidecar(engine, tmp_path, **INTERCEPTED) as running, behind_proxy(running) as proxied:
        for _ in range(2):
            engine.replies.extend([Reply(text="Hi.")] * 2)
            completion(await running.chat("direct", ask()))
            headers = {"X-Session-Id": "proxied"}
            completion(await proxied.post(f"{HOST}/v1/chat/completions", json=ask(), headers=headers))
            known = set(connections(running))
            await asyncio.sleep(UVICORNS_OWN + 1)  # the idle time is what is tested
            assert set(connections(running)) == known
        assert len(known) == 2


async def test_neither_the_proxy_nor_the_engines_client_has_a_limit_for_a_call(
    engine: FakeSGLang, tmp_path: Path
) -> None:
    async with running_sidecar(engine, tmp_path, **INTERCEPTED) as running:
        interception = running.sidecar.interception
        assert interception is not None
        assert interception._interceptor is not None
        assert interception._interceptor._embedded is not None
        assert interception._interceptor._embedded.master.options.tcp_timeout >= WEEK
        streams = running.sidecar.controller._transport._streams
        assert streams is not None
        timeout = streams.timeout
        assert (timeout.total, timeout.sock_read, timeout.connect) == (None, None, None)


async def test_a_json_call_that_fails_after_a_heartbeat_still_has_its_status(
    engine: FakeSGLang, tmp_path: Path
) -> None:
    async with running_sidecar(engine, tmp_path, heartbeat_interval=2, engine_retries=0) as running:
        held = Held()
        engine.replies.append(held.reply(faults=faults.StreamError(4, "broke", 500)))
        call = asyncio.ensure_future(running.chat("s", ask()))
        await held.reached(engine)
        await asyncio.sleep(2.5)  # more than one heartbeat, and far less than four
        held.open.set()
        response = await call
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "engine_unavailable"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_with_white_space_turned_off_a_failure_has_its_status_however_late(
    engine: FakeSGLang, tmp_path: Path, stream: bool
) -> None:
    changes = {"heartbeat_interval": 0.02, "engine_retries": 0, "json_keepalive": "off"}
    async with running_sidecar(engine, tmp_path, **changes) as running:
        held = Held()
        engine.replies.append(held.reply(faults=faults.StreamError(4, "broke", 500)))
        call = asyncio.ensure_future(running.chat("s", ask(stream=stream)))
        await held.reached(engine)
        await asyncio.sleep(0.3)
        held.open.set()
        response = await call
    assert response.status_code == (200 if stream else 503)  # a stream's headers left with its first token
    assert "engine_unavailable" in response.text


async def test_a_call_outlives_its_pauses_lease_and_many_heartbeats(engine: FakeSGLang, tmp_path: Path) -> None:
    async with running_sidecar(engine, tmp_path, heartbeat_interval=0.02) as running:
        engine.replies.append(Reply(text="at last"))
        await running.post("/v1/rollout/pause", {"lease_seconds": 1})
        call = asyncio.ensure_future(running.chat("s", ask()))
        await until_states(running, "s", "running")
        assert completion(await call).choices[0].message.content == "at last"
        await delivered(running)


async def delivered(running: Running) -> None:
    [step] = (await running.view("s"))["steps"]
    assert step["delivered"]
