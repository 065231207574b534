"""Pause and resume as a protocol: ids, leases, conflicts, an engine that is down, restarts of the sidecar."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from sidecar.store import open_store
from sidecar.store.protocol import PauseRow
from tests.fake_sglang import FakeSGLang, Reply
from tests.support.chat import Held, ask, completion, text_of, until_states
from tests.support.rollout import pause, resume, sampled_versions, state
from tests.support.running import Running, engine_for, running_sidecar

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("resumed")]
BOTH_WAYS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
SETTINGS = {"heartbeat_interval": 0.05}


# The protocol.


async def test_a_second_pause_is_already_paused_and_renews_the_first(shared: Running) -> None:
    first = await pause(shared, reason="a", lease_seconds=5)
    [before] = (await state(shared))["pauses"]
    second = await pause(shared, reason="b", lease_seconds=50)
    assert (second["status"], second["pause_id"]) == ("already_paused", first["pause_id"])
    [after] = (await state(shared))["pauses"]
    assert after["lease_expires_at"] > before["lease_expires_at"] + 40
    third = await pause(shared, pause_id=first["pause_id"], lease_seconds=500)
    assert (third["status"], third["pause_id"]) == ("already_paused", first["pause_id"])
    [renewed] = (await state(shared))["pauses"]
    assert renewed["lease_expires_at"] > after["lease_expires_at"] + 400
    assert (renewed["scope"], renewed["mode"], renewed["reason"]) == ("all", "abort", "a")


async def test_two_pauses_at_once_are_one(shared: Running) -> None:
    first, second = await asyncio.gather(pause(shared), pause(shared))
    assert first["pause_id"] == second["pause_id"]
    assert {first["status"], second["status"]} == {"paused", "already_paused"}


async def test_an_unknown_pause_id_is_409_and_opens_no_pause(shared: Running) -> None:
    for route in (pause, resume):
        error = (await route(shared, 409, pause_id="nonsense"))["error"]
        assert error["code"] == "pause_expired"
        assert "nonsense" in error["message"]
    assert not (await state(shared))["paused"]
    lifted = await pause(shared)
    await resume(shared, pause_id=lifted["pause_id"])
    assert (await pause(shared, 409, pause_id=lifted["pause_id"]))["error"]["code"] == "pause_expired"
    assert (await resume(shared, 409, pause_id=lifted["pause_id"]))["error"]["code"] == "pause_expired"
    assert not (await state(shared))["paused"]


async def test_a_wrong_id_does_not_lift_another_pause(shared: Running) -> None:
    await pause(shared)
    await resume(shared, 409, pause_id="nonsense")
    assert (await state(shared))["paused"]


async def test_resuming_what_runs_changes_nothing(shared: Running) -> None:
    before = (await state(shared))["rollout_epoch"]
    assert (await resume(shared))["status"] == "already_running"
    assert (await state(shared))["rollout_epoch"] == before
    await pause(shared)
    assert (await resume(shared))["rollout_epoch"] == before + 1


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"mode": "stop"}, "mode"),
        ({"mode": 5}, "mode"),
        ({"session_id": ""}, "session_id"),
        ({"session_id": "a/b"}, "session_id"),
        ({"session_id": 5}, "session_id"),
        ({"instance_id": ""}, "instance_id"),
        ({"instance_id": 5}, "instance_id"),
        ({"session_id": "s", "instance_id": "i"}, "instance_id"),
        ({"mode": "hold", "session_id": "s"}, "session_id"),
        ({"mode": "hold", "instance_id": "i"}, "instance_id"),
        ({"pause_id": 5}, "pause_id"),
        ({"reason": 5}, "reason"),
        ({"timeout_seconds": "1"}, "timeout_seconds"),
        ({"timeout_seconds": -1}, "timeout_seconds"),
        ({"lease_seconds": 0}, "lease_seconds"),
        ({"lease": 5}, "lease"),
    ],
)
async def test_bad_fields_of_pause_are_named_and_nothing_is_paused(
    shared: Running, fields: dict[str, Any], param: str
) -> None:
    assert (await pause(shared, 400, **fields))["error"]["param"] == param
    assert not (await state(shared))["paused"]


async def test_a_version_that_the_engine_does_not_confirm_is_logged_and_stamped_on_nothing(
    shared: Running, caplog: pytest.LogCaptureFixture
) -> None:
    shared.engine.set_weight_version("7")
    await pause(shared)
    assert (await resume(shared, version="8"))["version"] == "7"
    assert "resumed with version 8, but the engine says 7" in caplog.text
    shared.engine.replies.append(Reply(text="ok"))
    completion(await shared.chat("stamped", ask()))
    [segment] = await shared.segments("stamped")
    assert set(sampled_versions(segment)) == {"7"}


async def test_a_lease_that_runs_out_opens_the_gate_and_says_so(
    shared: Running, caplog: pytest.LogCaptureFixture
) -> None:
    held = Held()
    shared.engine.replies.append(held.reply())
    call = asyncio.ensure_future(shared.chat("lease", ask()))
    await held.reached(shared.engine)
    paused = await pause(shared, lease_seconds=0.3, reason="update")
    assert text_of(await call) == held.text  # and nobody resumed
    assert not (await state(shared))["paused"]
    assert f"pause ran out without a resume: pause_id={paused['pause_id']} reason=update" in caplog.text
    assert (await resume(shared, 409, pause_id=paused["pause_id"]))["error"]["code"] == "pause_expired"


async def test_a_renewed_lease_does_not_run_out(shared: Running) -> None:
    paused = await pause(shared, lease_seconds=0.2)
    ends_at = time.monotonic() + 0.2
    await pause(shared, pause_id=paused["pause_id"], lease_seconds=60)
    await asyncio.sleep(max(0.0, ends_at + 0.1 - time.monotonic()))  # beyond the first lease
    assert (await state(shared))["paused"]


async def test_resuming_with_the_engine_down_is_503_and_stays_paused(shared: Running) -> None:
    held = Held()
    shared.engine.replies.append(held.reply())
    call = asyncio.ensure_future(shared.chat("engine-down", ask()))
    await held.reached(shared.engine)
    paused = await pause(shared)
    await shared.engine.down()
    response = await shared.control.post("/v1/rollout/resume", json={"pause_id": paused["pause_id"]})
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "backend_not_ready"
    assert response.headers["retry-after"] == "1"
    assert (await state(shared))["paused"]
    await shared.engine.up()
    assert (await resume(shared, pause_id=paused["pause_id"]))["status"] == "resumed"
    assert text_of(await call) == held.text


# Restarts.


@asynccontextmanager
async def restarted(engine: FakeSGLang, tmp_path: Path, **settings: Any) -> AsyncIterator[Running]:
    async with running_sidecar(engine, tmp_path / "state", **settings) as running:
        yield running


async def test_a_pause_survives_a_restart_of_the_sidecar(qwen3_dir: Path, tmp_path: Path) -> None:
    async with engine_for(qwen3_dir) as engine:
        async with restarted(engine, tmp_path) as running:
            paused = await pause(running, reason="update")
        async with restarted(engine, tmp_path) as running:
            now = await state(running)
            assert [one["pause_id"] for one in now["pauses"]] == [paused["pause_id"]]
            engine.replies.append(Reply(text="ok"))
            call = asyncio.ensure_future(running.chat("s", ask()))
            await until_states(running, "s", "running")
            assert not engine.requests
            assert (await pause(running))["status"] == "already_paused"
            await resume(running, pause_id=paused["pause_id"])
            assert text_of(await call) == "ok"
        async with restarted(engine, tmp_path) as running:
            assert not (await state(running))["paused"]


async def test_a_pause_whose_lease_ran_out_while_nobody_ran_is_over(qwen3_dir: Path, tmp_path: Path) -> None:
    async with engine_for(qwen3_dir) as engine:
        async with restarted(engine, tmp_path) as running:
            await pause(running, lease_seconds=0.001)
        async with restarted(engine, tmp_path) as running:
            assert not (await state(running))["paused"]
            engine.replies.append(Reply(text="ok"))
            assert text_of(await running.chat("s", ask())) == "ok"


async def test_a_pause_in_another_mode_is_a_conflict_that_renews_nothing(qwen3_dir: Path, tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path / 'state' / 'tito.db'}")
    await store.start()
    row = PauseRow("drained", "all", "drain", None, time.time() + 600)
    await store.save_pause(row)
    await store.close()
    async with engine_for(qwen3_dir) as engine, restarted(engine, tmp_path) as running:
        for fields in ({}, {"mode": "hold"}, {"pause_id": "drained", "mode": "abort"}):
            error = (await pause(running, 409, **fields, lease_seconds=5000))["error"]
            assert error["code"] == "pause_conflict"
            assert "in mode drain" in error["message"]
        [still] = (await state(running))["pauses"]
        assert still["lease_expires_at"] == row.lease_expires_at
        assert (await resume(running))["status"] == "resumed"
