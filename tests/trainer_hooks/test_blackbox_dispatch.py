"""`generate` in front of a real sidecar: agents are subprocesses with the official SDK, or a line of Python."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import openai
import pytest

from tests.fake_sglang import Reply
from tests.support.running import Running, engine_for, running_sidecar
from tests.support.waiting import LIVENESS
from tests.trainer_hooks.dispatching import (
    SAMPLING,
    dispatch_args,
    plain_agent,
    python_command,
    sdk_agent,
    task_sample,
)
from tests.trainer_hooks.slime_stand_in import Sample
from trainer_hooks.launchers.agent_task import AgentResult, AgentTask
from trainer_hooks.slime import blackbox_dispatch
from trainer_hooks.slime.blackbox_dispatch import generate


async def reward_of_length(args: Any, sample: Any, task: Any, result: Any) -> float:
    """The reward that tests name: knows the label, the output and the working directory."""
    assert (sample.label, task.prompt) == ("gold", "What is it?")
    assert result.workdir.is_dir()
    return float(result.output["stdout"].count("said:"))


def scratch_left(tmp_path: Path) -> list[Path]:
    """Scratch directories that nobody removed."""
    return list(tmp_path.glob("tito-agent-*"))


async def test_an_sdk_agent_s_run_becomes_samples_with_its_exact_tokens_and_reward(
    sidecar: Running, tmp_path: Path
) -> None:
    sidecar.engine.replies.extend([Reply(text="First."), Reply(text="Second.")])
    args = dispatch_args(
        sidecar,
        tmp_path,
        tito_agent_command=sdk_agent(2),
        tito_reward_path=f"{__name__}.reward_of_length",
        tito_run_id="run-1",
    )
    template = task_sample()
    [sample] = await generate(args, template, SAMPLING)

    sidecar.engine.assert_i1()
    requests = sidecar.engine.requests
    response = sample.tokens[-sample.response_length :]
    trained = [token for token, mask in zip(response, sample.loss_mask, strict=True) if mask]
    assert trained == [token for request in requests for token in request.output_ids]
    assert (sample.reward, sample.response, sample.status) == (2.0, "Second.", Sample.Status.COMPLETED)
    assert (sample.rollout_id, sample.metadata["instance_id"], sample.metadata["is_anchor"]) == (3, "task-7", True)
    assert sample.metadata["agent_outcome"] == "completed"
    session = await sidecar.view(sample.session_id)
    assert session["state"] == "finalized"
    assert sample.session_id == sample.metadata["parent_traj_id"] != "given-by-slime"
    pinned = requests[0].sampling_params
    assert (pinned["temperature"], pinned["top_p"], pinned["max_new_tokens"]) == (1.0, 1.0, 64)
    assert "sampling_seed" not in pinned, "an agent's seed would give the same answers again and again"
    assert scratch_left(tmp_path) == []


@pytest.mark.parametrize("evaluation", [False, True])
async def test_what_training_got_counts_as_read(sidecar: Running, tmp_path: Path, evaluation: bool) -> None:
    """Else its expiry is logged as a loss, and `sessions wait-drained` holds an ephemeral sidecar's pod up."""
    await generate(dispatch_args(sidecar, tmp_path), task_sample(), SAMPLING, evaluation=evaluation)
    stats = (await sidecar.control.get("/trajectory/stats")).json()
    assert (stats["unread"], stats["drained"], stats["oldest_unread"]) == (0, 1, None)


async def test_evaluation_gives_the_anchor_alone_and_its_reward_even_where_nothing_could_train(
    sidecar: Running, tmp_path: Path
) -> None:
    sidecar.engine.replies.append(Reply(text="Greedy."))
    args = dispatch_args(
        sidecar,
        tmp_path,
        tito_agent_command=plain_agent(1, '{"reward": 0.25}'),
        tito_reward_source="result_file",
        eval_reward_key="score",
        max_tokens_per_gpu=4,
    )
    [sample] = await generate(args, task_sample(group_index=None), SAMPLING | {"temperature": 0}, evaluation=True)
    assert sample.reward == {"score": 0.25}
    assert sample.status is Sample.Status.COMPLETED
    assert sample.response_length == len(sidecar.engine.requests[0].output_ids)
    assert sample.tokens == sidecar.engine.requests[0].input_ids + sidecar.engine.requests[0].output_ids


