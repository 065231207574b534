"""A disk that fails under a running sidecar: calls are told 503 and why, nothing is half-written, what was
acknowledged is there afterwards, and the conversation goes on token-exact as soon as the disk does."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from sidecar.store.protocol import StoredSession, StoreError
from sidecar.store.sql import SqlStore
from sidecar.store.writer import WriterLimits
from sidecar.tito.fingerprint import digest
from tests.fake_sglang import FakeSGLang, Reply
from tests.recovery.faults import Away, ForeignLock, FullDisk, PageLimit, ReadOnly, WriteError, run, small_disk
from tests.store.samples import assert_same_step
from tests.support.chat import ask, completion, follow
from tests.support.running import Running, running_sidecar
from tests.support.waiting import until

RETRY = {"x_stainless_retry_count": "1"}
LONG = random.Random(1).randbytes(3000).hex()
"""A message that needs new pages, packed as it may be."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MB."""
    with small_disk(tmp_path / "disk", 4) as where:
        yield where


@asynccontextmanager
async def impatient(engine: FakeSGLang, state: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Running]:
    """A sidecar that waits for no lock for long and tries a failed store again at once."""
    monkeypatch.setattr("sidecar.store.backends.SqliteBackend", _quick(monkeypatch))
    monkeypatch.setattr("sidecar.store.sql.WriterLimits", lambda: WriterLimits(probe_seconds=0.05))
    async with running_sidecar(engine, state) as running:
        yield running


