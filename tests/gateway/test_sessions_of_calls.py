"""Which session a call belongs to: a key decides, else headers, path, body, setting, process; in that order."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.fake_sglang import Reply
from tests.support.chat import Held, ask, completion, follow, streaming
from tests.support.running import Running, engine_for, running_sidecar

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def session_of(running: Running, path: str = "", body: dict[str, Any] | None = None, **headers: str) -> str:
    """The session that a good call ends up in, as the reply and the engine's routing header say it."""
    response = await call(running, path, body, **headers)
    completion(response)
    session = response.headers["x-session-id"]
    assert running.engine.requests[-1].session == session
    return session


async def call(
    running: Running, path: str = "", body: dict[str, Any] | None = None, **headers: str
) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    running.engine.replies.clear()
    running.engine.replies.append(Reply(text="ok"))
    return await running.data.post(f"{path}/v1/chat/completions", json=ask(**(body or {})), headers=named)


@asynccontextmanager
async def sidecar_with(qwen3_dir: Path, tmp_path: Path, **settings: Any) -> AsyncIterator[Running]:
    async with engine_for(qwen3_dir) as engine, running_sidecar(engine, tmp_path / "state", **settings) as running:
        yield running


async def test_the_first_name_in_the_order_decides(shared: Running) -> None:
    names: dict[str, Any] = {
        "x_session_id": "header",
        "x_smg_routing_key": "routing",
        "path": "/sessions/path",
        "body": {"session_id": "body", "metadata": {"session_id": "metadata"}},
    }
    for expected in ("header", "routing", "path", "body"):
        assert await session_of(shared, **names) == expected
        names.pop(next(iter(names)))
    assert await session_of(shared, body={"metadata": {"session_id": "metadata"}}) == "metadata"


async def test_calls_that_name_no_session_share_one_of_the_process(shared: Running) -> None:
    first, second = await session_of(shared), await session_of(shared)
    assert first == second
    assert first.startswith("process-")


async def test_each_process_has_a_session_of_its_own(shared: Running, qwen3_dir: Path, tmp_path: Path) -> None:
    async with sidecar_with(qwen3_dir, tmp_path) as other:
        assert await session_of(other) != await session_of(shared)


async def test_a_session_setting_takes_calls_that_name_none(qwen3_dir: Path, tmp_path: Path) -> None:
    async with sidecar_with(qwen3_dir, tmp_path, session_id="fixed", session_secret="secret") as running:
        assert await session_of(running) == "fixed"
        assert await session_of(running, "/sessions/other") == "other"


async def test_with_a_secret_and_no_session_a_call_is_told_three_ways_to_name_one(
    qwen3_dir: Path, tmp_path: Path
) -> None:
    async with sidecar_with(qwen3_dir, tmp_path, session_secret="secret") as running:
        response = await call(running)
        assert response.status_code == 400
        message = response.json()["error"]["message"]
        assert all(way in message for way in ("X-Session-Id", "/sessions/{session_id}/v1", "--session-id"))
        assert not running.engine.requests


async def test_a_session_key_decides_as_bearer_and_as_api_key(shared: Running) -> None:
    opened = await shared.open("keyed")
    for headers in ({"authorization": f"Bearer {opened['api_key']}"}, {"x_api_key": opened["api_key"]}):
        assert await session_of(shared, **headers) == "keyed"
        assert await session_of(shared, "/sessions/keyed", {"session_id": "keyed"}, **headers) == "keyed"


async def test_the_opened_base_url_and_key_are_all_that_the_sdk_needs(shared: Running) -> None:
    opened = await shared.open("swap")
    shared.engine.replies.append(Reply(text="ok"))
    async with openai.AsyncOpenAI(base_url=opened["base_url"], api_key=opened["api_key"], max_retries=0) as agent:
        got = await agent.chat.completions.with_raw_response.create(**ask())
    assert got.headers["x-session-id"] == "swap"


