"""`kill -9` at any moment loses no step that was acknowledged."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

from tests.store.conftest import Database
from tests.store.killed_writer import ids_of

ROOT = Path(__file__).parents[2]
LINES_BEFORE_THE_KILL = (1, 40, 97, 150, 333)


async def acknowledged_until_killed(url: str, name: str, lines: int) -> Counter[str]:
    """Steps per session that a process had acknowledged when it was killed after that many lines."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.store.killed_writer", url, name, stdout=asyncio.subprocess.PIPE, cwd=ROOT
    )
    assert process.stdout is not None
    acknowledged: Counter[str] = Counter()
    try:
        while line := await asyncio.wait_for(process.stdout.readline(), 60):
            acknowledged[line.split()[0].decode()] += 1
            if acknowledged.total() == lines:
                process.kill()
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):  # it has just ended
                process.kill()
        await process.wait()
    return acknowledged


async def test_every_acknowledged_step_is_there_after_kill_9(database: Database) -> None:
    for round_number, lines in enumerate(LINES_BEFORE_THE_KILL):
        acknowledged = await acknowledged_until_killed(database.url, f"r{round_number}", lines)
        assert acknowledged.total() >= lines
        store = await database.open()
        for session_id, steps in acknowledged.items():
            loaded = await store.load_session(session_id)
            assert loaded is not None
            # A step may have been committed whose acknowledgement was not printed any more.
            assert steps <= len(loaded.steps) <= steps + 1
            for sequence, found in enumerate(loaded.steps):
                assert found.sequence == sequence
                assert (found.output_ids == ids_of(sequence)).all()
            keys = [sequence.to_bytes(16) for sequence in range(steps)]
            assert set((await store.read_blobs(session_id, keys)).values()) == {session_id.encode()}
        await store.close()