async def test_a_failed_evaluation_is_one_failed_sample_with_reward_0(sidecar: Running, tmp_path: Path) -> None:
    args = dispatch_args(
        sidecar, tmp_path, tito_agent_command=python_command("raise SystemExit(3)"), eval_reward_key="s"
    )
    [sample] = await generate(args, task_sample(), SAMPLING, evaluation=True)
    assert (sample.status, sample.reward) == (Sample.Status.FAILED, {"s": 0.0})
    assert sample.metadata["abort_reason"] == "agent_failed"


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("raise SystemExit(3)", "agent_failed"),
        ("print('done')", "no_steps"),
        ("import time; time.sleep(99)", "agent_timeout"),
        ("import os; open(os.environ['TITO_RESULT_FILE'], 'w').write('[')", "agent_failed"),
    ],
)
async def test_a_run_that_fails_is_a_dead_sample_with_its_reason_and_its_session_is_gone(
    sidecar: Running, tmp_path: Path, code: str, reason: str
) -> None:
    args = dispatch_args(
        sidecar, tmp_path, tito_agent_command=python_command(code), tito_agent_timeout_sec=1, tito_agent_grace_sec=0
    )
    template = task_sample()
    [dead] = await generate(args, template, SAMPLING)
    assert (dead.status, dead.remove_sample, dead.reward) == (Sample.Status.ABORTED, True, 0.0)
    assert dead.metadata["abort_reason"] == reason
    assert template.session_id is None
    assert template.metadata["retry_count"] == 1
    session = template.metadata["last_failed_session_id"]
    response = await sidecar.control.get(f"/session/{session}")
    assert response.status_code == 404 or response.json()["state"] == "discarded", response.text


async def test_a_retry_after_a_dead_sample_starts_clean(sidecar: Running, tmp_path: Path) -> None:
    template = task_sample()
    broken = dispatch_args(sidecar, tmp_path, tito_agent_command=python_command("raise SystemExit(3)"))
    [dead] = await generate(broken, template, SAMPLING)
    sidecar.engine.replies.extend([Reply(text="First."), Reply(text="Second.")])
    [sample] = await generate(dispatch_args(sidecar, tmp_path), template, SAMPLING)
    assert sample.status is Sample.Status.COMPLETED
    assert sample.session_id not in (None, dead.metadata["parent_traj_id"])
    assert not {"abort_reason", "retry_count", "last_failed_session_id"} & sample.metadata.keys()
    assert sample.reward is None, "slime's own reward model rates the anchor"


@pytest.mark.parametrize(
    ("words", "outcome"),
    [
        ("Error code: 400 - {'error': {'code': 'context_length_exceeded'}}", "context_overflow"),
        ("agents.exceptions.MaxTurnsExceeded: Max turns (10) exceeded", "turn_limit"),
    ],
)
async def test_context_overflow_and_turn_limits_are_harvested(
    sidecar: Running, tmp_path: Path, words: str, outcome: str
) -> None:
    sidecar.engine.replies.append(Reply(text="Half."))
    args = dispatch_args(sidecar, tmp_path, tito_agent_command=plain_agent(1, "", words, 1))
    [sample] = await generate(args, task_sample(), SAMPLING)
    assert sample.status is Sample.Status.COMPLETED
    assert sample.metadata["agent_outcome"] == outcome
    assert sum(sample.loss_mask) == len(sidecar.engine.requests[0].output_ids)


async def ask_once_and_be_late(task: AgentTask) -> AgentResult:
    """A launcher whose agent is cut off after its first call."""
    async with openai.AsyncOpenAI(base_url=task.base_url, api_key=task.api_key) as client:
        await client.chat.completions.create(model="m", messages=[{"role": "user", "content": task.prompt}])
    return AgentResult("timeout", error="late")


async def test_runs_that_were_cut_off_are_harvested_where_asked(sidecar: Running, tmp_path: Path) -> None:
    sidecar.engine.replies.append(Reply(text="First."))
    args = dispatch_args(
        sidecar, tmp_path, tito_launcher=f"{__name__}.ask_once_and_be_late", tito_early_stops="timeout"
    )
    [sample] = await generate(args, task_sample(), SAMPLING)
    assert sample.metadata["agent_outcome"] == "timeout"
    assert sum(sample.loss_mask) == len(sidecar.engine.requests[0].output_ids)


async def test_an_agent_that_meets_the_context_window_is_harvested(qwen3_dir: Path, tmp_path: Path) -> None:
    async with (
        engine_for(qwen3_dir) as engine,
        running_sidecar(engine, tmp_path / "state", context_window=60) as running,
    ):
        engine.replies.append(Reply(text="long " * 40))
        [sample] = await generate(
            dispatch_args(running, tmp_path, tito_agent_command=sdk_agent(2)), task_sample(), SAMPLING
        )
    assert sample.metadata["agent_outcome"] == "context_overflow"
    assert sum(sample.loss_mask) > 0


