"""Health, readiness and capabilities: what probes and trainers are told."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.fake_sglang import Reply
from tests.support.chat import ask, completion
from tests.support.running import Running, engine_for, running_sidecar

pytestmark = pytest.mark.asyncio(loop_scope="module")
ENGINE = {"parsers": ("qwen3", "qwen25"), "context_length": 4096, "weight_version": "3"}


async def ready(running: Running, **params: str) -> tuple[int, dict[str, Any]]:
    response = await running.control.get("/ready", params=params)
    return response.status_code, response.json()


async def test_a_sidecar_that_serves_is_healthy_and_ready(shared: Running) -> None:
    assert (await shared.control.get("/health")).json() == {"status": "ok"}
    assert await ready(shared) == (200, {"ready": True, "problems": [], "engine": "up", "paused": False})
    assert (await ready(shared, engine="1"))[0] == 200


async def test_a_pause_does_not_make_it_unready(shared: Running) -> None:
    await shared.post("/v1/rollout/pause")
    status, body = await ready(shared)
    assert (status, body["ready"], body["paused"]) == (200, True, True)
    await shared.post("/v1/rollout/resume")
    assert (await ready(shared))[1]["paused"] is False


async def test_an_engine_that_restarts_does_not_make_it_unready(qwen3_dir: Path, tmp_path: Path) -> None:
    async with engine_for(qwen3_dir) as engine, running_sidecar(engine, tmp_path / "state") as running:
        await engine.down()
        await running.post("/v1/rollout/pause")
        await running.post("/v1/rollout/resume", status=503)  # asks the engine at once
        assert await ready(running) == (200, {"ready": True, "problems": [], "engine": "down", "paused": True})
        assert (await ready(running, engine="1"))[0] == 200  # it had answered once
        await engine.up()
        await running.post("/v1/rollout/resume")
        assert (await ready(running))[1]["engine"] == "up"


async def test_an_engine_that_hangs_delays_no_probe(qwen3_dir: Path, tmp_path: Path) -> None:
    async with engine_for(qwen3_dir) as engine, running_sidecar(engine, tmp_path / "state") as running:
        await engine.down()
        await running.post("/v1/rollout/pause")
        await running.post("/v1/rollout/resume", status=503)
        silent = await asyncio.start_server(lambda reader, writer: None, engine.host, engine.port)
        try:
            forget_the_last_answer(running)
            async with asyncio.timeout(5):  # the engine client itself gives up after ten seconds
                status, body = await ready(running)
        finally:
            silent.close()
        assert (status, body["ready"], body["engine"]) == (200, True, "down")


def forget_the_last_answer(running: Running) -> None:
    """Answers count as fresh for two seconds."""
    routes = running.sidecar.control._app.routes
    [probe] = [route for route in routes if route.path == "/ready"]
    probe.endpoint.__self__.engine._asked_at = float("-inf")


async def test_the_startup_probe_waits_for_the_engines_first_answer(qwen3_dir: Path, tmp_path: Path) -> None:
    engine = engine_for(qwen3_dir)
    async with engine:
        await engine.down()
        settings = {"tokenizer": str(qwen3_dir), "context_window": 4096}
        async with running_sidecar(engine, tmp_path / "state", **settings) as running:
            status, body = await ready(running, engine="1")
            assert (status, body["problems"]) == (503, ["the engine has not answered yet"])
            assert (await ready(running))[0] == 200
            await engine.up()
            await running.post("/v1/rollout/pause")
            await running.post("/v1/rollout/resume")
            assert (await ready(running, engine="1"))[0] == 200
            engine.replies.append(Reply(text="ok"))
            completion(await running.chat("s", ask()))


async def test_a_listener_that_stopped_and_a_shutdown_make_it_unready(qwen3_dir: Path, tmp_path: Path) -> None:
    async with engine_for(qwen3_dir) as engine, running_sidecar(engine, tmp_path / "state") as running:
        await running.sidecar.gateway.stop()
        status, body = await ready(running)
        assert (status, body["ready"]) == (503, False)
        assert body["problems"] == ["--listen is not listening"]
        running.sidecar.registry.stopping = True
        assert "the sidecar is shutting down" in (await ready(running))[1]["problems"]


async def test_a_call_during_shutdown_is_503_to_be_retried(qwen3_dir: Path, tmp_path: Path) -> None:
    async with engine_for(qwen3_dir) as engine, running_sidecar(engine, tmp_path / "state") as running:
        running.sidecar.registry.stopping = True
        response = await running.chat("s", ask())
        assert response.status_code == 503
        assert response.headers["retry-after"] == "1"
        assert response.json()["error"]["code"] == "shutting_down"


async def test_capabilities_name_modes_tokenizer_template_and_engine(shared: Running, qwen3_dir: Path) -> None:
    body = (await shared.control.get("/integration/capabilities")).json()
    assert body["token_build_modes"] == ["tito"]
    assert body["pause_modes"] == ["abort", "drain", "hold"]
    assert body["pause_scopes"] == ["all", "session", "instance"]
    assert body["protocols"] == ["chat_completions"]
    assert body["tokenizer"] == str(qwen3_dir)
    assert body["tokenizer_sha256"] == shared.sidecar.model.codec.sha256
    assert body["model_family"] == "qwen3"
    assert (body["template_verdict"], body["template_failures"], body["tools"]) == ("exact", {}, True)
    assert len(body["template_sha256"]) == 64
    assert body["engine"] == {
        "model_id": "fake",
        "version": "0.5.23",
        "context_length": 4096,
        "weight_version": "3",
        "incremental_streaming_output": False,
        "tool_call_parser": "qwen25",
        "reasoning_parser": "qwen3",
        "returns_routed_experts": False,
        "error": None,
        "workers": [{"url": shared.engine.url, "version": "0.5.23", "weight_version": "3", "error": None}],
    }


async def test_capabilities_are_what_the_sidecar_really_accepts(shared: Running) -> None:
    body = (await shared.control.get("/integration/capabilities")).json()
    for mode in ("abort", "drain", "hold", "stop"):
        status = 200 if mode in body["pause_modes"] else 400
        await shared.post("/v1/rollout/pause", {"mode": mode}, status=status)
        await shared.post("/v1/rollout/resume")
    for scope in body["pause_scopes"]:
        fields = {} if scope == "all" else {f"{scope}_id": "s"}
        await shared.post("/v1/rollout/pause", fields)
        await shared.post("/v1/rollout/resume")
