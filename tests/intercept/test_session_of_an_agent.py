"""Where the sidecar has one agent (`--session-id`) and needs keys, what is intercepted is that agent's session."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import httpx
import pytest

from sidecar.sessions.keys import session_key
from tests.fake_sglang import FakeSGLang, Reply
from tests.support.running import Running, running_sidecar

SECRET = "a-session-secret-of-the-tests"
CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def _intercepted(running: Running) -> httpx.AsyncClient:
    interception = running.sidecar.interception
    assert interception is not None
    [(host, port)] = interception.addresses
    trust = ssl.create_default_context(cafile=interception.bundle)
    return httpx.AsyncClient(
        base_url="https://api.openai.com", proxy=f"http://{host}:{port}", verify=trust, timeout=60
    )


@pytest.mark.timeout(120)
async def test_an_intercepted_agent_reaches_its_own_session_whatever_it_names(
    engine: FakeSGLang, tmp_path: Path
) -> None:
    engine.replies.extend(Reply(text=f"Answer {number}.") for number in range(8))
    changes = {
        "intercept": ["regular@127.0.0.1:0"],
        "data_auth": "session-key",
        "session_secret": SECRET,
        "session_id": "mine",
    }
    async with running_sidecar(engine, tmp_path / "state", **changes) as running, _intercepted(running) as agent:
        for headers in (
            {"Authorization": "Bearer sk-of-a-provider"},
            {"Authorization": "Bearer sk-of-a-provider", "X-Session-Id": "other"},
            {"Authorization": "Bearer sk-of-a-provider", "X-SMG-Routing-Key": "other"},
            {"Authorization": f"Bearer {session_key('other', SECRET.encode())}"},
            {"x-api-key": session_key("other", SECRET.encode())},
            {},
        ):
            response = await agent.post("/v1/chat/completions", json=CHAT, headers=headers)
            assert response.status_code == 200, (headers, response.text)
            assert response.headers["x-session-id"] == "mine"
        for path, body in (
            ("/v1/chat/completions", {"session_id": "other"}),
            ("/sessions/other/v1/chat/completions", {}),
        ):
            response = await agent.post(path, json=CHAT | body)
            assert response.status_code in (403, 404), response.text
        direct = await running.data.post("/v1/chat/completions", json=CHAT, headers={"X-Session-Id": "other"})
        assert direct.status_code == 401
        assert (await running.control.get("/session/other")).status_code == 404


async def test_without_a_session_of_its_own_the_sidecar_takes_the_key_that_the_agent_has(
    engine: FakeSGLang, tmp_path: Path
) -> None:
    engine.replies.append(Reply(text="An answer."))
    changes = {"intercept": ["regular@127.0.0.1:0"], "data_auth": "session-key", "session_secret": SECRET}
    async with running_sidecar(engine, tmp_path / "state", **changes) as running, _intercepted(running) as agent:
        key = session_key("theirs", SECRET.encode())
        response = await agent.post("/v1/chat/completions", json=CHAT, headers={"Authorization": f"Bearer {key}"})
        assert response.headers["x-session-id"] == "theirs"
        refused = await agent.post("/v1/chat/completions", json=CHAT, headers={"Authorization": "Bearer sk-any"})
        assert refused.status_code == 401
