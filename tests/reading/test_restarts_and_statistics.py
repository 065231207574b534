"""What is read stays the same over a restart, and the statistics of a sidecar of one's own."""

from __future__ import annotations

from pathlib import Path

from tests.fake_sglang import FakeSGLang, Reply
from tests.reading.trainer import client_of, conversation, raw
from tests.support.chat import ask
from tests.support.running import running_sidecar


async def test_redelivery_is_the_same_bytes_also_after_a_restart(engine: FakeSGLang, tmp_path: Path) -> None:
    by_id = {"max_groups": 1, "drain": True, "drain_id": "mine"}
    later = {"session_id": "s", "include_drained": True}
    async with running_sidecar(engine, tmp_path / "state") as running:
        await conversation(running, "s", "One.", "Two.", instance_id="i")
        first = [await raw(running, {**by_id, "arrays": form}) for form in ("json", "binary")]
        single = [await raw(running, {**later, "arrays": form}) for form in ("json", "binary")]
    async with running_sidecar(engine, tmp_path / "state") as running:
        assert [await raw(running, {**by_id, "arrays": form}) for form in ("json", "binary")] == first
        assert [await raw(running, {**later, "arrays": form}) for form in ("json", "binary")] == single


async def test_statistics_count_what_is_unread_and_since_when(engine: FakeSGLang, tmp_path: Path) -> None:
    async with running_sidecar(engine, tmp_path / "state") as running, client_of(running) as client:
        empty = await client.trajectory_stats()
        assert (empty["unread"], empty["oldest_unread"], empty["steps"]) == (0, None, 0)
        await conversation(running, "a", "One.")
        await conversation(running, "b", "One.", "Two.")
        await running.open("c")
        await running.open("d")
        await client.discard_session("d")
        await client.read_trajectory(session_id="a", drain=True)
        stats = await client.trajectory_stats()
        assert stats["sessions"] == {"open": 1, "finalized": 2, "discarded": 1, "expired": 0}
        assert (stats["unread"], stats["drained"], stats["steps"]) == (1, 1, 3)
        oldest = stats["oldest_unread"]
        assert oldest is not None and 0 <= oldest["age_seconds"] < 600 and oldest["finalized_at"] > 1e9
        assert stats["database_bytes"] >= empty["database_bytes"] > 0
        assert stats["retention"]["expired"] == stats["retention"]["expired_unread"] == 0


async def test_a_delivery_that_is_told_too_late_changes_nothing(engine: FakeSGLang, tmp_path: Path) -> None:
    async with running_sidecar(engine, tmp_path / "state") as running:
        await running.open("s")
        engine.replies.append(Reply(text="One."))
        step_id = (await running.chat("s", ask())).headers["x-step-id"]
        session = running.sidecar.registry._sessions["s"]
        [node] = session.trajectory
        node.record.delivered = False  # as if the agent were still reading
        await session.store.save_step(node.record, {})
        await running.finalize("s")
        before = await raw(running, {"session_id": "s"})
        session.mark_delivered(step_id)
        await running.open("another")  # committed with, or after, whatever was posted before it
        assert await raw(running, {"session_id": "s"}) == before
    async with running_sidecar(engine, tmp_path / "state") as running:
        assert await raw(running, {"session_id": "s"}) == before


async def test_any_replica_on_the_store_reads_the_same_and_drains_for_all(
    engine: FakeSGLang, tmp_path: Path
) -> None:
    store = f"sqlite:///{tmp_path}/shared.db"
    async with (
        running_sidecar(engine, tmp_path / "one", store=store) as one,
        running_sidecar(engine, tmp_path / "two", store=store) as two,
    ):
        for name in ("a", "b"):
            await conversation(one, name, "One.", instance_id="i")
        drain = {"max_groups": 3, "min_group_size": 2, "drain": True, "drain_id": "mine", "arrays": "binary"}
        first = await raw(one, drain)
        assert await raw(two, drain) == first
        async with client_of(two) as client:
            assert (await client.read_trajectory(max_groups=3, drain=True))["groups"] == []
            assert (await client.trajectory_stats())["drained"] == 2
