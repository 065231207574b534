"""A sidecar in a process of its own that dies often, and the next one on its state and ports. One event loop."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.invariants.house import REPOSITORY, House, listening
from tests.support.waiting import LIVENESS, until

TOKEN = "control-token-of-these-tests"


class Mortal(House):
    """`settings` are flags of every life, `environment` is added to that of this process."""

    def __init__(
        self, model_dir: Path, state_dir: Path, environment: Mapping[str, str] | None = None, **settings: Any
    ) -> None:
        super().__init__(model_dir, state_dir)
        self._environment = environment or {}
        self._settings = settings
        self._pid: int | None = None
        self._zygote: asyncio.subprocess.Process
        self.lives = 0

    async def open(self) -> None:
        """Engine and sidecar, for the first time."""
        self._zygote = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.recovery.zygote", str(self._model_dir)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=REPOSITORY,
            env={
                **os.environ,
                "TOKENIZERS_PARALLELISM": "false",  # its threads would not survive the fork
                "PYTHONPATH": str(REPOSITORY),
                **self._environment,
            },
        )
        self._stack.push_async_callback(self._close_zygote)
        await self._answer()
        await super().open()

    async def _close_zygote(self) -> None:
        assert self._zygote.stdin is not None
        self._zygote.stdin.close()
        await self._zygote.wait()

    async def _answer(self) -> str:
        assert self._zygote.stdout is not None
        async with asyncio.timeout(120):
            line = await self._zygote.stdout.readline()
        assert line, "the process that starts sidecars ended"
        return line.decode().strip()

    def kill(self) -> None:
        """SIGKILL, at once."""
        self.signal(signal.SIGKILL)

    def signal(self, number: signal.Signals) -> None:
        """Any signal."""
        if self._pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self._pid, number)

    async def _end(self) -> None:
        self.kill()
        await self.gone()

    async def gone(self) -> None:
        """Until the process has ended."""
        await until(lambda: not self._lives, "the end of a sidecar")
        self._pid = None

    @property
    def _lives(self) -> bool:
        return self._pid is not None and Path(f"/proc/{self._pid}").exists()

    async def restart_after_a_false_start(self, seconds: float) -> None:
        """The next process is killed so soon that it may not have listened yet; one more follows."""
        await self._end()
        await self._fork(self.world.engine.url)
        await asyncio.sleep(seconds)
        await self.restart()

    async def _fork(self, engine_url: str) -> Path:
        log = self._state_dir / "log"
        listen, control = self._addresses
        settings = {
            "engine_url": engine_url,
            "state_dir": str(self._state_dir / "state"),
            "listen": listen,
            "control_listen": control,
            "control_token": TOKEN,
            "sampling_pin": "temperature=1.0",
            **self._settings,
        }
        log.unlink(missing_ok=True)
        assert self._zygote.stdin is not None
        self._zygote.stdin.write(json.dumps({"settings": settings, "log": str(log)}).encode() + b"\n")
        self._pid = int(await self._answer())
        self.lives += 1
        return log

    async def _start(self, engine_url: str) -> None:
        log = await self._fork(engine_url)
        async with asyncio.timeout(LIVENESS):
            while (found := listening(log.read_text() if log.exists() else "")) is None:
                assert self._lives, f"the sidecar did not start:\n{log.read_text()}"
                await asyncio.sleep(0.005)
        self._addresses = found
