"""mini-swe-agent as its users get it: installed from PyPI into an environment of its own, run as a program.

Promise: nothing of the agent is patched; it is told what to do by its documented flags and variables alone, sees no
variable of the test run, and keeps its files below the directory it is given. Concurrency: an agent is a process of
its own, so a sidecar in the caller's event loop serves it; installs in two test runs wait for each other.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

VERSION = "2.4.6"
CACHE = Path(__file__).resolve().parents[2] / ".cache" / "agents"
# Limits on liveness: of the install (a few hundred MB from PyPI), and of one run (4 s of it are imports).
INSTALL_SECONDS = 900
RUN_SECONDS = 120


@dataclass(frozen=True)
class Finished:
    """A run that ended: exit code, what was printed, and the trajectory file that mini-swe-agent itself wrote."""

    returncode: int
    output: str
    trajectory: dict[str, Any]

    @property
    def exit_status(self) -> str:
        """The agent's own word for how it ended; `Submitted` when it handed in its work."""
        status: str = self.trajectory["info"]["exit_status"]
        return status

    @property
    def api_calls(self) -> int:
        """How many replies of the model the agent asked for (retries of one are not counted)."""
        calls: int = self.trajectory["info"]["model_stats"]["api_calls"]
        return calls

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The conversation as the agent keeps it, its closing `exit` message left out."""
        return [message for message in self.trajectory["messages"] if message["role"] != "exit"]


def installed_mini_swe() -> Path:
    """The directory with the agent's programs (`mini`, `python`); installed at the first call.

    Skips the calling test, with pip's reason, where PyPI cannot be had."""
    home = CACHE / f"mini-swe-agent-{VERSION}"
    marker = home / "installed.txt"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not marker.is_file() or marker.read_text() != VERSION:
            shutil.rmtree(home, ignore_errors=True)
            _install(home)
            marker.write_text(VERSION)
    return home / "bin"


def _install(home: Path) -> None:
    venv = [sys.executable, "-m", "venv", str(home)]
    subprocess.run(venv, check=True, timeout=INSTALL_SECONDS)
    pip = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-input"]
    package = f"mini-swe-agent=={VERSION}"
    try:
        done = subprocess.run([*pip, package], capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
        problem = done.stderr.strip()[-300:] if done.returncode else None
    except subprocess.TimeoutExpired:
        problem = f"pip did not end within {INSTALL_SECONDS} s"
    if problem is not None:
        pytest.skip(f"needs PyPI once, to install {package}: {problem}")


async def run_mini_swe(
    programs: Path, work: Path, task: str, variables: dict[str, str], *, tool_calls: bool = True
) -> Finished:
    """Let `mini` solve `task` in the directory `work`, unattended. `variables` say where its model is.

    tool_calls: False takes the agent's config for models without them, which write code blocks instead."""
    home = work.with_name(f"{work.name}-home")
    home.mkdir()
    trajectory = home / "trajectory.json"
    limits = {"agent.step_limit": 20, "agent.wall_time_limit_seconds": RUN_SECONDS, "environment.timeout": 20}
    command = [str(programs / "mini"), "--model", "openai/qwen3", "--task", task, "--yolo", "--exit-immediately"]
    command += ["--output", str(trajectory), "--config", "mini.yaml" if tool_calls else "mini_textbased.yaml"]
    command += [] if tool_calls else ["--model-class", "litellm_textbased"]
    for name, value in limits.items():
        command += ["--config", f"{name}={value}"]
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=work,
        env=_environment(programs, home) | variables,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        printed, _ = await asyncio.wait_for(process.communicate(), RUN_SECONDS)
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):  # it has just ended
                process.kill()
            await process.wait()
    output = printed.decode(errors="replace")
    assert trajectory.is_file(), output
    assert process.returncode is not None
    return Finished(process.returncode, output, json.loads(trajectory.read_text()))


def _environment(programs: Path, home: Path) -> dict[str, str]:
    """An activated environment and a home of its own; the rest is documented by mini-swe-agent and litellm."""
    return {
        "PATH": f"{programs}{os.pathsep}{os.defpath}",
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        "MSWEA_GLOBAL_CONFIG_DIR": str(home / "config"),
        "MSWEA_CONFIGURED": "true",  # else it asks for a model on first use
        "MSWEA_COST_TRACKING": "ignore_errors",  # nobody sells this model, so it has no price
        "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "1",  # a call that fails ends the run instead of hiding in a retry
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else litellm fetches a price list from GitHub
        "LITELLM_MODE": "PRODUCTION",  # else litellm reads any .env file above it
    }