async def test_cancellation_ends_the_agent_and_discards_its_session(sidecar: Running, tmp_path: Path) -> None:
    hold = asyncio.Event()
    sidecar.engine.replies.append(Reply(text="Never said.", hold=hold))
    template = task_sample()
    running = asyncio.create_task(generate(dispatch_args(sidecar, tmp_path), template, SAMPLING))
    await sidecar.engine.wait_requests(1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await sidecar.engine.wait_idle()
    assert template.session_id is None
    response = await sidecar.control.get(f"/session/{template.metadata['last_failed_session_id']}")
    assert response.status_code == 404 or response.json()["state"] == "discarded", response.text
    assert scratch_left(tmp_path) == []


async def test_a_cancellation_at_the_last_moment_leaves_nothing_either(
    sidecar: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing = asyncio.Event()

    async def log_for_ever(run: Any, samples: Any, error: Any) -> None:
        writing.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(blackbox_dispatch._Run, "_log", log_for_ever)
    template = task_sample()
    args = dispatch_args(sidecar, tmp_path, tito_agent_command=plain_agent(1))
    running = asyncio.create_task(generate(args, template, SAMPLING))
    await writing.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (template.session_id, template.metadata["retry_count"]) == (None, 1)
    response = await sidecar.control.get(f"/session/{template.metadata['last_failed_session_id']}")
    assert response.status_code == 404 or response.json()["state"] == "discarded", response.text
    assert scratch_left(tmp_path) == []


class SingletonMeta(type):
    """As slime's: one instance per class, made at the first call."""

    _instances: ClassVar[dict[type, Any]] = {}

    def __call__(cls, *args: Any) -> Any:
        if cls not in cls._instances:
            cls._instances[cls] = super().__call__(*args)
        return cls._instances[cls]


@pytest.fixture
def slime_state(monkeypatch: pytest.MonkeyPatch) -> Any:
    """slime's module with its `GenerateState`, as far as generate functions see it."""

    class GenerateState(metaclass=SingletonMeta):
        def __init__(self, args: Any) -> None:
            self.aborted = False

    module = ModuleType("slime.rollout.sglang_rollout")
    module.GenerateState = GenerateState  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "slime.rollout.sglang_rollout", module)
    return GenerateState


async def test_slime_s_abort_until_idle_and_await_of_pending_runs_does_not_hang(
    sidecar: Running, tmp_path: Path, slime_state: Any
) -> None:
    engine = sidecar.engine
    args = dispatch_args(sidecar, tmp_path)
    state = slime_state(args)
    engine.replies.extend([Reply(text="First."), Reply(text="Second.")])
    [first] = await generate(args, task_sample(0), SAMPLING)
    assert first.status is Sample.Status.COMPLETED
    engine.replies.extend([Reply(text="Never said.", hold=asyncio.Event()) for _ in range(20)])
    busy = python_command("import time; time.sleep(1000)")
    templates = [task_sample(1), task_sample(2), task_sample(3, metadata={"agent_command": busy})]
    pending = [asyncio.create_task(generate(args, template, SAMPLING)) for template in templates]
    await engine.wait_requests(4)

    # slime's order: the flag, aborts until every server is idle, then the pending runs
    state.aborted = True
    async with asyncio.timeout(LIVENESS):
        while engine.intake.active or engine.state.jobs:
            await sidecar.data.post(f"{engine.url}/abort_request", json={"abort_all": True})
            await asyncio.sleep(0.02)
        late = await asyncio.gather(*pending)
    assert [[sample.metadata["abort_reason"] for sample in samples] for samples in late] == [
        ["rollout_aborted"]
    ] * 3
    asked = len(engine.requests)
    assert [template.session_id for template in templates] == [None, None, None]
    [again] = await generate(args, templates[0], SAMPLING)
    assert again.metadata["abort_reason"] == "rollout_aborted", "the flag is still up"
    assert len(engine.requests) == asked, "an agent that starts after the abort asks nothing"
    state.aborted = False
    engine.replies.clear()
    engine.replies.extend([Reply(text="First."), Reply(text="Second.")])
    [again] = await generate(args, templates[0], SAMPLING)
    assert again.status is Sample.Status.COMPLETED


async def test_slime_s_state_is_not_made_for_looking_at_it(
    sidecar: Running, tmp_path: Path, slime_state: Any
) -> None:
    sidecar.engine.replies.append(Reply(text="Done."))
    args = dispatch_args(sidecar, tmp_path, tito_agent_command=plain_agent(1))
    await generate(args, task_sample(), SAMPLING)
    assert slime_state not in SingletonMeta._instances, "making it loads a tokenizer"
