"""A replica as a process of its own, to be killed or stopped."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai

from tests.fake_sglang import FakeSGLang
from tests.replicas.pair import SHARED, shared_settings
from tests.support.chat import LIVENESS

STARTING = 2 * LIVENESS
"""Seconds; a start is seconds of work, and the machine may be busy."""
ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Process:
    """One `tito-sidecar serve`. `gateway` is its data plane."""

    process: asyncio.subprocess.Process
    gateway: str
    control: str
    sidecar_id: str

    def agent(self, session: str, **options: Any) -> openai.AsyncOpenAI:
        """The SDK in front of it."""
        return openai.AsyncOpenAI(base_url=f"{self.gateway}/sessions/{session}/v1", api_key="any", **options)

    async def open(self, session: str) -> None:
        """`POST /session/open`."""
        headers = {"Authorization": f"Bearer {SHARED['control_token']}"}
        async with httpx.AsyncClient(base_url=self.control, headers=headers, verify=False) as client:
            opened = await client.post("/session/open", json={"session_id": session})
            assert opened.status_code == 200

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    async def kill(self) -> None:
        """`kill -9`, and wait for its end."""
        self.signal(signal.SIGKILL)
        await self.process.wait()


@asynccontextmanager
async def process(engine: FakeSGLang, state_dir: Path, store: str, **changes: Any) -> AsyncIterator[Process]:
    """Start one; it is killed at the latest at the end."""
    settings = {
        "engine_url": engine.url,
        "listen": "127.0.0.1:0",
        "control_listen": "127.0.0.1:0",
        "state_dir": state_dir,
        **shared_settings(store, **changes),
    }
    flags = [part for name, value in settings.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    started = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sidecar.cli", "serve", *flags),
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stderr=asyncio.subprocess.PIPE,
    )
    assert started.stderr is not None
    said = ""
    draining: asyncio.Task[bytes] | None = None
    try:
        found: dict[str, str] = {}
        async with asyncio.timeout(STARTING):
            while len(found) < 3:
                line = (await started.stderr.readline()).decode()
                assert line, f"the process ended: {said}"
                said += line
                match = re.search(r"(agents|trainer|sidecar_id)[:=] *(?:base_url )?(http://[\d.:]+|\w{32})", line)
                if match:
                    found[match[1]] = match[2]
        draining = asyncio.create_task(started.stderr.read())
        yield Process(started, found["agents"], found["trainer"], found["sidecar_id"])
    except TimeoutError:
        raise AssertionError(f"the process does not start: {said}") from None
    finally:
        if started.returncode is None:
            with suppress(ProcessLookupError):  # it has just ended
                started.kill()
        await started.wait()
        if draining is not None:
            await draining
