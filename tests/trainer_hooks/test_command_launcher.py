"""The command launcher: what an agent gets, what it leaves, and that none of its processes outlives it."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import LIVENESS, until
from tests.trainer_hooks.dispatching import python_command
from tests.trainer_hooks.slime_stand_in import make_args
from trainer_hooks.launchers.agent_task import AgentTask, TaskError
from trainer_hooks.launchers.command import command_line, run
from trainer_hooks.slime.errors import SettingError


def make_task(tmp_path: Path, command: Any = None, **changes: Any) -> AgentTask:
    """A task whose agent is `command`; other fields and settings by name."""
    fields = {name: changes.pop(name) for name in ("prompt", "metadata", "timeout_seconds") if name in changes}
    scratch = tmp_path / "scratch"
    scratch.mkdir(mode=0o700)
    return AgentTask(
        session_id="s-1",
        instance_id="task-7",
        base_url="http://h/v1",
        anthropic_base_url="http://h",
        api_key="tito-key.mac",
        scratch=scratch,
        args=make_args(**({"tito_agent_command": command, "tito_agent_grace_sec": 0.2} | changes)),
        **({"prompt": "Do it.", "metadata": {}, "timeout_seconds": LIVENESS} | fields),
    )


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A directory that every user can enter; pytest's own are closed."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


# A child in the agent's group, a grandchild in a session of its own that ignores SIGTERM, and one that lost its
# parent: each writes its pid, then sleeps.
FAMILY = """
import os, signal, sys, time
def sleep_as(name):
    with open(f"{name}.tmp", "w") as file:
        file.write(str(os.getpid()))
    os.rename(f"{name}.tmp", f"{name}.pid")
    time.sleep(1000)
if os.fork() == 0:
    if os.fork() == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if os.fork() == 0:
            sleep_as("orphan")
        if os.fork() == 0:
            sleep_as("grandchild")
        os._exit(0)
    sleep_as("child")
