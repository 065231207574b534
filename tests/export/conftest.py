"""Stores with finalized sessions, the command as a user runs it, and what an export holds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from sidecar.store import open_store
from sidecar.store.protocol import SessionRow
from sidecar.tito.fingerprint import digest
from tests.support.command import Done, run_command
from tests.tito.builders import step

USER = b'{"role":"user","content":"Hi"}'


def finalized(session_id: str, *, at: float = 1000.0, **changes: Any) -> SessionRow:
    """A row of a finalized session with one segment; what the tests do not ask for is absent."""
    reply = {"finalization_id": f"f-{session_id}", "num_segments": 1}
    values: dict[str, Any] = {
        "instance_id": None,
        "run_id": None,
        "metadata": {},
        "sampling": {},
        "state": "finalized",
        "created_at": at,
        "updated_at": at,
        "finalization": {"reply": reply, "label": None, "reward": 1.0, "anchor_step_id": None},
    }
    return SessionRow(session_id=session_id, **(values | changes))


def save(url: str, rows: Iterable[SessionRow], *, steps: int = 1, tokens: int = 2) -> None:
    """Save sessions with that many steps, each with as many sampled tokens."""

    async def work() -> None:
        store = open_store(url)
        await store.start()
        listed, writes = list(rows), []
        await asyncio.gather(*map(store.save_session, listed))
        for row in listed:
            for number in range(steps):
                record = step(
                    f"step-{number}",
                    f"step-{number - 1}" if number else None,
                    session_id=row.session_id,
                    sequence=number,
                    output_ids=list(range(tokens)),
                    message_hashes=(digest(USER),),
                    message_count=2 * number + 2,
                )
                writes.append(store.save_step(record, {digest(USER): USER}))
        await asyncio.gather(*writes)
        await store.close()

    asyncio.run(work())


Cli = Callable[..., Done]


@pytest.fixture
def command() -> Cli:
    """Runs `tito-sidecar ARGUMENTS` in this process."""
    return run_command


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A store's URL; there is no such file yet."""
    return f"sqlite:///{tmp_path}/tito.db"


def parts(folder: Path) -> list[str]:
    """Names of everything in the folder that is not hidden."""
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def rows(folder: Path) -> list[dict[str, Any]]:
    """All rows of a local export, in order."""
    found: list[dict[str, Any]] = []
    for name in parts(folder):
        path = folder / name
        if path.suffix == ".jsonl":
            found += map(json.loads, path.read_text().splitlines())
        else:
            found += pyarrow.parquet.read_table(path).to_pylist()
    return found


def uids(folder: Path) -> list[str]:
    """Of all rows."""
    return [row["uid"] for row in rows(folder)]