@pytest.mark.parametrize(
    ("path", "body", "headers"),
    [
        ("/sessions/other", {}, {}),
        ("", {"session_id": "other"}, {}),
        ("", {"metadata": {"session_id": "other"}}, {}),
        ("", {}, {"x_session_id": "other"}),
        ("", {}, {"x_smg_routing_key": "other"}),
        ("/sessions/keyed", {"session_id": "keyed"}, {"x_session_id": "other"}),
    ],
)
async def test_another_session_beside_a_key_is_forbidden(
    shared: Running, path: str, body: dict[str, Any], headers: dict[str, str]
) -> None:
    key = (await shared.open("keyed"))["api_key"]
    response = await call(shared, path, body, authorization=f"Bearer {key}", **headers)
    assert response.status_code == 403
    error = response.json()["error"]
    assert (error["type"], error["code"]) == ("permission_error", "wrong_session")
    assert "'other'" in error["message"]
    assert not shared.engine.requests


async def test_a_key_that_is_not_ours_is_401_and_never_another_session(shared: Running) -> None:
    key = (await shared.open("keyed"))["api_key"]
    other = (await shared.open("other"))["api_key"]
    head, _, mac = key.rpartition(".")
    forged = [
        f"{head}.{mac[:-1]}",
        f"{head}.",
        f"{other.rpartition('.')[0]}.{mac}",
        "tito-.",
        "tito-x.y",
        f"{key}é",
    ]
    for token in forged:
        response = await call(shared, authorization=f"Bearer {token}".encode("latin-1"))  # type: ignore[arg-type]
        assert response.status_code == 401, token
        error = response.json()["error"]
        assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")
    async with openai.AsyncOpenAI(base_url=f"{shared.sidecar.gateway.url}/v1", api_key=f"{head}.x") as agent:
        with pytest.raises(openai.AuthenticationError):
            await agent.chat.completions.create(**ask())
    assert not shared.engine.requests


@pytest.mark.parametrize("key", ["sk-anything", "tito-without-a-dot", "EMPTY"])
async def test_any_other_api_key_is_an_agents_own_and_does_not_matter(shared: Running, key: str) -> None:
    assert await session_of(shared, "/sessions/any", authorization=f"Bearer {key}") == "any"


async def test_where_keys_are_required_nothing_else_opens_a_session(qwen3_dir: Path, tmp_path: Path) -> None:
    async with sidecar_with(qwen3_dir, tmp_path, data_auth="session-key") as running:
        for headers in ({}, {"authorization": "Bearer sk-x"}, {"authorization": "Basic eA=="}, {"x_api_key": "x"}):
            response = await call(running, "/sessions/s", **headers)
            assert response.status_code == 401
            assert response.json()["error"]["code"] == "invalid_api_key"
        assert "POST /session/open" in (await call(running)).json()["error"]["message"]
        for path in ("/v1/models", "/sessions/s/v1/models"):
            assert (await running.data.get(path)).status_code == 401
        key = (await running.open("s"))["api_key"]
        assert await session_of(running, authorization=f"bearer {key}") == "s"
        models = await running.data.get("/v1/models", headers={"Authorization": f"Bearer {key}"})
        assert models.status_code == 200


async def test_a_key_is_valid_after_a_restart_and_on_every_sidecar_with_the_secret(
    qwen3_dir: Path, tmp_path: Path
) -> None:
    async with sidecar_with(qwen3_dir, tmp_path) as running:
        key = (await running.open("s"))["api_key"]
    async with sidecar_with(qwen3_dir, tmp_path, data_auth="session-key") as running:
        assert await session_of(running, authorization=f"Bearer {key}") == "s"
    secret = (tmp_path / "state" / "session-secret").read_text().strip()
    async with sidecar_with(qwen3_dir, tmp_path / "b", session_secret=secret, data_auth="session-key") as running:
        assert await session_of(running, authorization=f"Bearer {key}") == "s"


