"""The registry of live sidecars, and pauses of sidecars that share a store."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from tests.fake_sglang import FakeSGLang, Reply
from tests.replicas.pair import pair, replica
from tests.support.chat import LIVENESS, ask, completion
from tests.support.running import Running
from tests.support.waiting import until


async def registry(running: Running) -> dict[str, Any]:
    response = await running.control.get("/integration/sidecars")
    assert response.status_code == 200
    found: dict[str, Any] = response.json()
    return found


async def pause(running: Running, **fields: Any) -> dict[str, Any]:
    return await running.post("/v1/rollout/pause", fields)


async def paused(running: Running) -> bool:
    state: dict[str, Any] = (await running.control.get("/v1/rollout/pause_state")).json()
    return bool(state["paused"])


async def test_every_live_sidecar_is_in_the_registry_with_its_urls(
    engine: FakeSGLang, tmp_path: Path, store_url: str
) -> None:
    async with pair(engine, tmp_path, store_url, advertise_control_url="http://elsewhere:8801/") as (a, b):
        one, other = await registry(a), await registry(b)
        for found, running in ((one, a), (other, b)):
            [own] = [sidecar for sidecar in found["sidecars"] if sidecar["sidecar_id"] == found["self"]]
            assert own["url"] == running.sidecar.gateway.url
            assert own["control_url"] == "http://elsewhere:8801"
            assert 0 < own["expires_at"] - time.time() < 60
        assert one["self"] != other["self"]
        ids = {sidecar["sidecar_id"] for sidecar in one["sidecars"]}
        assert ids == {one["self"], other["self"]} == {sidecar["sidecar_id"] for sidecar in other["sidecars"]}


async def test_a_sidecar_that_ended_is_not_in_the_registry(
    engine: FakeSGLang, tmp_path: Path, store_url: str
) -> None:
    async with replica(engine, tmp_path / "a", store_url) as left:
        async with replica(engine, tmp_path / "b", store_url):
            assert len((await registry(left))["sidecars"]) == 2
        [own] = (await registry(left))["sidecars"]
        assert own["sidecar_id"] == left.sidecar.members.claims.sidecar_id


async def test_the_registry_needs_the_control_token(engine: FakeSGLang, tmp_path: Path, store_url: str) -> None:
    async with replica(engine, tmp_path / "a", store_url) as running:
        refused = await running.control.get("/integration/sidecars", headers={"Authorization": "Bearer x"})
        assert refused.status_code == 401


async def test_a_sidecar_that_starts_during_a_pause_of_others_is_paused_until_they_resume(
    engine: FakeSGLang, tmp_path: Path, store_url: str
) -> None:
    async with replica(engine, tmp_path / "a", store_url) as first:
        held = await pause(first)
        async with replica(engine, tmp_path / "b", store_url) as late:
            assert await paused(late)
            engine.replies.append(Reply(text="After."))
            call = asyncio.ensure_future(late.chat("s", ask()))
            await until(lambda: late.sidecar.pauses.gate.suspended == 1, "a call at the gate")
            assert not engine.requests
            await first.post("/v1/rollout/resume", {"pause_id": held["pause_id"]})
            async with asyncio.timeout(LIVENESS):
                completion(await call)
            assert not await paused(late)


async def test_a_pause_that_reaches_a_late_sidecar_is_its_own(
    engine: FakeSGLang, tmp_path: Path, store_url: str
) -> None:
    async with replica(engine, tmp_path / "a", store_url) as first:
        one = await pause(first)
        async with replica(engine, tmp_path / "b", store_url) as late:
            two = await pause(late)
            assert two["status"] == "paused"
            assert two["pause_id"] != one["pause_id"]
            again = await pause(late, pause_id=two["pause_id"])
            assert again["status"] == "already_paused"
            await first.post("/v1/rollout/resume", {"pause_id": one["pause_id"]})
            await until(lambda: len(late.sidecar.pauses.gate.pauses) == 1, "an end of the other one's pause")
            assert await paused(late)
            resumed = await late.post("/v1/rollout/resume", {"pause_id": two["pause_id"]})
            assert not resumed["paused"]


async def test_two_sidecars_that_are_paused_both_stay_paused_over_a_restart(
    engine: FakeSGLang, tmp_path: Path, store_url: str
) -> None:
    async with replica(engine, tmp_path / "a", store_url) as first:
        one = await pause(first)
        async with replica(engine, tmp_path / "b", store_url) as second:
            two = await pause(second, mode="drain")
        async with replica(engine, tmp_path / "b", store_url) as again:
            assert (await pause(again, mode="drain"))["pause_id"] == two["pause_id"]
            await again.post("/v1/rollout/resume", {"pause_id": two["pause_id"]})
            assert await paused(again)  # the other one's is still in force
            await again.post("/v1/rollout/resume")  # for people: lifts all here, and only here
            assert not await paused(again)
            assert await paused(first)
    async with replica(engine, tmp_path / "a", store_url) as first:
        assert (await pause(first))["pause_id"] == one["pause_id"]
