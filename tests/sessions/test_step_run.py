"""A step's life between its followers: what happens at the very moment at which two things meet."""

from __future__ import annotations

import asyncio
from typing import Any

from adapters.engines.base import Finish
from adapters.models.reply import Reply
from sidecar.generation.generation import Generation
from sidecar.sessions.step_run import StepRun
from sidecar.tito.records import StepRecord


class Owner:
    """A session that generates when it is told to, and says when a step is stored as detached."""

    open = True

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.on_detached: Any = None
        self.committed: list[StepRecord] = []

    async def generate(self, generation: Any, draft: Any) -> None:
        await self.go.wait()
        generation.finish = Finish("length")

    async def read_reply(self, run: StepRun) -> tuple[Reply, dict[str, Any]]:
        return Reply(content="", reasoning="", calls=()), {}

    async def commit(self, run: StepRun, record: StepRecord) -> None:
        self.committed.append(record)

    async def store_detached(self, record: StepRecord) -> None:
        self.on_detached()

    def retire(self, run: StepRun) -> None:
        pass


class Draft:
    """Of a step only what a run needs; its records are named by their state."""

    step_id, session_id = "step", "session"

    def record(self, generation: Generation, *, state: str, reply: Any) -> Any:
        class Record:
            def __init__(self) -> None:
                self.state, self.finish_reason, self.created_at = state, "length", 0.0
                self.extra: dict[str, Any] = {}

        return Record()


class Text:
    deltas: tuple[()] = ()
    consumed, stopped_at, held = 0, None, None

    def finish(self) -> None:
        pass


class Request:
    prompt_length, resumable = 1, True


class Tokens:
    """A generation without tokens."""

    def __init__(self) -> None:
        self.request, self.text = Request(), Text()
        self.listeners: set[asyncio.Event] = set()
        self.output_ids: list[int] = []
        self.finish: Finish | None = None

    def notify(self) -> None:
        for listener in self.listeners:
            listener.set()

    def read_text(self) -> None:
        pass

    async def settle_rows(self) -> None:
        pass


async def test_a_retry_at_the_very_end_of_the_window_resumes_the_step() -> None:
    owner, wake = Owner(), asyncio.Event()
    run = StepRun(owner, Draft(), Tokens(), retry_window=0)  # type: ignore[arg-type]
    loop = asyncio.get_running_loop()
    # the window's timer fires in the loop's next turn, the step notices in the one after: the retry comes between
    owner.on_detached = lambda: loop.call_soon(lambda: loop.call_soon(run.subscribe, wake))
    reader = run.subscribe(wake)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    reader.close()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not run.over
    assert not run.detached
    owner.go.set()
    assert (await asyncio.wait_for(run.wait(), 30)).step_id == "step"
    assert [record.state for record in owner.committed] == ["committed"]


async def test_a_reader_of_the_whole_reply_is_woken_by_its_end_alone() -> None:
    owner, tokens = Owner(), Tokens()
    whole, stream = asyncio.Event(), asyncio.Event()
    run = StepRun(owner, Draft(), tokens, retry_window=30)  # type: ignore[arg-type]
    readers = [run.subscribe(whole, tokens=False), run.subscribe(stream)]
    await asyncio.sleep(0)
    tokens.notify()
    assert (whole.is_set(), stream.is_set()) == (False, True)
    stream.clear()
    owner.go.set()
    await asyncio.wait_for(asyncio.gather(whole.wait(), stream.wait()), 30)
    assert run.over
    for reader in readers:
        reader.close()
