"""What an agent plays against: the stand-in engine, and both planes of a sidecar in this process or another one.

Lives in one event loop that the fixture owns; hypothesis runs each example in it (`Stage.play`).
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx

from tests.fake_sglang import FakeSGLang, RecordedRequest, Reply
from tests.invariants.template import Template
from tests.support.running import engine_for, running_sidecar

CONTEXT_LENGTH = 16_384
SEED_STEP = 100
"""Seeds of different calls are so far apart: the n-th sibling's is n more."""


class World:
    """`control` sends the control plane's token. Replies are planned by the request's seed, which no two calls
    share unless their bodies are equal."""

    def __init__(
        self, engine: FakeSGLang, template: Template, data: httpx.AsyncClient, control: httpx.AsyncClient
    ) -> None:
        self.engine = engine
        self.template = template
        self.data = data
        self.control = control
        self._seeds = itertools.count(SEED_STEP, SEED_STEP)
        self._sessions = itertools.count()
        self._planned: dict[int, Reply] = {}
        engine.script = lambda request: self._planned[request.sampling_params["sampling_seed"]]

    def new_session(self) -> str:
        """An id that no example used."""
        return f"s{next(self._sessions)}"

    def new_seed(self) -> int:
        """A seed that no call used."""
        return next(self._seeds)

    def plan(self, seed: int, reply: Reply) -> None:
        """What the engine samples for requests of that seed, until planned anew."""
        self._planned[seed] = reply

    def requests(self, session_id: str, seed: int) -> list[RecordedRequest]:
        """The engine's requests for the calls of that seed, oldest first."""
        return [
            request
            for request in self.engine.recorder.session(session_id)
            if request.sampling_params["sampling_seed"] == seed
        ]

    async def view(self, session_id: str) -> dict[str, Any]:
        """`GET /session/{id}`."""
        response = await self.control.get(f"/session/{session_id}")
        assert response.status_code == 200, response.text
        viewed: dict[str, Any] = response.json()
        return viewed

    async def post(self, path: str, **body: Any) -> dict[str, Any]:
        """A control-plane call that has to succeed."""
        response = await self.control.post(path, json=body)
        assert response.status_code == 200, response.text
        reply: dict[str, Any] = response.json()
        return reply

    async def segments(self, session_id: str) -> list[dict[str, Any]]:
        """Finalize the session and read it."""
        await self.post("/session/finalize", session_id=session_id)
        read = await self.post("/trajectory/read", session_id=session_id)
        segments: list[dict[str, Any]] = read["data"]
        return segments


class Stage:
    """A world whose loop runs only while an example plays."""

    def __init__(self, model_dir: Path, state_dir: Path) -> None:
        self._model_dir = model_dir
        self._state_dir = state_dir
        self._runner = asyncio.Runner()
        self._stop = asyncio.Event()
        self.world: World
        self._runner.run(self._open())

    async def _open(self) -> None:
        opened: asyncio.Future[World] = asyncio.get_running_loop().create_future()
        self._serving = asyncio.get_running_loop().create_task(self._serve(opened))
        await asyncio.wait([self._serving, opened], return_when=asyncio.FIRST_COMPLETED)
        if self._serving.done():
            self._serving.result()
        self.world = opened.result()

    async def _serve(self, opened: asyncio.Future[World]) -> None:
        async with AsyncExitStack() as stack:
            engine = await stack.enter_async_context(engine_for(self._model_dir, context_length=CONTEXT_LENGTH))
            running = await stack.enter_async_context(
                running_sidecar(engine, self._state_dir, engine_retries=1, sampling_pin={"temperature": 1.0})
            )
            opened.set_result(World(engine, Template(self._model_dir), running.data, running.control))
            await self._stop.wait()

    def play[T](self, example: Callable[[World], Awaitable[T]]) -> T:
        """Run one example to its end, with an engine that remembers nothing of the one before."""

        async def run() -> T:
            try:
                return await example(self.world)
            finally:
                await self.world.engine.wait_idle()
                script = self.world.engine.script
                self.world.engine.reset()
                self.world.engine.script = script

        return self._runner.run(run())

    def close(self) -> None:
        """Stop sidecar and engine."""

        async def stop() -> None:
            self._stop.set()
            await self._serving

        self._runner.run(stop())
        self._runner.close()
