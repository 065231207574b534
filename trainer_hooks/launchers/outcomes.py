"""How an agent ended, from its exit code, its result file and what it printed.

An agent tells by exit code 0 that it is done. Its result file may say more: a JSON object with `status`
(completed, turn_limit, context_overflow or failed), `reward` and `error`. Without a status, known words of
known agents are looked for in the end of the output of a run that failed. Pure functions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

from trainer_hooks.launchers.agent_task import OUTCOMES, AgentResult, Outcome
from trainer_hooks.slime.errors import SettingError
from trainer_hooks.slime.settings import text_setting

CONTEXT_OVERFLOW_PATTERN = (
    r"context_length_exceeded|maximum context length|ContextWindowExceeded|prompt is too long"
)
"""OpenAI's code and wording (the sidecar's, too; openai 3 prints only the words), litellm's exception, Anthropic's
wording."""

TURN_LIMIT_PATTERN = r"error_max_turns|MaxTurnsExceeded|LimitsExceeded"
"""Claude Code, OpenAI's Agents SDK and mini-swe-agent."""

_TAIL = 64 * 1024
_LONGEST_ERROR = 2000


class ResultFileError(ValueError):
    """The agent's result file is not what this module says."""


def read_result(content: bytes | None) -> dict[str, Any]:
    """The result file's object; `{}` where there is none or it is empty. Raises `ResultFileError`."""
    if content is None or not content.strip():
        return {}
    try:
        data = json.loads(content, parse_constant=_refuse_constant)
    except ValueError as error:
        raise ResultFileError(f"the agent's result file is no JSON: {error}") from error
    if not isinstance(data, dict):
        raise ResultFileError(f"the agent's result file holds a {type(data).__name__}; it must be an object")
    status = data.get("status")
    if status is not None and status not in OUTCOMES:
        raise ResultFileError(f"status is {status!r} in the agent's result file; known are {', '.join(OUTCOMES)}")
    return data


def outcome_of(exit_code: int | None, data: Mapping[str, Any], output: Iterable[str], args: Any) -> Outcome:
    """The outcome of a run that ended by itself. Raises `SettingError` on a pattern that is none."""
    if data.get("status") is not None:
        return cast(Outcome, data["status"])
    if exit_code == 0:
        return "completed"
    tails = [text[-_TAIL:] for text in output]
    for outcome, setting, default in (
        ("context_overflow", "TITO_CONTEXT_OVERFLOW_PATTERN", CONTEXT_OVERFLOW_PATTERN),
        ("turn_limit", "TITO_TURN_LIMIT_PATTERN", TURN_LIMIT_PATTERN),
    ):
        pattern = _pattern(args, setting, default)
        if any(pattern.search(tail) for tail in tails):
            return cast(Outcome, outcome)
    return "failed"


def result_of(
    content: bytes | None, exit_code: int | None, output: Mapping[str, str], args: Any, **fields: Any
) -> AgentResult:
    """The `AgentResult` of a run that ended by itself; a broken result file makes it a failed one."""
    try:
        data = read_result(content)
    except ResultFileError as error:
        return AgentResult(outcome="failed", error=str(error), exit_code=exit_code, output=output, **fields)
    outcome = outcome_of(exit_code, data, output.values(), args)
    problem = data.get("error")
    if problem is None and outcome == "failed":
        last = "\n".join(text.strip()[-500:] for text in output.values() if text.strip())
        problem = f"the agent ended with exit code {exit_code}; its last words: {last or 'none'}"
    return AgentResult(
        outcome=outcome,
        reward=data.get("reward"),
        error=None if problem is None else str(problem)[:_LONGEST_ERROR],
        exit_code=exit_code,
        output=output,
        data=data,
        **fields,
    )


def _pattern(args: Any, setting: str, default: str) -> re.Pattern[str]:
    text = text_setting(args, setting, default) or default
    try:
        return re.compile(text)
    except re.error as error:
        raise SettingError(f"{setting} is {text!r}, which is no regular expression: {error}") from error


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")