@pytest.mark.parametrize("end", ["finalize", "discard"])
async def test_a_closed_session_is_409_that_no_sdk_retries(shared: Running, end: str) -> None:
    session = f"closed-by-{end}"
    await session_of(shared, f"/sessions/{session}")
    await shared.post(f"/session/{end}", {"session_id": session})
    sent = len(shared.engine.requests)
    async with shared.agent(session, max_retries=3) as agent:
        with pytest.raises(openai.ConflictError) as raised:
            await agent.chat.completions.create(**ask())
    state = "finalized" if end == "finalize" else "discarded"
    assert raised.value.response.headers["x-should-retry"] == "false"
    assert raised.value.code == f"session_{state}"
    assert f"'{session}' is {state}; open a new one" in raised.value.message
    calls = [one for one in await steps(shared, session) if one["state"] == "running"]
    assert not calls
    assert len(shared.engine.requests) == sent


async def steps(running: Running, session: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await running.view(session))["steps"]
    return found


@pytest.mark.parametrize("stream", [False, True])
async def test_replies_carry_the_ids_of_session_and_step(shared: Running, stream: bool) -> None:
    response = await call(shared, "/sessions/ids", {"stream": stream})
    assert response.headers["x-session-id"] == "ids"
    step_id = response.headers["x-step-id"]
    assert re.fullmatch(r"[0-9a-f]{32}", step_id)
    assert step_id in [step["step_id"] for step in await steps(shared, "ids")]


async def test_a_clamped_limit_is_told_and_one_that_holds_is_not(shared: Running) -> None:
    assert "x-tito-max-tokens" not in (await call(shared, "/sessions/limits")).headers
    assert "x-tito-max-tokens" not in (await call(shared, "/sessions/limits", {"max_tokens": 100})).headers
    clamped = await call(shared, "/sessions/limits", {"max_completion_tokens": 10**6})
    asked = shared.engine.requests[-1].sampling_params["max_new_tokens"]
    assert int(clamped.headers["x-tito-max-tokens"]) == asked < 10**6


async def test_a_pinned_limit_clamps_too(shared: Running) -> None:
    await shared.open("pinned-limit", sampling={"max_new_tokens": 7})
    response = await call(shared, "/sessions/pinned-limit", {"max_tokens": 100})
    assert response.headers["x-tito-max-tokens"] == "7"
    assert shared.engine.requests[-1].sampling_params["max_new_tokens"] == 7


async def test_sessions_do_not_see_each_others_history(shared: Running) -> None:
    first = completion(await call(shared, "/sessions/mine")).choices[0].message.model_dump(exclude_none=True)
    history = follow(ask(), first, "More")["messages"]
    await session_of(shared, "/sessions/yours", {"messages": history})
    [step] = await steps(shared, "yours")
    assert step["parent"] is None


async def test_a_session_id_may_hold_any_printable_character(shared: Running) -> None:
    assert await session_of(shared, "/sessions/%E6%97%A5%20x%3F%25") == "日 x?%"


async def test_a_session_id_cannot_break_out_of_a_header(shared: Running) -> None:
    response = await call(shared, "/sessions/a%0D%0Ax-injected:%201")
    assert response.status_code == 400
    assert "x-injected" not in response.headers


async def test_models_are_listed_with_and_without_a_session_and_survive_the_engine(shared: Running) -> None:
    for base in ("/v1", "/sessions/s/v1"):
        listed = (await shared.data.get(f"{base}/models")).json()
        assert listed["data"][0]["id"] == "fake"
        assert (await shared.data.get(f"{base}/models/fake")).json()["max_model_len"] == 32768
    missing = await shared.data.get("/v1/models/gpt-x")
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "model_not_found"
    await shared.engine.down()
    try:
        async with shared.agent("s") as agent:
            assert [model.id async for model in await agent.models.list()] == ["fake"]
    finally:
        await shared.engine.up()


async def test_two_streams_of_one_session_run_side_by_side(shared: Running) -> None:
    held = Held()
    shared.engine.replies.extend([held.reply(), Reply(text="quick")])
    async with streaming(shared, "side", ask()) as slow:
        await slow.until_text()
        assert completion(await shared.chat("side", ask("Title?"))).choices[0].message.content == "quick"
        held.open.set()
        assert (await slow.rest())[-1] == "[DONE]"
