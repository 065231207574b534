"""The two forms of a reply's body: they say the same, one is a safetensors file, and their memory is bounded."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load

from sidecar.sessions.trajectory_body import BrokenOff, TrajectoryBody, sent_in_chunks
from sidecar.sessions.trajectory_read import TrajectoryReader
from sidecar.store.protocol import Store, StoreError
from sidecar.store.sql import SqlStore
from sidecar.tito.records import RoutedRows
from tests.reading.sessions import joined, put_branches, put_session, put_step, row
from tests.store.conftest import Database
from trainer_hooks.packed_array import unpack
from trainer_hooks.trajectory_body import read_body


async def body_of(store: Store, *session_ids: str) -> TrajectoryBody:
    if len(session_ids) == 1:
        return await TrajectoryReader(store).session(session_ids[0], None, True)
    return TrajectoryBody(store, session_ids, {"success": True, "drained": False})


async def binary_of(body: TrajectoryBody) -> bytes:
    length, pieces = await body.binary()
    data = await joined(sent_in_chunks(pieces, "test"))
    assert len(data) == length
    return data


def listed(segment: dict[str, Any]) -> dict[str, Any]:
    """A binary segment with its arrays as the lists that JSON has."""
    plain = {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in segment.items()}
    return plain | {"full_versions": list(segment["full_versions"])}


@pytest.mark.parametrize("replay", [False, True])
async def test_json_and_binary_say_the_same(store: SqlStore, replay: bool) -> None:
    await put_session(store, "s", replay=replay)
    await put_branches(store, "b", shared=10, branches=3, own=2)
    in_json = json.loads(await joined((await body_of(store, "s", "b")).json()))
    in_binary = read_body(memoryview(await binary_of(await body_of(store, "s", "b"))))
    assert [len(segment["tokens"]) for segment in in_json["data"]] == [10, 16, 16, 16]
    for from_json, from_binary in zip(in_json["data"], in_binary.pop("data"), strict=True):
        if replay and from_json["session_id"] == "s":
            rows = unpack(from_json.pop("routed_experts"))
            assert np.array_equal(from_binary["routed_experts"], rows) and rows.shape == (9, 4, 2)
            assert from_binary.pop("routed_experts").dtype == rows.dtype == np.uint16
        assert listed(from_binary) == from_json
    del in_json["data"]
    assert in_binary == in_json


async def test_the_fields_of_a_segment(store: SqlStore) -> None:
    await put_session(store, "s")
    [segment] = json.loads(await joined((await body_of(store, "s")).json()))["data"]
    assert segment["tokens"] == [1, 2, 3, 7, 8, 11, 12, 13, 7, 8]
    assert segment["full_loss_mask"] == [0, 0, 0, 1, 1] * 2
    assert segment["full_logprobs"] == [0.0, 0.0, 0.0, -0.25, -0.5] * 2
    assert segment["full_versions"] == ["-1", "-1", "-1", "v1", "v1", "-1", "-1", "-1", "v1", "v2"]
    assert segment["extra_info"]["version_spans"] == [
        {"start": 3, "end": 5, "version": "v1"},
        {"start": 8, "end": 9, "version": "v1"},
        {"start": 9, "end": 10, "version": "v2"},
    ]
    assert [one["content"] for one in segment["messages"]] == ["message 0 «é»", "r", "message 1 «é»", "r"]
    extra = segment["extra_info"]
    assert (extra["context_token_count"], extra["output_token_count"]) == (6, 4)
    assert (segment["label"], segment["reward"], extra["metadata"]) == ({"gold": 1}, 0.5, {"naïve": "✓"})


async def test_logprobs_are_the_same_doubles_in_both_forms(store: SqlStore) -> None:
    await store.save_session(row("s"))
    logprobs = np.array([-0.1, -1e-30, -17.3, -np.float32(np.pi)], np.float32)
    await put_step(store, "s", "a", None, "Hi", output_ids=[7] * 4, output_logprobs=logprobs)
    [segment] = read_body(memoryview(await binary_of(await body_of(store, "s"))))["data"]
    [other] = json.loads(await joined((await body_of(store, "s")).json()))["data"]
    assert segment["full_logprobs"].tolist() == other["full_logprobs"] == [0.0] * 3 + logprobs.tolist()


async def test_rows_that_no_engine_gave_are_told(store: SqlStore) -> None:
    await store.save_session(row("s"))
    await put_step(store, "s", "a", None, "Hi", rows=RoutedRows(0, 4, 4, 2, 1))
    await put_step(store, "s", "b", "a", "Go on", sequence=1, message_count=4, untrainable="replay_rows")
    await put_step(store, "s", "c", "b", "More", sequence=2, message_count=6, untrainable="replay_rows")
    [in_json] = json.loads(await joined((await body_of(store, "s")).json()))["data"]
    [in_binary] = read_body(memoryview(await binary_of(await body_of(store, "s"))))["data"]
    for rows in (unpack(in_json["routed_experts"]), in_binary["routed_experts"]):
        assert rows.shape == (14, 4, 2)
        assert (rows[4:] == [0, 1]).all()
    assert in_json["extra_info"]["routed_rows_missing"] == in_binary["extra_info"]["routed_rows_missing"] == 10


async def test_the_binary_body_is_what_the_safetensors_library_reads(store: SqlStore) -> None:
    await put_session(store, "s", replay=True)
    await put_session(store, "t")
    data = await binary_of(await body_of(store, "s", "t"))
    ours = read_body(memoryview(data))["data"]
    theirs = load(data)
    assert len(theirs) == 5 + 4  # rows for the first only
    for index, segment in enumerate(ours):
        for name in ("tokens", "full_loss_mask", "full_logprobs"):
            assert np.array_equal(theirs[f"{index}.{name}"], segment[name])
            assert theirs[f"{index}.{name}"].dtype == segment[name].dtype


async def test_arrays_are_aligned_read_only_views_of_the_body(store: SqlStore) -> None:
    for name in ("s", "longer-name", "x"):  # JSON of three lengths
        await put_session(store, name, replay=True)
    data = bytearray(await binary_of(await body_of(store, "s", "longer-name", "x")))
    whole = np.frombuffer(data, np.uint8)
    for segment in read_body(memoryview(data))["data"]:
        for name in ("tokens", "full_loss_mask", "full_logprobs", "routed_experts"):
            assert np.shares_memory(whole, segment[name]), f"{name} is a copy"
            assert segment[name].flags.aligned and not segment[name].flags.writeable


async def test_a_reply_without_segments_has_a_body_all_the_same(store: SqlStore) -> None:
    body = TrajectoryBody(store, [], {"success": True, "drained": True})
    assert read_body(memoryview(await binary_of(body))) == {"success": True, "drained": True, "data": []}
    assert json.loads(await joined(body.json())) == {"success": True, "drained": True, "data": []}


async def test_the_same_session_has_the_same_bytes_ever_after(database: Database) -> None:
    first = await database.open()
    await put_session(first, "s", replay=True)
    await put_branches(first, "b", shared=5, branches=4, own=1)
    before = await binary_of(await body_of(first, "s", "b")), await joined((await body_of(first, "s", "b")).json())
    await first.close()
    second = await database.open()
    after = await binary_of(await body_of(second, "s", "b")), await joined((await body_of(second, "s", "b")).json())
    assert after == before


# Memory.

SHARED, BRANCHES, OWN = 100_000, 60, 10
"""A session of 0.1 million tokens whose 60 segments are 6 million tokens: 54 MB in binary, 90 MB in JSON."""


async def drop(pieces: AsyncIterator[bytes]) -> tuple[int, int]:
    """Bytes of the body, and the largest piece."""
    total = largest = 0
    async for piece in pieces:
        total += len(piece)
        largest = max(largest, len(piece))
    return total, largest


async def json_of(body: TrajectoryBody) -> AsyncIterator[bytes]:
    return body.json()


async def binary_parts_of(body: TrajectoryBody) -> AsyncIterator[bytes]:
    return (await body.binary())[1]


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
@pytest.mark.parametrize("form", [json_of, binary_parts_of], ids=["json", "binary"])
async def test_memory_does_not_grow_with_the_segments_of_a_session(
    store: SqlStore, form: Callable[[TrajectoryBody], Any]
) -> None:
    tokens = await put_branches(store, "s", shared=SHARED, branches=BRANCHES, own=OWN, text="word " * 2_000)
    body = await body_of(store, "s")
    tracemalloc.start()
    try:
        total, largest = await drop(sent_in_chunks(await form(body), "test"))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert total > 9 * tokens
    assert largest < 2 * 2**18
    assert peak < 8 * 2**20, f"{peak / 2**20:.1f} MB for a session of {SHARED} tokens"


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_memory_does_not_grow_with_the_number_of_sessions(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sidecar.sessions.trajectory_body._KEPT_SESSIONS", 2**20)
    monkeypatch.setattr("sidecar.sessions.trajectory_body._KEPT_BLOBS", 2**18)
    names = [f"s{number}" for number in range(30)]
    for name in names:
        await put_branches(store, name, shared=50_000, branches=1, own=1, text=f"{name} " * 10_000)
    body = await body_of(store, *names)
    tracemalloc.start()
    try:
        total, _ = await drop(sent_in_chunks((await body.binary())[1], "test"))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert total > 30 * 50_000 * 9
    assert peak < 5 * 2**20, f"{peak / 2**20:.1f} MB"


# Errors.


async def test_a_message_that_is_gone_ends_the_body_before_its_end(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await put_session(store, "s")
    body = await body_of(store, "s")
    _, pieces = await body.binary()
    body._blobs.forget("s")

    async def failing(*_: object) -> dict[bytes, bytes]:
        raise StoreError("the disk is on fire")

    monkeypatch.setattr(store, "read_blobs", failing)
    with pytest.raises(BrokenOff):
        await joined(sent_in_chunks(pieces, "reading session s"))
    assert "reading session s broke off in the middle: StoreError: the disk is on fire" in caplog.text


async def test_a_session_that_changes_under_the_reader_is_told(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sidecar.sessions.trajectory_body._KEPT_SESSIONS", 0)
    await put_session(store, "s")
    _, pieces = await (await body_of(store, "s")).binary()
    await put_session(store, "s", metadata={"another": "length" * 100})
    with pytest.raises(ValueError, match="not as long as announced"):
        await joined(pieces)
