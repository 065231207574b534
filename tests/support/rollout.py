"""Pause and resume as a trainer asks for them, and what a segment says of the versions that sampled it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest_asyncio

from tests.support.running import Running


async def pause(running: Running, status: int = 200, **fields: Any) -> dict[str, Any]:
    """`POST /v1/rollout/pause`; its reply, which has to have that status."""
    return await running.post("/v1/rollout/pause", fields, status)


async def resume(running: Running, status: int = 200, **fields: Any) -> dict[str, Any]:
    """`POST /v1/rollout/resume`."""
    return await running.post("/v1/rollout/resume", fields, status)


async def state(running: Running) -> dict[str, Any]:
    """`GET /v1/rollout/pause_state`."""
    response = await running.control.get("/v1/rollout/pause_state")
    assert response.status_code == 200
    parsed: dict[str, Any] = response.json()
    return parsed


@pytest_asyncio.fixture(loop_scope="module")
async def resumed(module_sidecar: Running) -> AsyncIterator[None]:
    """No test leaves a pause to the next."""
    yield
    await module_sidecar.post("/v1/rollout/resume")


def sampled_versions(segment: dict[str, Any]) -> list[str]:
    """The version of every trained id."""
    pairs = zip(segment["full_versions"], segment["full_loss_mask"], strict=True)
    return [version for version, trained in pairs if trained]
