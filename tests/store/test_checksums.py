"""A step or blob that is not as it was stored is an error, in whichever column; no other row suffers."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from sqlalchemy import Connection, text

from sidecar.store import schema
from sidecar.store.checksum import step_checksum
from sidecar.store.protocol import StoreError
from sidecar.store.sql import SqlStore
from tests.store.samples import assert_same_step, session, step

_KEYS = {"session_id", "step_id"}
_UNCOVERED = {"delivered", "checksum"}
_REWRITTEN = {"state", "sequence", "superseded_by"}
COVERED = [c.name for c in schema.step.c if c.name not in _KEYS | _UNCOVERED | _REWRITTEN]
OTHER: dict[str, Any] = {"INTEGER": 77, "BIGINT": 77, "TEXT": '["other"]', "DOUBLE": 77.5, "DOUBLE PRECISION": 77.5}


def other_value(column: str) -> Any:
    """A value that the column may hold and `samples.step` does not."""
    kind = str(schema.step.c[column].type).upper()
    return OTHER.get(kind, b"\1\0\0\0\2\0\0\0")


async def change(store: SqlStore, statement: str, **values: Any) -> None:
    """Other bytes in the database, as a bad disk leaves them."""

    def execute(connection: Connection) -> None:
        assert connection.execute(text(statement), values).rowcount

    await store.transact("damage", execute)


async def test_a_changed_column_is_an_error_of_its_session_alone(store: SqlStore) -> None:
    for name in ("s1", "s2"):
        await store.save_session(session(name))
        await store.save_step(step(name), {})
    for column in COVERED:
        await change(store, f"UPDATE step SET {column}=:value WHERE session_id='s1'", value=other_value(column))
        with pytest.raises(StoreError, match=r"session s1: a stored row cannot be read"):
            await store.load_session("s1")
        await store.save_step(step("s1"), {})
    for name in ("s1", "s2"):
        loaded = await store.load_session(name)
        assert loaded is not None
        assert_same_step(loaded.steps[0], step(name))


async def test_a_changed_blob_is_an_error(store: SqlStore) -> None:
    await store.save_session(session())
    await store.save_step(step(), {b"k": b"short", b"l": b"long" * 1000})
    for key in (b"k", b"l"):
        await change(store, "UPDATE blob SET data=:data WHERE key=:key", data=b"shorT", key=key)
        with pytest.raises(StoreError, match=r"blobs of session s1: .*damaged: .*checksum.*restore a copy"):
            await store.read_blobs("s1", [key])


async def test_a_delivered_mark_damages_nothing(store: SqlStore) -> None:
    await store.save_session(session())
    await store.save_step(step(delivered=False), {})
    store.mark_delivered("s1", "a")
    await store.save_session(session())
    loaded = await store.load_session("s1")
    assert loaded is not None
    assert loaded.steps[0].delivered


async def test_a_step_that_is_stored_again_has_the_checksum_of_what_it_is_now(store: SqlStore) -> None:
    await store.save_session(session())
    await store.save_step(step(sequence=None, state="detached"), {})
    await store.save_step(step(sequence=3, state="committed", created_at=5), {})
    loaded = await store.load_session("s1")
    assert loaded is not None
    assert_same_step(loaded.steps[0], step(sequence=3, state="committed", created_at=5.0))


async def test_a_row_that_an_older_program_stored_again_is_read(store: SqlStore) -> None:
    """It leaves the checksum as it was."""
    await store.save_session(session())
    await store.save_step(step(sequence=None, state="detached"), {})
    await change(store, "UPDATE step SET state='aborted', sequence=3, message_count=9")
    loaded = await store.load_session("s1")
    assert loaded is not None
    assert (loaded.steps[0].state, loaded.steps[0].message_count) == ("aborted", 9)


async def test_every_column_but_the_mark_is_covered() -> None:
    row = dict.fromkeys((column.name for column in schema.step.c), b"") | {"created_at": 1.0}
    whole = step_checksum(row)
    changed = {name for name in row if step_checksum({**row, name: 2.0 if name == "created_at" else b"x"}) != whole}
    assert changed == set(row) - _UNCOVERED


def test_other_values_differ() -> None:
    values = partial(getattr, step())
    assert all(values(name) != other_value(name) for name in ("message_count", "created_at", "finish_reason"))
