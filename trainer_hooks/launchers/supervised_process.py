"""One command under `supervisor.py`: started, watched, and ended with all of its processes.

Promises that when `run_supervised` returns or raises, cancelled or not, no process of the command is left. Each
call has a process of its own; any number may run in one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainer_hooks.launchers.bounded_output import BoundedOutput
from trainer_hooks.uninterrupted import uninterrupted

_SUPERVISOR = Path(__file__).with_name("supervisor.py")
_AFTER_GRACE_SECONDS = 10.0
"""For the supervisor to kill what is left after the grace; then it is killed itself."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds, and bytes of output kept per stream."""

    timeout_seconds: float
    grace_seconds: float
    output_bytes: int


@dataclass(frozen=True, slots=True)
class Finished:
    """`exit_code` is 128 + signal where one ended it."""

    exit_code: int
    timed_out: bool
    stdout: str
    stderr: str


async def run_supervised(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    limits: Limits,
    uid: int | None = None,
    gid: int | None = None,
) -> Finished:
    """Run `command` with exactly `env`, for at most the time limit. Raises `OSError` where `cwd` is none."""
    started: list[asyncio.subprocess.Process] = []
    ids = [str(-1 if number is None else number) for number in (uid, gid)]
    arguments = ["-I", "-S", str(_SUPERVISOR), str(limits.grace_seconds), *ids, "--", *command]

    async def start() -> None:
        started.append(
            await asyncio.create_subprocess_exec(
                sys.executable,
                *arguments,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=dict(env),
                cwd=cwd,
                start_new_session=True,
            )
        )

    outputs = BoundedOutput(limits.output_bytes), BoundedOutput(limits.output_bytes)
    readers: list[asyncio.Task[None]] = []
    timed_out = False
    try:
        await uninterrupted(start())
        process = started[0]
        readers = [
            asyncio.create_task(_keep(stream, output))
            for stream, output in zip((process.stdout, process.stderr), outputs, strict=True)
        ]
        try:
            async with asyncio.timeout(limits.timeout_seconds):
                await process.wait()
        except TimeoutError:
            timed_out = True
    finally:
        if started:
            await uninterrupted(_end(started[0], readers, limits.grace_seconds))
    code = started[0].returncode
    assert code is not None, "the supervisor was waited for"
    return Finished(128 - code if code < 0 else code, timed_out, outputs[0].text(), outputs[1].text())


async def _keep(stream: asyncio.StreamReader | None, output: BoundedOutput) -> None:
    assert stream is not None
    while data := await stream.read(65536):
        output.write(data)


async def _end(
    process: asyncio.subprocess.Process, readers: Sequence[asyncio.Task[None]], grace_seconds: float
) -> None:
    """End of file on its standard input tells the supervisor to end the agent."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        async with asyncio.timeout(grace_seconds + _AFTER_GRACE_SECONDS):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    if readers:
        # All writers are dead, so the ends come at once; a process that hangs in the kernel must not hold us.
        _, unread = await asyncio.wait(readers, timeout=_AFTER_GRACE_SECONDS)
        for reader in unread:
            reader.cancel()
