"""Values are packed where that pays, and whatever was stored before is read as it is."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text

from sidecar.store.packed import Packer
from sidecar.store.protocol import StoreError
from sidecar.store.sql import SqlStore
from tests.store.samples import assert_same_step, session, step

MAGIC = zstandard.FRAME_HEADER
PACKER = Packer()


@given(st.binary(max_size=40) | st.binary(max_size=9).map(lambda data: data * 40), st.booleans())
def test_all_bytes_come_back_whatever_they_look_like(data: bytes, like_a_frame: bool) -> None:
    data = MAGIC + data if like_a_frame else data
    packed = PACKER.pack(data)
    assert PACKER.unpack(packed) == data
    assert PACKER.pack(packed) != packed or packed == data, "a frame is not taken for a packed value"
    assert PACKER.unpack(PACKER.pack(packed)) == packed


@given(st.binary(min_size=1, max_size=9), st.integers(128, 2000))
def test_a_packed_value_is_smaller_and_no_array(data: bytes, size: int) -> None:
    value = (data * size)[:size]
    packed = PACKER.pack(value)
    if packed != value:
        assert packed[:4] == MAGIC
        assert len(packed) % 4
        assert len(packed) < len(value)


def test_what_does_not_get_smaller_stays_as_it_is() -> None:
    noise = Random(0).randbytes(100_000)
    assert PACKER.pack(noise) == noise
    assert PACKER.pack(b"a" * 127) == b"a" * 127
    assert len(PACKER.pack(b"a" * 128)) < 64


def test_a_damaged_value_is_noticed() -> None:
    packed = bytearray(PACKER.pack(b"some words " * 100))
    packed[-8] ^= 1
    with pytest.raises(ValueError, match="damaged"):
        PACKER.unpack(bytes(packed))


IDS = np.arange(100_000, dtype=np.int32) % 997 * 151
BIG = {b"k": b'{"role":"tool","content":"' + b"result " * 100_000 + b'"}', b"n": Random(0).randbytes(300_000)}


async def test_arrays_and_messages_are_stored_packed_and_logprobs_plain(store: SqlStore) -> None:
    logprobs = -np.arange(500, dtype=np.float32)
    large = step(
        context_ids=IDS, output_ids=IDS[:500], output_logprobs=logprobs, reply=b'{"a":"' + b"b" * 999 + b'"}'
    )
    await store.save_session(session())
    await store.save_step(large, BIG)
    loaded = await store.load_session("s1")
    assert loaded is not None
    assert_same_step(loaded.steps[0], large)
    assert await store.read_blobs("s1", list(BIG)) == BIG
    columns = ("context_ids", "output_ids", "output_logprobs", "reply")
    sizes = await store.query("sizes", lambda c: c.execute(text(_sizes("step", columns))).one())
    assert sizes[0] < IDS.nbytes / 2
    assert sizes[1] < 2000
    assert sizes[2] == logprobs.nbytes
    assert sizes[3] < 100
    total = await store.query("sizes", lambda c: c.execute(text("SELECT sum(length(data)) FROM blob")).scalar_one())
    assert 300_000 < total < 310_000


def _sizes(table: str, columns: tuple[str, ...]) -> str:
    return f"SELECT {', '.join(f'length({name})' for name in columns)} FROM {table}"


async def test_rows_that_were_stored_plain_are_read(store: SqlStore) -> None:
    plain = step(context_ids=IDS[:900], reply=b'{"a":"' + b"b" * 999 + b'"}')
    await store.save_session(session())
    await store.save_step(plain, {b"k": b"v"})
    values = {"ids": plain.context_ids.tobytes(), "reply": plain.reply, "data": b"plain" * 100}

    await store.transact(
        "an older program",
        lambda c: (
            c.execute(text("UPDATE step SET context_ids=:ids, reply=:reply, checksum=NULL"), values),
            c.execute(text("UPDATE blob SET data=:data, checksum=NULL"), values),
        ),
    )
    loaded = await store.load_session("s1")
    assert loaded is not None
    assert_same_step(loaded.steps[0], plain)
    assert await store.read_blobs("s1", [b"k"]) == {b"k": values["data"]}


async def test_a_damaged_row_is_an_error_of_its_session(store: SqlStore) -> None:
    await store.save_session(session())
    await store.save_step(step(), {b"k": b"v"})
    broken = {"data": MAGIC + b"nonsense"}
    await store.transact("damage", lambda c: c.execute(text("UPDATE blob SET data=:data, checksum=NULL"), broken))
    with pytest.raises(StoreError, match=r"blobs of session s1: a packed value .*damaged.*restore a copy"):
        await store.read_blobs("s1", [b"k"])
    await store.transact("before 1.2", lambda c: c.execute(text("UPDATE blob SET checksum=NULL")))
    with pytest.raises(StoreError, match=r"blobs of session s1: a packed value .*damaged.*restore a copy"):
        await store.read_blobs("s1", [b"k"])
    await store.transact(
        "damage", lambda c: c.execute(text("UPDATE step SET output_ids=:data, checksum=NULL"), broken)
    )
    with pytest.raises(StoreError, match=r"session s1: a stored row cannot be read .*damaged"):
        await store.load_session("s1")
