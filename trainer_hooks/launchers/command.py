"""The `command` launcher: the agent is a subprocess of the trainer.

Promises: no shell (the command line is split once, then its placeholders are filled, so a prompt is one
argument whatever it holds); no inherited environment; all of the agent's processes are gone when `run`
returns or raises. Settings: `TITO_AGENT_COMMAND`, `TITO_AGENT_WORKDIR`, `TITO_AGENT_ENV`, `TITO_AGENT_UID`,
`TITO_AGENT_GRACE_SEC`, `TITO_AGENT_OUTPUT_BYTES`; the sample's `metadata["agent_command"]` and
`["agent_workdir"]` win. Any number may run in one event loop.
"""

from __future__ import annotations

import json
import shlex
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainer_hooks.launchers.agent_environment import agent_environment
from trainer_hooks.launchers.agent_files import AgentFileError, read_agent_file
from trainer_hooks.launchers.agent_task import AgentResult, AgentTask, TaskError, blame_the_sample
from trainer_hooks.launchers.outcomes import result_of
from trainer_hooks.launchers.placeholders import fill
from trainer_hooks.launchers.supervised_process import Limits, run_supervised
from trainer_hooks.launchers.user import AgentUser, agent_user
from trainer_hooks.slime.errors import SettingError
from trainer_hooks.slime.settings import number_setting, text_setting


async def run(task: AgentTask) -> AgentResult:
    """Run one agent to its end or its time limit. Raises `SettingError`; see `agent_task` for the rest."""
    command = command_line(task)
    user = agent_user(task.args)
    limits = Limits(
        timeout_seconds=task.timeout_seconds,
        grace_seconds=number_setting(task.args, "TITO_AGENT_GRACE_SEC", 5.0),
        output_bytes=int(number_setting(task.args, "TITO_AGENT_OUTPUT_BYTES", 2**20, least=4096)),
    )
    workdir = working_directory(task)
    result_file = task.scratch / "out" / "result.json"
    env = agent_environment(task, _prepare_scratch(task, user, result_file))
    finished = await run_supervised(command, env=env, cwd=workdir, limits=limits, uid=user.uid, gid=user.gid)
    output = {"stdout": finished.stdout, "stderr": finished.stderr}
    try:
        content = read_agent_file(result_file)
    except AgentFileError as error:
        return AgentResult("failed", error=str(error), exit_code=finished.exit_code, output=output, workdir=workdir)
    result = result_of(content, finished.exit_code, output, task.args, workdir=workdir)
    if not finished.timed_out:
        return result
    late = f"the agent had not ended after its time limit of {task.timeout_seconds:g} s (TITO_AGENT_TIMEOUT_SEC)"
    return replace(result, outcome="timeout", error=late)


def command_line(task: AgentTask) -> list[str]:
    """The command as a list: the sample's own, else `TITO_AGENT_COMMAND`. Raises `SettingError`, `TaskError`."""
    own = task.metadata.get("agent_command")
    if own:
        with blame_the_sample():
            return _command_line(own, task)
    asked = text_setting(task.args, "TITO_AGENT_COMMAND")
    if not asked:
        raise SettingError(
            "TITO_AGENT_COMMAND is not set and the sample's metadata has no agent_command; name the agent's "
            'command line, for example: python agent.py --task "{{prompt}}"'
        )
    return _command_line(asked, task)


def _command_line(asked: Any, task: AgentTask) -> list[str]:
    if isinstance(asked, str):
        try:
            words = shlex.split(asked)
        except ValueError as error:
            raise SettingError(f"the agent's command line is {asked!r}: {error}") from error
    elif isinstance(asked, list) and all(isinstance(word, str) for word in asked):
        words = asked
    else:
        raise TaskError(f"metadata['agent_command'] is {asked!r}: it must be text or a list of texts")
    if not words:
        raise SettingError(f"the agent's command line is {asked!r}: it names no program")
    return [fill(word, task) for word in words]


def working_directory(task: AgentTask) -> Path:
    """Where the agent works: the sample's directory, `TITO_AGENT_WORKDIR`, or a fresh one. Raises `TaskError`."""
    own = task.metadata.get("agent_workdir")
    asked = own or text_setting(task.args, "TITO_AGENT_WORKDIR")
    if not asked:
        return task.scratch / "work"
    with blame_the_sample() if own else nullcontext():
        path = Path(fill(str(asked), task))
    if not path.is_dir():
        raise TaskError(f"the agent's working directory {str(path)!r} does not exist; make it, or mend the setting")
    return path


def _prepare_scratch(task: AgentTask, user: AgentUser, result_file: Path) -> dict[str, str]:
    """The agent's directories and its task file; the variables that name them."""
    directories = {name: task.scratch / name for name in ("home", "tmp", "work", "out")}
    for directory in directories.values():
        directory.mkdir(mode=0o700)
    task_file = task.scratch / "task.json"
    facts = {"prompt": task.prompt, "session_id": task.session_id, "instance_id": task.instance_id}
    task_file.write_text(json.dumps(facts, ensure_ascii=False))
    if user.uid is not None:
        # Entered, not owned: its owner could put a link in the place of `out`, and we read there.
        task.scratch.chmod(0o711)
        user.give(task_file, *directories.values())
    return {
        "HOME": str(directories["home"]),
        "TMPDIR": str(directories["tmp"]),
        "TITO_TASK_FILE": str(task_file),
        "TITO_RESULT_FILE": str(result_file),
    }
