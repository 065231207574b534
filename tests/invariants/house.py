"""`tito-sidecar serve` as a process of its own, to be killed and started again on the same state and ports.

One event loop; the engine lives in it and outlives the process.
"""

import asyncio
import os
import re
import signal
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import httpx

from tests.invariants.template import Template
from tests.invariants.world import CONTEXT_LENGTH, World
from tests.support.running import engine_for

REPOSITORY = Path(__file__).resolve().parents[2]
_TOKEN = "control-token-of-these-tests"
_STARTING = 60.0
"""Seconds; generous, the machine may be busy."""


class House:
    """`module` is what `python -m` runs: the sidecar's own command line, or a sabotaged one."""

    def __init__(self, model_dir: Path, state_dir: Path, module: str = "sidecar.cli") -> None:
        self._model_dir = model_dir
        self._state_dir = state_dir
        self._module = module
        self._addresses = ("127.0.0.1:0", "127.0.0.1:0")
        self._process: asyncio.subprocess.Process | None = None
        self._stack = AsyncExitStack()
        self._clients = AsyncExitStack()
        self.world: World

    async def open(self) -> None:
        """Engine and sidecar, for the first time."""
        engine = await self._stack.enter_async_context(engine_for(self._model_dir, context_length=CONTEXT_LENGTH))
        self._stack.push_async_callback(self._end)
        await self._start(engine.url)
        data, control = await self._connect()
        self.world = World(engine, Template(self._model_dir), data, control)

    async def close(self) -> None:
        """Everything, for good."""
        await self._clients.aclose()
        await self._stack.aclose()

    def kill(self) -> None:
        """SIGKILL, at once; synchronous, so that nothing runs in between."""
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):  # uvloop takes notice of an end before it tells the return code
                os.kill(self._process.pid, signal.SIGKILL)

    async def _end(self) -> None:
        self.kill()
        if self._process is not None:
            await self._process.wait()

    async def restart(self) -> None:
        """Another process on the state and the ports of the one that was killed."""
        await self._end()
        await self._start(self.world.engine.url)
        self.world.data, self.world.control = await self._connect()

    async def _start(self, engine_url: str) -> None:
        """Start, and wait until it listens: its log says where."""
        log = self._state_dir / "log"
        listen, control = self._addresses
        flags: Sequence[str] = (
            *("--engine-url", engine_url, "--state-dir", str(self._state_dir / "state")),
            *("--listen", listen, "--control-listen", control, "--control-token", _TOKEN),
            *("--sampling-pin", "temperature=1.0"),
        )
        with log.open("wb") as output:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", self._module, "serve", *flags), stdout=output, stderr=output, cwd=REPOSITORY
            )
        async with asyncio.timeout(_STARTING):
            while (found := listening(log.read_text())) is None:
                assert self._process.returncode is None, f"the sidecar did not start:\n{log.read_text()}"
                await asyncio.sleep(0.02)
        self._addresses = found

    async def _connect(self) -> tuple[httpx.AsyncClient, httpx.AsyncClient]:
        with suppress(httpx.TransportError):
            await self._clients.aclose()
        data, control = self._addresses
        token = {"Authorization": f"Bearer {_TOKEN}"}
        return (
            await self._clients.enter_async_context(httpx.AsyncClient(base_url=f"http://{data}", timeout=60)),
            await self._clients.enter_async_context(
                httpx.AsyncClient(base_url=f"http://{control}", headers=token, timeout=60)
            ),
        )


def listening(log: str) -> tuple[str, str] | None:
    """The two addresses, once both planes are up."""
    agents = re.search(r"agents:  base_url http://([^/\s]+)/v1", log)
    trainer = re.search(r"trainer: http://([^/\s,]+)", log)
    return (agents.group(1), trainer.group(1)) if agents and trainer else None
