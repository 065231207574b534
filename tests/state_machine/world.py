"""One example's world: a stand-in engine and a running sidecar, alone on an event loop with a clock of its own.

The sidecar can be stopped and started again on its state. All that the checks look at inside of it is named here.
"""

import asyncio
import time
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sidecar.generation.active import ActiveCalls
from sidecar.generation.gate import Gate
from sidecar.sessions.session import Session
from sidecar.sessions.step_run import StepRun
from tests.fake_sglang import FakeSGLang
from tests.state_machine.agents import Agents
from tests.state_machine.clock import SkippingLoop
from tests.state_machine.policy import Policy
from tests.support.intercepted import INTERCEPTED
from tests.support.running import Running, engine_for, running_sidecar
from tests.support.waiting import LIVENESS

WINDOW = 2000.0
"""Seconds for which a detached step waits for its retry. Leases are longer, all else is much shorter."""
STALLS = 3
RETRIES = 3


@dataclass(frozen=True)
class Place:
    """Where examples happen. `intercepted`: agents reach the sidecar through its interceptor."""

    model_dir: Path
    state_dir: Path
    intercepted: bool = False


@dataclass(frozen=True)
class Quirks:
    """What differs between servers, and between sidecars."""

    incremental: bool = False
    version_spans: bool = True
    abort_overrun: int = 0
    partial_rollout: bool = True

    def settings(self, place: Place) -> dict[str, Any]:
        """The sidecar's settings: short of time it never is, so that only what is told to pass passes."""
        return {
            **(INTERCEPTED if place.intercepted else {}),
            "tokenizer": str(place.model_dir),  # nothing of the engine is needed to start
            "context_window": 4096,
            "ca_dir": place.state_dir / "ca",
            "partial_rollout": self.partial_rollout,
            "sampling_pin": {"temperature": 1.0},
            "retry_window": WINDOW,
            "pause_lease_seconds": 1e7,
            "heartbeat_interval": 1e7,
            "slow_reader": 1e7,
            "engine_silence": 1e7,
            "engine_retries": RETRIES,
            "max_stalled_resumes": STALLS,
            "drain_seconds": 0,
        }


@dataclass
class World:
    """`place` gives the model and whether agents are intercepted; `state` is the sidecar's own folder."""

    place: Place
    quirks: Quirks
    state: Path
    loop: SkippingLoop
    engine: FakeSGLang = field(init=False)
    policy: Policy = field(init=False)
    running: Running = field(init=False)
    agents: Agents = field(init=False)
    _stop: asyncio.Event = field(init=False)
    _serving: asyncio.Task[None] = field(init=False)

    async def open(self) -> None:
        """Engine and sidecar."""
        quirks = self.quirks
        self.engine = engine_for(
            self.place.model_dir,
            incremental=quirks.incremental,
            version_spans=quirks.version_spans,
            abort_overrun=quirks.abort_overrun,
            weight_version="w0",
        )
        await self.engine.start()
        self.policy = Policy(self.engine, self.place.model_dir)
        await self.start()

    async def close(self) -> None:
        """All of it."""
        await self.stop()
        await self.engine.stop()

    async def start(self) -> None:
        """The sidecar and its agents."""
        self._stop = asyncio.Event()
        opened: asyncio.Future[Running] = self.loop.create_future()
        self._serving = self.loop.create_task(self._serve(opened))
        await self.pass_time_until(asyncio.wait([self._serving, opened], return_when=asyncio.FIRST_COMPLETED))
        if self._serving.done():
            self._serving.result()
        self.running = opened.result()
        self.agents = Agents(self.running, self.place.intercepted)

    async def stop(self) -> None:
        """The sidecar, as SIGTERM does it; its agents' connections are closed by it."""
        self._stop.set()
        await self.pass_time_until(self._serving)
        await self.agents.close()

    async def _serve(self, opened: "asyncio.Future[Running]") -> None:
        settings = self.quirks.settings(self.place)
        async with running_sidecar(self.engine, self.state, **settings) as running:
            running.control.timeout = None
            opened.set_result(running)
            await self._stop.wait()

    async def pass_time_until[T](self, work: "Coroutine[Any, Any, T] | asyncio.Future[T]") -> T:
        """What `work` returns; its timers are not waited for."""
        task = asyncio.ensure_future(work)
        deadline = time.monotonic() + LIVENESS
        while not task.done():
            await asyncio.sleep(0.001)
            self.loop.skip(0.05)
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"never ends: {task}; what runs: {[_place(one) for one in asyncio.all_tasks()]}"
                )
        return task.result()

    async def post(self, path: str, **body: Any) -> tuple[int, dict[str, Any]]:
        """A control-plane call: status and reply."""
        response = await self.running.control.post(path, json=body)
        return response.status_code, response.json()

    # Inside the sidecar.

    @property
    def gate(self) -> Gate:
        """The sidecar's gate."""
        return self.running.sidecar.pauses.gate

    @property
    def active(self) -> ActiveCalls:
        """The sidecar's engine calls."""
        return self.running.sidecar.controller.active

    @property
    def waiting(self) -> list[tuple[str, ...]]:
        """The scopes of each call held at the gate."""
        return list(self.gate._waiting.values())

    def session(self, session_id: str) -> Session | None:
        """A session in memory."""
        return self.running.sidecar.registry._sessions.get(session_id)

    def sessions(self) -> Iterator[Session]:
        """All sessions in memory."""
        yield from self.running.sidecar.registry._sessions.values()

    def runs(self) -> Iterator[StepRun]:
        """All steps that run or wait for a retry."""
        for session in self.sessions():
            yield from session.runs.values()

    def runs_of(self, seed: int) -> list[StepRun]:
        """A call's steps that run or wait, oldest first."""
        return [run for run in self.runs() if run.draft.sampling["sampling_seed"] == seed]


def _place(task: "asyncio.Task[Any]") -> str:
    """Where a task stands: the lines of its coroutine and of those that it awaits."""
    lines: list[str] = []
    awaited: Any = task.get_coro()
    while (frame := getattr(awaited, "cr_frame", None)) is not None:
        lines.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}")
        awaited = awaited.cr_await
    return f"{task.get_name()}: {' > '.join(lines)} > {awaited}"