"""
WAIT = "import time\ntime.sleep(1000)\n"


async def family(directory: Path) -> list[int]:
    """The pids of FAMILY, once all are there."""
    names = ("child", "grandchild", "orphan")
    await until(lambda: all((directory / f"{name}.pid").exists() for name in names), "the agent's processes")
    pids = [int((directory / f"{name}.pid").read_text()) for name in names]
    assert all(is_alive(pid) for pid in pids)
    return pids


async def test_no_process_of_an_agent_outlives_its_cancellation(tmp_path: Path) -> None:
    task = make_task(tmp_path, python_command(FAMILY + WAIT))
    running = asyncio.create_task(run(task))
    pids = await family(task.scratch / "work")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert [pid for pid in pids if is_alive(pid)] == []


async def test_no_process_of_an_agent_outlives_its_time_limit(tmp_path: Path) -> None:
    task = make_task(tmp_path, python_command(FAMILY + WAIT), timeout_seconds=3.0)
    running = asyncio.create_task(run(task))
    pids = await family(task.scratch / "work")
    result = await running
    assert result.outcome == "timeout"
    assert "time limit of 3 s" in (result.error or "")
    assert [pid for pid in pids if is_alive(pid)] == []


async def test_an_agent_that_ends_by_itself_leaves_no_process_behind(tmp_path: Path) -> None:
    wait = "while not os.path.exists('orphan.pid') or not os.path.exists('child.pid'): time.sleep(0.01)\n"
    task = make_task(tmp_path, python_command(FAMILY + wait + "print('done')"))
    result = await run(task)
    assert (result.outcome, result.output["stdout"]) == ("completed", "done\n")
    pids = [int((task.scratch / "work" / f"{name}.pid").read_text()) for name in ("child", "orphan")]
    assert [pid for pid in pids if is_alive(pid)] == []


async def test_no_process_of_an_agent_outlives_a_trainer_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    trainer = (
        "import asyncio, pathlib, types\n"
        "from trainer_hooks.launchers import agent_task, command\n"
        f"args = types.SimpleNamespace(tito_agent_command={python_command(FAMILY + WAIT)!r})\n"
        f"scratch = pathlib.Path({str(tmp_path)!r}) / 'scratch'\n"
        "task = agent_task.AgentTask('s', 'i', '', {}, '', '', '', scratch, 99, args)\n"
        "asyncio.run(command.run(task))\n"
    )
    root = Path(__file__).parents[2]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", trainer, env={**os.environ, "PYTHONPATH": str(root)}, cwd=root
    )
    pids = await family(tmp_path / "scratch" / "work")
    process.send_signal(signal.SIGKILL)
    await process.wait()
    await until(lambda: not any(is_alive(pid) for pid in pids), "the end of the dead trainer's agents")


async def test_an_agent_may_end_gracefully(tmp_path: Path) -> None:
    code = (
        "import signal\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])\n"
        "open('ready', 'w'); signal.sigwait([signal.SIGTERM]); open('bye', 'w')"
    )
    task = make_task(tmp_path, python_command(code), tito_agent_grace_sec=LIVENESS)
    running = asyncio.create_task(run(task))
    await until((task.scratch / "work" / "ready").exists, "the agent")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (task.scratch / "work" / "bye").exists()


async def test_the_environment_is_built_and_nothing_is_inherited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden")
    monkeypatch.setenv("TITO_CONTROL_TOKEN", "hidden")
    monkeypatch.setenv("SHOWN", "yes")
    code = "import json, os; print(json.dumps(dict(os.environ)))"
    task = make_task(
        tmp_path,
        python_command(code),
        tito_agent_env="PATH,SHOWN",
        metadata={"agent_env": {"IMAGE": "{{metadata.image}}"}, "image": "img:1"},
    )
    result = await run(task)
    found = json.loads(result.output["stdout"])
    scratch = str(task.scratch)
    assert found == {
        "PATH": os.environ["PATH"],
        "SHOWN": "yes",
        "IMAGE": "img:1",
        "HOME": f"{scratch}/home",
        "TMPDIR": f"{scratch}/tmp",
        "TITO_TASK_FILE": f"{scratch}/task.json",
        "TITO_RESULT_FILE": f"{scratch}/out/result.json",
        "OPENAI_BASE_URL": "http://h/v1",
        "OPENAI_API_BASE": "http://h/v1",
        "OPENAI_API_KEY": "tito-key.mac",
        "ANTHROPIC_BASE_URL": "http://h",
        "ANTHROPIC_API_KEY": "tito-key.mac",
        "TITO_SESSION_ID": "s-1",
        "TITO_INSTANCE_ID": "task-7",
    } | ({"LC_CTYPE": "C.UTF-8"} if "LC_CTYPE" in found else {})  # Python's own doing
    assert (task.scratch / "work").is_dir()
    facts = json.loads((task.scratch / "task.json").read_text())
    assert facts == {"prompt": "Do it.", "session_id": "s-1", "instance_id": "task-7"}


@pytest.mark.parametrize("where", ["tito_agent_env", "metadata"])
async def test_a_control_token_cannot_be_given_to_an_agent(tmp_path: Path, where: str) -> None:
    settings: dict[str, Any] = (
        {"tito_agent_env": "PATH,TITO_CONTROL_TOKEN"}
        if where == "tito_agent_env"
        else {"metadata": {"agent_env": {"TITO_CONTROL_TOKEN": "x"}}}
    )
    with pytest.raises(SettingError, match="TITO_CONTROL_TOKEN, which no agent may see"):
        await run(make_task(tmp_path, "true", **settings))


def test_a_prompt_is_one_argument_whatever_it_holds(tmp_path: Path) -> None:
    prompt = "a 'b' \"c\" $(rm -rf /) {{session_id}} \n;"
    task = make_task(tmp_path, 'agent --task "{{prompt}}" --id={{instance_id}} {x} {{.Go}} $HOME', prompt=prompt)
    assert command_line(task) == ["agent", "--task", prompt, "--id=task-7", "{x}", "{{.Go}}", "$HOME"]


def test_the_sample_s_own_command_wins_and_may_be_a_list(tmp_path: Path) -> None:
    task = make_task(tmp_path, "agent", metadata={"agent_command": ["mine", "{{metadata.n}}"], "n": 3}, prompt=[])
    assert command_line(task) == ["mine", "3"]


@pytest.mark.parametrize(
    ("command", "metadata", "error", "text"),
    [
        (None, {}, SettingError, "TITO_AGENT_COMMAND is not set"),
        ("agent '", {}, SettingError, "No closing quotation"),
        ("agent {{promt}}", {}, SettingError, "{{promt}} names nothing; known are prompt"),
        ("agent {{api_key}}", {}, SettingError, "{{api_key}} names nothing"),
        ("agent {{metadata.image}}", {"repo": "r"}, TaskError, "with KEY one of repo"),
        (None, {"agent_command": 3}, TaskError, "must be text or a list of texts"),
        ("agent", {"agent_command": "echo it's"}, TaskError, "No closing quotation"),
        ("agent", {"agent_command": " "}, TaskError, "names no program"),
        ("agent", {"agent_command": ["{{promt}}"]}, TaskError, "{{promt}} names nothing"),
        ("agent", {"agent_command": []}, None, ""),
    ],
)
def test_a_command_line_that_makes_no_sense_is_refused(
    tmp_path: Path, command: Any, metadata: Any, error: Any, text: str
) -> None:
    task = make_task(tmp_path, command, metadata=metadata)
    if error is None:
        assert command_line(task) == ["agent"]
        return
    with pytest.raises(error) as caught:
        command_line(task)
    assert text in str(caught.value)


async def test_a_working_directory_comes_from_the_sample(tmp_path: Path) -> None:
    (tmp_path / "repo-9").mkdir()
    metadata = {"agent_workdir": f"{tmp_path}/repo-{{{{metadata.n}}}}", "n": 9}
    task = make_task(tmp_path, python_command("import os; print(os.getcwd())"), metadata=metadata)
    result = await run(task)
    assert result.output["stdout"].strip() == str(result.workdir) == str(tmp_path / "repo-9")


async def test_a_working_directory_that_is_not_there_fails_this_sample(tmp_path: Path) -> None:
    task = make_task(tmp_path, "true", metadata={"agent_workdir": f"{tmp_path}/none"})
    with pytest.raises(TaskError, match="none' does not exist"):
        await run(task)


@pytest.mark.parametrize("metadata", [{"agent_workdir": "/{{promt}}"}, {"agent_env": {"A": "{{promt}}"}}])
async def test_a_placeholder_of_one_row_of_the_data_set_does_not_end_the_training(
    tmp_path: Path, metadata: dict[str, Any]
) -> None:
    with pytest.raises(TaskError, match=r"the sample's metadata: .*promt.* names nothing"):
        await run(make_task(tmp_path, "true", metadata=metadata))


async def test_output_is_bounded_and_keeps_its_beginning_and_its_end(tmp_path: Path) -> None:
    code = "print('first'); print('x' * 1000000); print('last')"
    task = make_task(tmp_path, python_command(code), tito_agent_output_bytes=4096)
    result = await run(task)
    text = result.output["stdout"]
    assert text.startswith("first\nxxx") and text.endswith("xxx\nlast\n")
    assert "[... 995916 bytes left out ...]" in text
    assert len(text) < 4200


@pytest.mark.parametrize(
    ("code", "outcome", "words"),
    [
        ("raise SystemExit(3)", "failed", "exit code 3"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "failed", "exit code 139"),
        ('write(\'{"status": "turn_limit", "reward": 1}\'); raise SystemExit(1)', "turn_limit", None),
        ('write(\'{"status": "failed", "error": "the tool broke"}\')', "failed", "the tool broke"),
        ('write(\'{"status": "won"}\')', "failed", "status is 'won'"),
        ("write('[1]')", "failed", "holds a list"),
        ("write('{\"reward\": NaN}')", "failed", "NaN is no JSON number"),
        ("write('x' * 2000000)", "failed", "more than 1048576 bytes"),
        ("os.symlink('/etc/passwd', path)", "failed", "must be a plain file"),
        ("os.mkfifo(path)", "failed", "is no plain file"),
        ("write('')", "completed", None),
    ],
)
async def test_how_an_agent_ended_is_told_by_its_exit_code_and_its_result_file(
    tmp_path: Path, code: str, outcome: str, words: str | None
) -> None:
    start = "import os; path = os.environ['TITO_RESULT_FILE']; write = lambda t: open(path, 'w').write(t); "
    result = await run(make_task(tmp_path, python_command(start + code)))
    assert result.outcome == outcome
    assert (words in (result.error or "")) if words else result.error is None


async def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    result = await run(make_task(tmp_path, "no-such-agent --x"))
    assert (result.outcome, result.exit_code) == ("failed", 127)
    assert "cannot start 'no-such-agent'" in (result.error or "")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run an agent as another user")
async def test_an_agent_runs_as_another_user_and_owns_its_files(open_path: Path) -> None:
    secret = open_path / "secret"
    secret.write_text("trainer's")
    secret.chmod(0o600)
    script = (
        f"id -u; id -g; echo >$TITO_RESULT_FILE; echo >made; test -r $TITO_TASK_FILE && cat {secret} || echo denied"
    )
    task = make_task(open_path, f"sh -c {shlex.quote(script)}", tito_agent_uid="54321:54322")
    result = await run(task)
    assert result.output["stdout"].splitlines() == ["54321", "54322", "denied"], result.output
    assert (task.scratch / "work" / "made").stat().st_uid == 54321
    assert task.scratch.stat().st_uid == 0, "else the agent could replace what is in it"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run an agent as another user")
async def test_an_agent_of_another_user_is_killed_too(open_path: Path) -> None:
    stubborn = "trap '' TERM; echo $$ >tmp; mv tmp grandchild.pid; while :; do sleep 1; done"
    script = f"setsid sh -c {shlex.quote(stubborn)} & wait"
    task = make_task(open_path, f"sh -c {shlex.quote(script)}", tito_agent_uid="54321")
    running = asyncio.create_task(run(task))
    written = task.scratch / "work" / "grandchild.pid"
    await until(written.exists, "the agent's grandchild")
    pid = int(written.read_text())
    assert written.stat().st_uid == 54321
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not is_alive(pid)


@pytest.mark.parametrize("value", ["root", "0", "5:x", "-1"])
async def test_a_user_that_makes_no_sense_is_refused(tmp_path: Path, value: str) -> None:
    with pytest.raises(SettingError, match="TITO_AGENT_UID"):
        await run(make_task(tmp_path, "true", tito_agent_uid=value))


def test_the_supervisor_imports_nothing_but_the_standard_library() -> None:
    path = Path(__file__).parents[2] / "trainer_hooks" / "launchers" / "supervisor.py"
    done = subprocess.run(
        [sys.executable, "-I", "-S", path, "0", "-1", "-1", "--", "true"],
        stdin=subprocess.DEVNULL,
        timeout=LIVENESS,
    )
    assert done.returncode in (0, 128 + signal.SIGTERM, 128 + signal.SIGKILL), "standard input was at its end"
