"""What a rollout leaves for debugging."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fake_sglang import Reply
from tests.support.running import Running
from tests.trainer_hooks.builders import make_segment, make_template
from tests.trainer_hooks.dispatching import SAMPLING, dispatch_args, plain_agent, python_command, task_sample
from tests.trainer_hooks.slime_stand_in import make_args
from trainer_hooks.redaction import Redactor
from trainer_hooks.slime.agents import trajectory_log
from trainer_hooks.slime.agents.trajectory_log import TrajectoryRecord, write_trajectory
from trainer_hooks.slime.blackbox_dispatch import generate
from trainer_hooks.token_versions import TokenVersions


def record(**changes: Any) -> TrajectoryRecord:
    """A trajectory of one segment."""
    fields: dict[str, Any] = {
        "session_id": "s1",
        "instance_id": "a/task",
        "facts": {"index": 3},
        "segments": [make_segment()],
        "samples": [make_template(rollout_routed_experts=np.zeros((2, 3, 4)), tokens=[1, 2])],
    }
    return TrajectoryRecord(**(fields | changes))


def files(directory: Path) -> dict[str, Any]:
    """Every file of a log directory: JSON parsed, logs as text."""
    return {
        path.name: json.loads(path.read_text()) if path.suffix == ".json" else path.read_text()
        for path in directory.iterdir()
    }


def test_a_trajectory_is_a_directory_with_its_segments_and_samples(tmp_path: Path) -> None:
    args = make_args(tito_log_dir=str(tmp_path / "logs"))
    written = write_trajectory(args, record(output={"stdout": "hello"}), Redactor())
    assert written is not None and written.parent == tmp_path / "logs"
    assert written.name.endswith("-ok-a_task-s1")
    found = files(written)
    assert found.keys() == {"trajectory.json", "samples.json", "agent-stdout.log"}
    assert found["trajectory.json"]["segments"] == [make_segment()]
    assert found["trajectory.json"]["index"] == 3
    assert found["samples.json"][0]["tokens"] == [1, 2]
    assert found["samples.json"][0]["rollout_routed_experts"] == {"shape": [2, 3, 4]}
    assert written.stat().st_mode & 0o077 == 0


def test_arrays_of_a_binary_read_are_told_as_json(tmp_path: Path) -> None:
    versions = TokenVersions([("-1", 2), ("7", 1)])
    read = {
        "tokens": np.array([1, 2, 3], np.int32),
        "full_versions": versions,
        "routed_experts": np.zeros((2, 48, 8), np.uint8),
    }
    written = write_trajectory(make_args(tito_log_dir=str(tmp_path)), record(segments=[read]), Redactor())
    assert written is not None
    [segment] = files(written)["trajectory.json"]["segments"]
    assert segment == {
        "tokens": [1, 2, 3],
        "full_versions": {"length": 3, "spans": versions.spans},
        "routed_experts": {"shape": [2, 48, 8]},
    }


def test_a_failure_says_why(tmp_path: Path) -> None:
    args = make_args(tito_log_dir=str(tmp_path))
    written = write_trajectory(
        args, record(error={"reason": "agent_failed", "message": "api_key=0123456789"}), Redactor()
    )
    assert written is not None and "-failed-" in written.name
    assert files(written)["error.json"] == {"reason": "agent_failed", "message": "api_key=[redacted]"}


def test_ids_go_where_the_messages_held_a_secret(tmp_path: Path) -> None:
    args = make_args(tito_log_dir=str(tmp_path))
    messages = [{"role": "user", "content": "env: OPENAI_API_KEY=tok-of-mine"}]
    segment = make_segment(messages=messages, full_logprobs=np.zeros(4, np.float32))
    sample = make_template(tokens=[1, 2], response="tok-of-mine", rollout_log_probs=[-1.0])
    written = write_trajectory(args, record(segments=[segment], samples=[sample]), Redactor(["tok-of-mine"]))
    assert written is not None
    found = files(written)
    assert found["trajectory.json"]["secrets_found"] is True
    assert "4 long" in found["trajectory.json"]["segments"][0]["tokens"]
    assert "2 long" in found["samples.json"][0]["tokens"]
    assert "tok-of-mine" not in json.dumps(found)


def test_only_the_newest_are_kept_and_other_files_are_left_alone(tmp_path: Path) -> None:
    args = make_args(tito_log_dir=str(tmp_path), tito_log_keep=3)
    (tmp_path / "notes").mkdir()
    written = [write_trajectory(args, record(session_id=f"s{i}"), Redactor()) for i in range(5)]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["notes", *[path.name for path in written[2:] if path]]
    )


def test_nothing_is_written_where_no_directory_is_named(tmp_path: Path) -> None:
    assert write_trajectory(make_args(), record(), Redactor()) is None


@pytest.mark.parametrize("trouble", ["no directory", "full disk", "broken sample", "bad setting"])
def test_trouble_costs_a_warning_and_leaves_no_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, trouble: str
) -> None:
    args = make_args(tito_log_dir=str(tmp_path / "logs"))
    broken = record()
    if trouble == "no directory":
        (tmp_path / "logs").write_text("a file")
    elif trouble == "full disk":
        monkeypatch.setattr(
            trajectory_log.Path, "write_text", lambda *_, **__: (_ for _ in ()).throw(OSError(28, "full"))
        )
    elif trouble == "broken sample":
        broken = record(samples=[object()])
    else:
        args.tito_log_keep = "many"
    assert write_trajectory(args, broken, Redactor()) is None
    assert "trajectory_log_failed session=s1" in caplog.text
    if trouble != "no directory":
        assert list((tmp_path / "logs").glob("*")) == [] and list((tmp_path / "logs").glob(".*")) == []


async def test_a_dispatched_run_leaves_its_log_without_its_key(sidecar: Running, tmp_path: Path) -> None:
    sidecar.engine.replies.extend([Reply(text="First."), Reply(text="Second.")])
    command = python_command("import os; print('key', os.environ['OPENAI_API_KEY'])")
    logs = tmp_path / "logs"
    args = dispatch_args(sidecar, tmp_path, tito_log_dir=str(logs), tito_agent_command=plain_agent(2))
    [sample] = await generate(args, task_sample(), SAMPLING)
    [ok] = logs.iterdir()
    found = files(ok)
    assert found["trajectory.json"]["segments"][0]["tokens"] == sample.tokens
    assert found["agent-stdout.log"] == "said: First.\nsaid: Second.\n"
    args.tito_agent_command = command
    [dead] = await generate(args, task_sample(), SAMPLING)
    [failed] = [path for path in logs.iterdir() if path != ok]
    found = files(failed)
    assert found["error.json"]["reason"] == dead.metadata["abort_reason"] == "no_steps"
    assert found["agent-stdout.log"] == "key [redacted]\n"
    assert sidecar.sidecar.control_token not in json.dumps(found)


async def test_a_run_of_which_nothing_trains_says_so(
    sidecar: Running, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    args = dispatch_args(sidecar, tmp_path, tito_log_dir=str(tmp_path / "logs"), tito_agent_command=plain_agent(1))
    [dead] = await generate(args, task_sample(), SAMPLING | {"temperature": 0})
    assert dead.metadata["abort_reason"] == "nothing_trainable"
    assert "reason=nothing_trainable" in caplog.text and "off_policy_sampling" in caplog.text
    [directory] = (tmp_path / "logs").iterdir()
    assert "-failed-" in directory.name
    assert files(directory)["error.json"] == {"reason": "nothing_trainable"}
