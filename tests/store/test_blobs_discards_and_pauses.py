"""What every database must do with blobs, discarded sessions and pauses."""

from __future__ import annotations

import asyncio

import pytest

from sidecar.store.protocol import StoreError
from sidecar.store.sql import SqlStore
from tests.store.samples import pause, session, step


async def test_the_first_bytes_of_a_blob_stay(store: SqlStore) -> None:
    await store.save_session(session())
    await store.save_step(step(step_id="a", sequence=0), {b"k": b"first", b"empty": b""})
    await store.save_step(step(step_id="b", sequence=1), {b"k": b"second", b"other": b"\x00"})
    found = await store.read_blobs("s1", [b"k", b"empty", b"other", b"k"])
    assert found == {b"k": b"first", b"empty": b"", b"other": b"\x00"}


async def test_sessions_have_blobs_of_their_own(store: SqlStore) -> None:
    for session_id in ("s1", "s2"):
        await store.save_session(session(session_id))
        await store.save_step(step(session_id), {b"k": session_id.encode()})
    assert await store.read_blobs("s1", [b"k"]) == {b"k": b"s1"}
    assert await store.read_blobs("s2", [b"k"]) == {b"k": b"s2"}


async def test_a_missing_blob_is_an_error_that_names_it(store: SqlStore) -> None:
    await store.save_session(session())
    await store.save_step(step(), {b"k": b"v"})
    with pytest.raises(StoreError, match=r"s1 has no blob ab01 \(1 of 2 missing\)"):
        await store.read_blobs("s1", [b"k", b"\xab\x01"])
    assert await store.read_blobs("s1", []) == {}


async def test_thousands_of_blobs_are_read_at_once(store: SqlStore) -> None:
    blobs = {index.to_bytes(16): b"%d" % index for index in range(2500)}
    await store.save_session(session())
    await store.save_step(step(), blobs)
    assert await store.read_blobs("s1", list(blobs)) == blobs


async def test_a_discarded_session_is_a_tombstone_without_steps_and_blobs(store: SqlStore) -> None:
    for session_id in ("s1", "s2"):
        await store.save_session(session(session_id))
        for index in range(3):
            await store.save_step(step(session_id, f"{index}", index), {b"k": b"v"})
    assert await store.discard_session(session(state="discarded")) == 3
    loaded = await store.load_session("s1")
    assert loaded is not None
    assert loaded.row.state == "discarded"
    assert loaded.steps == []
    with pytest.raises(StoreError):
        await store.read_blobs("s1", [b"k"])
    other = await store.load_session("s2")
    assert other is not None
    assert len(other.steps) == 3
    assert await store.discard_session(session(state="discarded")) == 0
    assert await store.discard_session(session("unseen", state="discarded")) == 0


async def test_writes_queued_around_a_discard_keep_their_order(store: SqlStore) -> None:
    await store.save_session(session())
    _, deleted, _ = await asyncio.gather(
        store.save_step(step(step_id="before", sequence=0), {b"k": b"old"}),
        store.discard_session(session()),
        store.save_step(step(step_id="after", sequence=0), {b"k": b"new"}),
    )
    assert deleted == 1
    loaded = await store.load_session("s1")
    assert loaded is not None
    assert [found.step_id for found in loaded.steps] == ["after"]
    assert await store.read_blobs("s1", [b"k"]) == {b"k": b"new"}


async def test_pauses_are_kept_replaced_and_forgotten(store: SqlStore) -> None:
    assert await store.list_pauses() == []
    await store.save_pause(pause("p1"))
    await store.save_pause(pause("p2", reason=None))
    await store.save_pause(pause("p1", scope="all", mode="drain", lease_expires_at=1.0))
    assert await store.list_pauses() == [
        pause("p1", scope="all", mode="drain", lease_expires_at=1.0),
        pause("p2", reason=None),
    ]
    await store.delete_pauses(["p1", "unknown"])
    assert await store.list_pauses() == [pause("p2", reason=None)]
    await store.delete_pauses([])
    await asyncio.gather(store.delete_pauses(["p2"]), store.save_pause(pause("p2", mode="hold")))
    assert await store.list_pauses() == [pause("p2", mode="hold")]