def _quick(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    from sidecar.store import backends

    made = backends.SqliteBackend
    return lambda path, busy_timeout: made(path, min(busy_timeout, 0.2))


async def turn(running: Running, body: dict[str, Any], said: str = "Yes.", **headers: str) -> dict[str, Any]:
    """One turn; the body of the next."""
    running.engine.replies.append(Reply(text=said))
    answer = completion(await running.chat("s", body, **headers)).choices[0].message
    return follow(body, answer.model_dump(exclude_none=True), LONG)


async def is_ready(running: Running) -> httpx.Response:
    return await running.control.get("/ready")


def refused(response: httpx.Response, words: tuple[str, ...]) -> None:
    """A 503 that the agent's library tries again and that says what is wrong."""
    assert response.status_code == 503, response.text
    assert response.headers["retry-after"] == "1"
    error = response.json()["error"]
    assert error["code"] == "store_unavailable"
    assert all(word in error["message"] for word in words), error["message"]


async def live_through(running: Running, fault: Any) -> dict[str, Any]:
    """Two turns, the fault, refusals, the mending, the retry; the body of the next turn."""
    engine = running.engine
    body = await turn(running, await turn(running, ask()))
    before = await running.view("s")
    await fault.strike(running)
    try:
        engine.replies.append(Reply(text="Lost."))
        refused(await running.chat("s", body), fault.words)
        ready = await is_ready(running)
        assert ready.status_code == 503
        assert fault.words[0] in ready.text
        asked = len(engine.requests)
        refused(await running.chat("s", body, **RETRY), fault.words)
        refused(await running.chat("new", ask()), fault.words)
        assert len(engine.requests) == asked, "the engine works for no reply that could not be given"
        assert await running.view("s") == before
        if not isinstance(fault, PageLimit):
            assert (await running.control.post("/session/finalize", json={"session_id": "s"})).status_code == 503
        assert (await running.view("s"))["state"] == "open"
    finally:
        await fault.mend(running)

    async def ready_again() -> bool:
        return (await is_ready(running)).status_code == 200

    await until(ready_again, "a sidecar that is ready again")
    return await turn(running, body, x_stainless_retry_count="2")


async def check_afterwards(engine: FakeSGLang, state: Path, body: dict[str, Any]) -> None:
    """A restart: all three steps are there, a fourth one appends to them, and one segment trains."""
    async with running_sidecar(engine, state) as running:
        await turn(running, body)
        engine.assert_i1(session="s")
        steps = (await running.view("s"))["steps"]
        assert [step["state"] for step in steps] == ["committed"] * 4
        [segment] = await running.segments("s")
        assert segment["extra_info"]["step_ids"] == [step["step_id"] for step in steps]
        last = engine.requests[-1]
        assert segment["tokens"] == last.input_ids + last.output_ids


@pytest.mark.parametrize("kind", ["pages", "write error", "lock", "read-only", "log away", "database away"])
async def test_a_fault_is_told_and_survived(
    engine: FakeSGLang, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    state = tmp_path / "state"
    faults = {
        "pages": PageLimit,
        "write error": lambda: WriteError(state),
        "lock": lambda: ForeignLock(state),
        "read-only": ReadOnly,
        "log away": lambda: Away(state, "tito.db-wal"),
        "database away": lambda: Away(state, "tito.db"),
    }
    async with impatient(engine, state, monkeypatch) as running:
        body = await live_through(running, faults[kind]())
    await check_afterwards(engine, state, body)


async def test_a_disk_that_is_really_full_is_told_and_survived(
    engine: FakeSGLang, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = disk / "state"
    async with impatient(engine, state, monkeypatch) as running:
        body = await live_through(running, FullDisk(state))
    await check_afterwards(engine, state, body)


async def test_a_directory_that_is_deleted_stops_the_sidecar_from_acknowledging(
    engine: FakeSGLang, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with impatient(engine, tmp_path / "state", monkeypatch) as running:
        body = await turn(running, ask())
        shutil.rmtree(tmp_path / "state")
        engine.replies.append(Reply(text="Lost."))
        refused(await running.chat("s", body), ("deleted or replaced", "start it again"))
        assert (await is_ready(running)).status_code == 503
        await asyncio.sleep(0.2)  # trial writes do not make it good
        refused(await running.chat("s", body), ("deleted or replaced",))


async def test_a_log_that_is_lost_under_the_sidecar_takes_no_step_with_it(
    engine: FakeSGLang, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, copy = tmp_path / "state", tmp_path / "copy"
    async with impatient(engine, state, monkeypatch) as running:
        body = await turn(running, await turn(running, ask()))
        (state / "tito.db-wal").unlink()
        engine.replies.append(Reply(text="Lost."))
        refused(await running.chat("s", body), ("tito.db-wal", "deleted or replaced"))
        copy.mkdir()
        shutil.copy(state / "tito.db", copy / "tito.db")  # what a kill now would leave
    async with running_sidecar(engine, copy) as running:
        await turn(running, body)
        engine.assert_i1(session="s")
        assert len((await running.view("s"))["steps"]) == 3


async def test_a_log_that_is_lost_between_two_lives_leaves_whole_steps(engine: FakeSGLang, tmp_path: Path) -> None:
    state, copy = tmp_path / "state", tmp_path / "copy"
    async with running_sidecar(engine, state) as running:
        await turn(running, await turn(running, ask()))
    async with running_sidecar(engine, state) as running:
        body = await turn(running, ask("Another"))
        await turn(running, body)
        copy.mkdir()
        shutil.copy(state / "tito.db", copy / "tito.db")
    async with running_sidecar(engine, copy) as running:
        steps = (await running.view("s"))["steps"]
        assert [step["state"] for step in steps] == ["committed"] * 2
        await turn(running, ask("Another"))


async def test_a_read_only_file_system_is_told_at_the_start(engine: FakeSGLang, disk: Path) -> None:
    async with running_sidecar(engine, disk / "state"):
        pass
    assert run("mount", "-o", "remount,ro", str(disk)) is None
    store = SqlStore(f"sqlite:///{disk / 'state' / 'tito.db'}")
    with pytest.raises(StoreError, match=r"(?i)read-only"):
        await store.start()


async def test_a_slow_disk_slows_then_refuses_and_loses_nothing(
    engine: FakeSGLang, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sidecar.store.sql.WriterLimits", lambda: WriterLimits(queue_writes=4))
    async with running_sidecar(engine, tmp_path / "state") as running:
        for index in range(12):
            await running.open(f"s{index}")
        backend = running.sidecar._store.backend  # type: ignore[attr-defined]
        write, go = backend.write, asyncio.Event()

        async def slow(work: Any, **options: Any) -> Any:
            await go.wait()
            return await write(work, **options)

        monkeypatch.setattr(backend, "write", slow)
        engine.replies += [Reply(text="One.")] * 12
        calls = [asyncio.ensure_future(running.chat(f"s{index}", ask())) for index in range(12)]
        await engine.wait_until(lambda: len(engine.requests) == 12 and all(one.done for one in engine.requests))
        await until(lambda: any(call.done() for call in calls), "a refusal")
        assert (await is_ready(running)).status_code == 200, "slow is not broken"
        go.set()
        replies = await asyncio.gather(*calls)
        busy = [reply for reply in replies if reply.status_code == 503]
        assert 0 < len(busy) < 12
        for reply in busy:
            refused(reply, ("wait for the store", "faster disk"))
        for index, reply in enumerate(replies):
            steps = (await running.view(f"s{index}"))["steps"]
            assert len(steps) == (reply.status_code == 200)
        engine.replies += [Reply(text="One.")] * len(busy)
        for index, reply in enumerate(replies):
            if reply.status_code == 503:
                assert (await running.chat(f"s{index}", ask(), **RETRY)).status_code == 200


async def test_bytes_overwritten_anywhere_are_an_error_or_harmless(engine: FakeSGLang, tmp_path: Path) -> None:
    """Each damage hits a copy of what a kill would leave: a start that fails says so, and one that succeeds gives
    what was stored, or an error, and no other tokens."""
    rng = random.Random(5)
    state = tmp_path / "state"
    async with running_sidecar(engine, state) as running:
        body = ask()
        for _ in range(5):
            body = {**await turn(running, body), "max_tokens": 9}
        path = state / "tito.db"
        files = {file.name: file.read_bytes() for file in state.glob("tito.db*")}
        whole = await running.sidecar._store.load_session("s")
    assert whole is not None
    closed = {path.name: path.read_bytes()}
    outcomes: Counter[str] = Counter()
    for round_number in range(80):
        left = rng.choice([files, closed, closed])  # by a kill, or by a stop: then the log is empty
        outcomes[await _damaged(tmp_path / f"copy-{round_number}", left, rng, whole)] += 1
    assert outcomes["read refused"] > 5, outcomes
    assert outcomes["as it was"] > 5, outcomes


def _damage(copy: Path, files: dict[str, bytes], rng: random.Random) -> None:
    """The files in `copy`, with some bytes of one of them overwritten."""
    copy.mkdir()
    for each, data in files.items():
        (copy / each).write_bytes(data)
    name, length = rng.choice(list(files)), rng.choice([1, 16, 512, 4096])
    with (copy / name).open("r+b") as file:
        file.seek(rng.randrange(max(1, len(files[name]) - length)))
        file.write(rng.randbytes(length))


async def _damaged(copy: Path, files: dict[str, bytes], rng: random.Random, whole: StoredSession) -> str:
    _damage(copy, {name: data for name, data in files.items() if not name.endswith("-shm")}, rng)
    store = SqlStore(f"sqlite:///{copy / 'tito.db'}")
    try:
        await store.start()
    except StoreError as error:
        assert "tito.db" in str(error)
        return "start refused"
    try:
        found = await store.load_session("s")
        keys = [key for step in whole.steps for key in step.message_hashes]
        blobs = await store.read_blobs("s", keys) if found is not None and len(found.steps) == 5 else {}
    except StoreError:
        return "read refused"
    finally:
        await store.close()
    steps = {step.step_id: step for step in whole.steps}
    for step in found.steps if found is not None else ():  # of the log's end, steps may be missing whole
        assert_same_step(replace(step, delivered=True), replace(steps[step.step_id], delivered=True))
    assert all(digest(data) == key for key, data in blobs.items())
    return "as it was" if found is not None and len(found.steps) == 5 else "steps of the log lost"
