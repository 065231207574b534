"""The control plane answers nobody without its token, loopback or not; the data plane has none of its routes."""

from __future__ import annotations

import stat
from pathlib import Path

import httpx
import pytest

from tests.fake_sglang import Reply
from tests.support.chat import ask, completion
from tests.support.running import Running, engine_for, running_sidecar

pytestmark = pytest.mark.asyncio(loop_scope="module")
SETTINGS = {"health_listen": "127.0.0.1:0"}

ROUTES = [
    ("POST", "/session/open"),
    ("POST", "/session/finalize"),
    ("POST", "/session/discard"),
    ("GET", "/session/s"),
    ("POST", "/trajectory/read"),
    ("POST", "/v1/rollout/pause"),
    ("POST", "/v1/rollout/resume"),
    ("GET", "/v1/rollout/pause_state"),
    ("GET", "/integration/capabilities"),
]
ELSEWHERE = [("GET", "/"), ("GET", "/nothing"), ("GET", "/health/"), ("GET", "/HEALTH"), ("POST", "/ready/x")]


def tokens(running: Running) -> dict[str, dict[str, str]]:
    """Headers that must not open anything."""
    token = running.sidecar.control_token
    return {
        "none": {},
        "empty": {"Authorization": ""},
        "wrong": {"Authorization": f"Bearer {token[:-1]}x"},
        "longer": {"Authorization": f"Bearer {token}x"},
        "basic": {"Authorization": f"Basic {token}"},
        "bare": {"Authorization": token},
        "api key": {"x-api-key": token},
    }


@pytest.mark.parametrize(("method", "path"), [*ROUTES, *ELSEWHERE])
async def test_every_path_but_the_probes_wants_the_token(shared: Running, method: str, path: str) -> None:
    async with httpx.AsyncClient(base_url=shared.sidecar.control.url) as stranger:
        for name, headers in tokens(shared).items():
            response = await stranger.request(method, path, headers=headers, json={"session_id": "s"})
            assert response.status_code == 401, name
            error = response.json()["error"]
            assert (error["type"], error["code"]) == ("authentication_error", "invalid_control_token")
            assert "TITO_CONTROL_TOKEN" in error["message"]
            assert shared.sidecar.control_token not in response.text
    assert (await shared.control.get("/session/s")).status_code == 404


async def test_a_session_key_does_not_open_the_control_plane(shared: Running) -> None:
    key = (await shared.open("keyed"))["api_key"]
    async with httpx.AsyncClient(base_url=shared.sidecar.control.url) as agent:
        response = await agent.get("/session/keyed", headers={"Authorization": f"Bearer {key}"})
    assert response.status_code == 401


@pytest.mark.parametrize("path", ["/health", "/ready"])
async def test_the_probes_are_open(shared: Running, path: str) -> None:
    async with httpx.AsyncClient(base_url=shared.sidecar.control.url) as stranger:
        assert (await stranger.get(path)).status_code == 200


@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_the_data_plane_has_none_of_its_routes_token_or_not(shared: Running, method: str, path: str) -> None:
    headers = {"Authorization": f"Bearer {shared.sidecar.control_token}"}
    response = await shared.data.request(method, path, headers=headers, json={})
    assert response.status_code == 404


async def test_the_probe_listener_has_the_probes_and_nothing_else(shared: Running) -> None:
    [probes] = [
        one for one in shared.sidecar._listeners if one not in (shared.sidecar.gateway, shared.sidecar.control)
    ]
    headers = {"Authorization": f"Bearer {shared.sidecar.control_token}"}
    async with httpx.AsyncClient(base_url=probes.url, headers=headers) as kubelet:
        assert (await kubelet.get("/health")).json() == {"status": "ok"}
        assert (await kubelet.get("/ready")).status_code == 200
        for method, path in ROUTES:
            assert (await kubelet.request(method, path)).status_code == 404


async def test_a_token_is_made_once_and_only_its_owner_can_read_it(qwen3_dir: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    async with engine_for(qwen3_dir) as engine:
        async with running_sidecar(engine, state) as running:
            token = running.sidecar.control_token
        file = state / "control-token"
        assert file.read_text().strip() == token
        assert len(token) >= 32
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert stat.S_IMODE(state.stat().st_mode) == 0o700
        async with running_sidecar(engine, state) as running:
            assert running.sidecar.control_token == token
            await running.open("s")


async def test_a_given_token_is_the_one_and_is_written_nowhere(qwen3_dir: Path, tmp_path: Path) -> None:
    async with (
        engine_for(qwen3_dir) as engine,
        running_sidecar(engine, tmp_path / "state", control_token="given-token") as running,
    ):
        assert running.control.headers["Authorization"] == "Bearer given-token"
        await running.open("s")
        engine.replies.append(Reply(text="ok"))
        completion(await running.chat("s", ask()))
        files = [path for path in (tmp_path / "state").rglob("*") if path.is_file()]
        assert files
        assert not any(b"given-token" in path.read_bytes() for path in files)
