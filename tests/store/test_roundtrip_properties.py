"""Whatever a record may hold comes back as it was."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sqlalchemy import Connection

from sidecar.store.protocol import SessionRow
from sidecar.store.schema import meta, metadata
from sidecar.store.sql import SqlStore
from sidecar.tito.records import BreakReason, Forgiven, RoutedRows, StepRecord, VersionSpan
from tests.store.conftest import DATABASES
from tests.store.samples import assert_same_step
from tests.support.postgres import Postgres

ANY = st.characters(exclude_categories=["Cs"])  # astral characters included
TEXT = st.text(ANY.filter(lambda character: character != "\0"), max_size=12)
WITH_NUL = st.text(ANY, max_size=12)
NUMBERS = st.integers(0, 2**31 - 1)
TIMES = st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | TIMES | WITH_NUL,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WITH_NUL, inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.dictionaries(WITH_NUL, JSON, max_size=3)
IDS = hnp.arrays(np.int32, st.integers(0, 6))
LOGPROBS = hnp.arrays(np.float32, st.integers(0, 6))  # NaN payloads and signed zeros are bits like others
SESSIONS = st.builds(
    SessionRow,
    session_id=TEXT,
    instance_id=st.none() | TEXT,
    run_id=st.none() | TEXT,
    metadata=OBJECTS,
    sampling=OBJECTS,
    state=st.sampled_from(["open", "finalized"]),  # of the others the store gives no steps
    created_at=TIMES,
    updated_at=TIMES,
    finalization=st.none() | OBJECTS,
    drained_at=st.none() | TIMES,
)
STEPS = st.builds(
    StepRecord,
    step_id=TEXT,
    session_id=TEXT,
    begun=NUMBERS,
    sequence=st.none() | NUMBERS,
    parent_id=st.none() | TEXT,
    segment_reason=st.none() | TEXT,
    context_ids=IDS,
    output_ids=IDS,
    output_logprobs=LOGPROBS,
    version_spans=st.lists(st.builds(VersionSpan, NUMBERS, NUMBERS, TEXT), max_size=3).map(tuple),
    finish_reason=TEXT,
    stop_id=st.none() | NUMBERS,
    message_hashes=st.lists(st.binary(max_size=255), max_size=4).map(tuple),
    reply=st.binary(max_size=20),
    prompt_chain=st.binary(max_size=16),
    prompt_exact_chain=st.binary(max_size=16),
    chain=st.binary(max_size=16),
    exact_chain=st.binary(max_size=16),
    message_count=NUMBERS,
    system_hash=st.binary(max_size=16),
    tools_hash=st.none() | st.binary(max_size=16),
    template_sha256=TEXT,
    tokenizer_sha256=st.none() | TEXT,
    tokenizer=st.none() | TEXT,
    call_id=TEXT,
    body_hash=st.binary(max_size=32),
    retry_count=NUMBERS,
    sampling=OBJECTS,
    state=st.sampled_from(["detached", "committed", "aborted"]),
    delivered=st.booleans(),
    untrainable=st.none() | TEXT,
    superseded_by=st.none() | TEXT,
    routed_rows=st.none() | st.builds(RoutedRows, NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS),
    prefix=st.binary(max_size=20),
    replaced=st.lists(TEXT, max_size=3).map(tuple),
    template_kwargs=OBJECTS,
    forgiven=st.lists(st.builds(Forgiven, NUMBERS, TEXT, TEXT), max_size=3).map(tuple),
    break_reason=st.none() | st.builds(BreakReason, TEXT, st.none() | NUMBERS, st.none() | TEXT),
    created_at=TIMES,
    extra=OBJECTS,
)


@dataclass
class Opened:
    """One store for all examples, and the loop that it lives in: opening one costs more than what is tested."""

    runner: asyncio.Runner
    store: SqlStore


@pytest.fixture(scope="module", params=DATABASES)
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    with asyncio.Runner() as runner:
        if request.param == "sqlite":
            url = f"sqlite:///{tmp_path_factory.mktemp('examples')}/tito.db"
        else:
            server: Postgres = request.getfixturevalue("postgres")
            url = runner.run(server.new_url())
        store = SqlStore(url)
        runner.run(store.start())
        yield Opened(runner, store)
        runner.run(store.close())


BLOBS = st.dictionaries(st.binary(max_size=32), st.binary(max_size=50), max_size=4)


async def check_roundtrip(store: SqlStore, row: SessionRow, step: StepRecord, blobs: dict[bytes, bytes]) -> None:
    step.session_id = row.session_id
    await store.backend.write(empty)
    await asyncio.gather(store.save_session(row), store.save_step(step, blobs))
    loaded = await store.load_session(row.session_id)
    assert loaded is not None
    assert loaded.row == row
    assert_same_step(loaded.steps[0], step)
    assert await store.read_blobs(row.session_id, list(blobs)) == blobs


def empty(connection: Connection) -> None:
    for table in reversed(metadata.sorted_tables):
        if table is not meta:
            connection.execute(table.delete())


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(row=SESSIONS, step=STEPS, blobs=BLOBS)
def test_any_record_comes_back_as_it_was(
    opened: Opened, row: SessionRow, step: StepRecord, blobs: dict[bytes, bytes]
) -> None:
    opened.runner.run(check_roundtrip(opened.store, row, step, blobs))
