"""What is stored costs a start nothing: sessions are read when somebody asks for them, each alone."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event

from sidecar.store import open_store
from tests.fake_sglang import FakeSGLang, Reply
from tests.store.samples import session, step
from tests.support.chat import ask, completion, follow
from tests.support.running import running_sidecar

SESSIONS, STEPS = 500, 20


@contextmanager
def statements() -> Iterator[list[tuple[str, Any]]]:
    """Every SQL statement of this process with its parameters, while the block runs."""
    seen: list[tuple[str, Any]] = []

    def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        seen.append((statement, parameters))

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(Engine, "before_cursor_execute", note)


def reads(seen: list[tuple[str, Any]], table: str) -> list[Any]:
    """The parameters of the statements that read rows of a table."""
    return [parameters for statement, parameters in seen if f"FROM {table}" in statement.replace('"', "")]


async def fill(url: str) -> None:
    """10,000 steps in sessions of twenty."""
    store = open_store(url)
    await store.start()
    for first in range(0, SESSIONS, 50):
        names = [f"old-{index}" for index in range(first, first + 50)]
        await asyncio.gather(*(store.save_session(session(name)) for name in names))
        steps = [
            step(name, f"{name}-{at}", at, parent_id=None, segment_reason="root")
            for name in names
            for at in range(STEPS)
        ]
        await asyncio.gather(*(store.save_step(one, {}) for one in steps))
    await store.close()


async def test_a_start_reads_no_steps_and_a_session_reads_its_own(
    engine: FakeSGLang, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with running_sidecar(engine, tmp_path / "state") as running:
        engine.replies.append(Reply(text="One."))
        answer = completion(await running.chat("s", ask())).choices[0].message.model_dump(exclude_none=True)
    await fill(f"sqlite:///{tmp_path / 'state' / 'tito.db'}")
    began = time.monotonic()
    with statements() as seen:
        async with running_sidecar(engine, tmp_path / "state") as running:
            assert len(seen) < 100
            assert not reads(seen, "step")
            assert not reads(seen, "blob")
            assert not [one for one in reads(seen, "session") if "old-" in str(one)]
            engine.replies.append(Reply(text="Two."))
            completion(await running.chat("s", follow(ask(), answer, "On.")))
            took = time.monotonic() - began
            asked = reads(seen, "step")
            assert asked
            assert all("s" in tuple(one) for one in asked)
            assert not any("old-" in str(one) for one in asked)
    engine.assert_i1(session="s")
    with capsys.disabled():
        print(f" (first answer {took:.2f} s after the start, {SESSIONS * STEPS} steps stored) ", end="")
