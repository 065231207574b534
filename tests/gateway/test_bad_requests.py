"""Requests that are wrong as HTTP: session ids, sizes, broken connections, paths and methods."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import openai
import pytest

from tests.fake_sglang import Reply
from tests.gateway.good_session import SESSION
from tests.support.chat import ask, refusal
from tests.support.running import Running

pytestmark = pytest.mark.asyncio(loop_scope="module")
SETTINGS = {"max_body": 16384}


@pytest.mark.parametrize("session_id", ["x" * 257, "a\nb", "%0A"])
async def test_an_unusable_session_id_is_a_bad_request(shared: Running, session_id: str) -> None:
    response = await shared.data.post("/v1/chat/completions", json=ask(session_id=session_id.replace("%0A", "\n")))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "session_id"
    assert "1 to 256 printable characters" in response.json()["error"]["message"]


async def test_an_empty_session_id_is_refused_and_not_replaced(shared: Running) -> None:
    for where in ({"json": ask(session_id="")}, {"json": ask(), "headers": {"X-Session-Id": ""}}):
        response = await shared.data.post("/v1/chat/completions", **where)
        assert response.status_code == 400, where
        assert response.json()["error"]["param"] == "session_id"


async def test_an_announced_body_that_is_too_large_is_refused_unread(shared: Running) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", shared.sidecar.gateway.port)
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n")  # and no body
    async with asyncio.timeout(30):
        status = await reader.readline()
        head = await reader.readuntil(b"\r\n\r\n")
    assert b" 413 " in status
    assert b"application/json" in head
    writer.close()


async def test_a_body_that_turns_out_too_large_is_413_in_the_envelope(
    shared: Running, agent: openai.AsyncOpenAI
) -> None:
    before = await shared.view(SESSION)

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(64):
            yield b" " * 1024

    response = await shared.data.post(f"/sessions/{SESSION}/v1/chat/completions", content=chunks())
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "body_too_large"
    error = await refusal(agent, ask("x" * 20000))
    assert error.status_code == 413
    assert "16384 bytes" in error.message
    assert "--max-body" in error.message
    assert await shared.view(SESSION) == before


async def test_an_agent_that_leaves_before_its_body_is_complete_changes_nothing(shared: Running) -> None:
    before = await shared.view(SESSION)
    reader, writer = await asyncio.open_connection("127.0.0.1", shared.sidecar.gateway.port)
    path = f"/sessions/{SESSION}/v1/chat/completions".encode()
    writer.write(b"POST " + path + b' HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{"model"')
    await writer.drain()
    writer.close()
    with suppress(ConnectionError):
        await reader.read()
    assert await shared.view(SESSION) == before
    assert not shared.engine.requests


@pytest.mark.parametrize(
    "path",
    [
        "/v1/completions",
        "/v1/embeddings",
        "/v1/chat/completions/",
        "/v1/nothing",
        "/",
        "/generate",
        "/abort_request",
        "/pause_generation",
        "/update_weight_version",
        "/session/open",
        "/v1/rollout/pause",
        "/sessions/s/v1/nothing",
        "/sessions/a/b/v1/chat/completions",
    ],
)
async def test_paths_that_are_no_model_endpoint_are_404_in_the_envelope(shared: Running, path: str) -> None:
    response = await shared.data.post(path, json=ask())
    assert response.status_code == 404, response.headers
    assert response.json()["error"]["type"] == "not_found_error"
    assert path in response.json()["error"]["message"]
    assert not [call for call in shared.engine.calls if call.path == path]


async def test_the_sdk_raises_not_found_for_an_unknown_path(agent: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="/v1/embeddings"):
        await agent.embeddings.create(model="m", input="x")


@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/chat/completions"), ("POST", "/v1/models")])
async def test_a_wrong_method_is_405_in_the_envelope_and_names_the_right_one(
    shared: Running, method: str, path: str
) -> None:
    response = await shared.data.request(method, path)
    assert response.status_code == 405
    assert response.json()["error"]["message"].startswith(f"wrong method for {method} {path}")
    assert ("POST" if method == "GET" else "GET") in response.headers["allow"]


def nested(depth: int) -> object:
    found: object = "end"
    for _ in range(depth):
        found = {"in": found}
    return found


@pytest.mark.parametrize(
    ("param", "place"),
    [
        ("messages", lambda deep: {"messages": [{"role": "user", "content": "Hi", "extra": deep}]}),
        ("tools", lambda deep: {"tools": [{"type": "function", "function": {"name": "f", "parameters": deep}}]}),
        ("chat_template_kwargs", lambda deep: {"chat_template_kwargs": {"x": deep}}),
    ],
)
async def test_what_is_nested_too_deeply_to_be_stored_is_refused(
    shared: Running, param: str, place: Callable[[object], dict[str, Any]]
) -> None:
    path = f"/sessions/deep-{param}/v1/chat/completions"
    shared.engine.replies.append(Reply(text="Yes."))
    assert (await shared.data.post(path, json={**ask(), **place(nested(200))})).status_code == 200
    for depth in (*range(245, 260), 300):
        answer = await shared.data.post(path, json={**ask(str(depth)), **place(nested(depth))})
        assert answer.status_code in ((200, 400) if depth < 252 else (400,)), (depth, answer.text)
    assert answer.json()["error"]["param"] == param
    assert "250 levels" in answer.json()["error"]["message"]
