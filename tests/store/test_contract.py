"""What every database must do for `sidecar.store.protocol.Store`."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from sidecar.store import open_store
from sidecar.store.protocol import Store, StoreError
from sidecar.store.sql import SqlStore
from tests.store.conftest import Database
from tests.store.samples import assert_same_step, pause, session, step


def test_the_sql_store_is_a_store() -> None:
    store: Store = open_store("sqlite:///somewhere/tito.db")
    assert isinstance(store, SqlStore)


async def test_every_field_of_a_session_comes_back(store: SqlStore) -> None:
    await store.save_session(session())
    loaded = await store.load_session("s1")
    assert loaded is not None
    assert loaded.row == session()
    assert loaded.steps == []


async def test_saving_a_session_again_replaces_every_field(store: SqlStore) -> None:
    await store.save_session(session())
    changed = session(
        instance_id=None,
        run_id=None,
        metadata={},
        sampling={},
        state="finalized",
        created_at=1.0,
        updated_at=2.0,
        finalization=None,
        drained_at=None,
    )
    await store.save_session(changed)
    loaded = await store.load_session("s1")
    assert loaded is not None
    assert loaded.row == changed


async def test_an_unknown_session_is_none(store: SqlStore) -> None:
    assert await store.load_session("never") is None


async def test_every_field_of_a_step_comes_back(store: SqlStore) -> None:
    await store.save_session(session())
    await store.save_step(step(), {})
    loaded = await store.load_session("s1")
    assert loaded is not None
    assert_same_step(loaded.steps[0], step())


async def test_saving_a_step_again_replaces_every_field(store: SqlStore) -> None:
    await store.save_session(session())
    detached = step(sequence=None, state="detached", finish_reason="aborted", reply=b"", stop_id=None)
    await store.save_step(detached, {})
    final = step(
        sequence=4,
        parent_id=None,
        segment_reason=None,
        context_ids=np.arange(9, dtype=np.int32),
        output_ids=np.arange(5, dtype=np.int32),
        output_logprobs=np.linspace(-2, 0, 5, dtype=np.float32),
        version_spans=(),
        message_hashes=(),
        tools_hash=None,
        delivered=True,
        untrainable=None,
        superseded_by=None,
        prefix=b"",
        replaced=(),
        template_kwargs={},
        forgiven=(),
        break_reason=None,
        extra={},
        sampling={"top_p": 0.5},
        created_at=5.0,
    )
    await store.save_step(final, {})
    loaded = await store.load_session("s1")
    assert loaded is not None
    assert len(loaded.steps) == 1
    assert_same_step(loaded.steps[0], final)


async def test_equal_step_ids_in_two_sessions_are_two_steps(store: SqlStore) -> None:
    for session_id in ("s1", "s2"):
        await store.save_session(session(session_id))
        await store.save_step(step(session_id, "same", template_sha256=session_id), {})
    for session_id in ("s1", "s2"):
        loaded = await store.load_session(session_id)
        assert loaded is not None
        assert [found.template_sha256 for found in loaded.steps] == [session_id]


async def test_steps_load_in_order_of_commit_and_the_others_last_by_creation(store: SqlStore) -> None:
    await store.save_session(session())
    for step_id, sequence, created_at in (
        ("late", None, 9.0),
        ("second", 1, 1.0),
        ("early", None, 3.0),
        ("eleventh", 10, 0.5),
        ("first", 0, 8.0),
    ):
        await store.save_step(step(step_id=step_id, sequence=sequence, created_at=created_at), {})
    loaded = await store.load_session("s1")
    assert loaded is not None
    assert [found.step_id for found in loaded.steps] == ["first", "second", "eleventh", "early", "late"]


async def test_a_step_of_a_session_never_saved_is_refused(store: SqlStore) -> None:
    with pytest.raises(StoreError, match="step a of session s1"):
        await store.save_step(step(), {})
    assert store.failure() is None


async def test_a_sequence_number_is_given_to_one_step_only(store: SqlStore) -> None:
    await store.save_session(session())
    await store.save_step(step(step_id="a", sequence=0), {})
    with pytest.raises(StoreError, match="sequence"):
        await store.save_step(step(step_id="b", sequence=0), {b"k": b"v"})
    loaded = await store.load_session("s1")
    assert loaded is not None
    assert [found.step_id for found in loaded.steps] == ["a"]
    with pytest.raises(StoreError):
        await store.read_blobs("s1", [b"k"])
    assert store.failure() is None


async def test_counts_are_of_all_sessions_and_steps(store: SqlStore) -> None:
    assert await store.counts() == {"sessions": 0, "steps": 0}
    for session_id in ("s1", "s2"):
        await store.save_session(session(session_id))
        await store.save_step(step(session_id), {})
    await store.save_step(step(step_id="b", sequence=1), {})
    assert await store.counts() == {"sessions": 2, "steps": 3}


async def test_a_store_opened_again_has_everything(database: Database) -> None:
    first = await database.open()
    await first.save_session(session())
    await first.save_step(step(), {b"k": b"v"})
    await first.save_pause(pause())
    await first.close()
    second = await database.open()
    loaded = await second.load_session("s1")
    assert loaded is not None
    assert loaded.row == session()
    assert_same_step(loaded.steps[0], step())
    assert await second.read_blobs("s1", [b"k"]) == {b"k": b"v"}
    assert await second.list_pauses() == [pause()]


async def test_a_session_loads_as_of_one_moment_while_it_is_discarded(store: SqlStore) -> None:
    for _ in range(20):
        await store.save_session(session())
        await store.save_step(step(), {})
        loaded, _ = await asyncio.gather(
            store.load_session("s1"), store.discard_session(session(state="discarded"))
        )
        assert loaded is not None
        assert len(loaded.steps) == (1 if loaded.row.state == "open" else 0)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"output_ids": np.array([1, 2], dtype=np.int64)}, "output_ids is int64"),
        ({"context_ids": np.zeros((2, 2), dtype=np.int32)}, "context_ids is int32 of shape"),
        ({"output_logprobs": np.array([1, 2], dtype=np.int32)}, "output_logprobs is int32"),
        ({"extra": {"what": object()}}, "not JSON serializable"),
        ({"extra": {"lone surrogate": "\ud800"}}, "surrogates"),
        ({"message_hashes": (b"x" * 256,)}, "message_hashes"),
        ({"retry_count": 2**70}, "too large|out of int32 range"),
        ({"finish_reason": "\udc00"}, "surrogates"),
        ({"created_at": float("nan")}, "created_at"),
        ({"call_id": "a\0b"}, "call_id holds a NUL"),
    ],
)
async def test_a_value_that_cannot_be_kept_fails_its_own_call(
    store: SqlStore, changes: dict[str, object], named: str
) -> None:
    await store.save_session(session())
    with pytest.raises(StoreError, match=f"step a of session s1.*({named})"):
        await store.save_step(step(**changes), {})
    assert store.failure() is None
    assert await store.counts() == {"sessions": 1, "steps": 0}


async def test_a_store_that_is_not_open_says_so(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    store = SqlStore(database.url)
    store.mark_delivered("s1", "a")
    assert "step a of session s1 was not stored: the store is not open" in caplog.text
    assert store.failure() == "the store is not open"
    for call in (store.load_session("s1"), store.save_session(session())):
        with pytest.raises(StoreError, match="not open"):
            await call
    await store.start()
    with pytest.raises(StoreError, match="already open"):
        await store.start()
    await store.close()
    await store.close()
    assert store.failure() == "the store is closed"
    with pytest.raises(StoreError, match="closed"):
        await store.save_session(session())
