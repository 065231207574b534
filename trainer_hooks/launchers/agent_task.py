"""What a launcher is given and what it returns.

A launcher is `async (task: AgentTask) -> AgentResult`. It starts one agent, waits until it has ended, and
returns how. Cancelled, it ends the agent before it passes the cancellation on. It raises `SettingError` for
what is wrong for every agent; any other exception (`TaskError` where the sample is at fault) ends this one
trajectory. Immutable data; safe everywhere.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from trainer_hooks.slime.errors import HookError, SettingError

Outcome = Literal["completed", "turn_limit", "context_overflow", "timeout", "failed"]
OUTCOMES: tuple[str, ...] = get_args(Outcome)

EARLY_STOPS = ("turn_limit", "context_overflow")
"""Outcomes that are harvested like a completed run, unless `TITO_EARLY_STOPS` says otherwise."""


class TaskError(HookError):
    """This sample cannot be run as it is: its metadata lacks something, or names what is not there."""


@contextmanager
def blame_the_sample() -> Iterator[None]:
    """What is read within comes from the sample's metadata: one row of the data set must not end the training."""
    try:
        yield
    except SettingError as error:
        raise TaskError(f"the sample's metadata: {error}") from error


@dataclass(frozen=True, slots=True)
class AgentTask:
    """One agent run. The sample's label is not in it: the agent must not see the answer."""

    session_id: str
    instance_id: str
    prompt: Any
    """Text, or a list of messages, as slime's data source has it."""
    metadata: Mapping[str, Any]
    """The sample's metadata. Launchers read keys by name; none of it reaches the agent unasked."""
    base_url: str
    """For OpenAI clients; ends in `/v1`."""
    anthropic_base_url: str
    api_key: str = field(repr=False)
    """The session key: opens this session's model endpoints and nothing else."""
    scratch: Path
    """A fresh private directory, removed once the trajectory's reward is known."""
    timeout_seconds: float
    args: Any = field(repr=False, default=None)
    """Where settings are looked up: slime's args."""
    evaluation: bool = False


@dataclass(frozen=True, slots=True)
class AgentResult:
    """How an agent ended."""

    outcome: Outcome = "completed"
    reward: Any = None
    """The `reward` of the agent's result file; trusted only with `TITO_REWARD_SOURCE=result_file`."""
    error: str | None = None
    exit_code: int | None = None
    output: Mapping[str, str] = field(default_factory=dict)
    """What it printed, by name (`stdout`, ...): bounded, and redacted before it is kept anywhere."""
    workdir: Path | None = None
    """Where it worked, if that is a directory of this machine: reward functions look at it."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """The agent's whole result file."""


Launcher = Callable[[AgentTask], Awaitable[AgentResult]]
