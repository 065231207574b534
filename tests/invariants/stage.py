"""A sidecar in this process that many hypothesis examples share; its event loop runs while one plays."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

from tests.invariants.template import Template
from tests.invariants.world import CONTEXT_LENGTH, World
from tests.support.running import engine_for, running_sidecar


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
                await self.world.forget()

        return self._runner.run(run())

    def close(self) -> None:
        """Stop sidecar and engine."""

        async def stop() -> None:
            self._stop.set()
            await self._serving

        self._runner.run(stop())
        self._runner.close()
