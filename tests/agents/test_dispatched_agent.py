"""A real agent started as a rollout starts it: mini-swe-agent through `generate` and the command launcher."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.agents.mini_swe import installed_mini_swe
from tests.agents.turns import BROKEN, CHECK, TASK, TURNS, scripted
from tests.support.running import Running
from tests.trainer_hooks.dispatching import SAMPLING, dispatch_args, task_sample
from tests.trainer_hooks.slime_stand_in import Sample
from trainer_hooks.slime.blackbox_dispatch import generate

pytestmark = pytest.mark.timeout(1200)  # the first test to run installs the agent

# Its documented flags and variables; without the last two it would ask for prices and fetch a list of them.
COMMAND = "mini --model openai/qwen3 --task {{prompt}} --yolo --exit-immediately --output {{scratch}}/t.json"
VARIABLES = {
    "MSWEA_CONFIGURED": "true",
    "MSWEA_COST_TRACKING": "ignore_errors",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}


def is_solved(args: Any, sample: Any, task: Any, result: Any) -> bool:
    """The reward: does the project's own check pass where the agent worked?"""
    return subprocess.run([sys.executable, "-B", "check.py"], cwd=result.workdir).returncode == 0


async def test_an_agent_started_by_a_rollout_solves_its_task_and_its_exact_tokens_train(
    sidecar: Running, tmp_path: Path
) -> None:
    programs = installed_mini_swe()
    project = tmp_path / "project-9"
    project.mkdir()
    (project / "celsius.py").write_text(BROKEN)
    (project / "check.py").write_text(CHECK)
    sidecar.engine.replies.extend(scripted(sidecar.engine, TURNS))
    args = dispatch_args(
        sidecar,
        tmp_path,
        tito_agent_command=f"{programs}/{COMMAND} --config mini.yaml --config agent.step_limit=20",
        tito_agent_workdir=f"{tmp_path}/project-{{{{metadata.number}}}}",
        tito_reward_path=f"{__name__}.is_solved",
    )
    metadata = {"number": 9, "agent_env": VARIABLES | {"PATH": f"{programs}:/usr/bin:/bin"}}
    template = task_sample(prompt=TASK, metadata=metadata)
    [sample] = await generate(args, template, SAMPLING | {"max_new_tokens": 4096})

    assert (sample.status, sample.reward) == (Sample.Status.COMPLETED, 1.0), sample.metadata
    assert sample.metadata["agent_outcome"] == "completed"
    sidecar.engine.assert_i1()
    response = sample.tokens[-sample.response_length :]
    trained = [token for token, mask in zip(response, sample.loss_mask, strict=True) if mask]
    assert trained == [token for request in sidecar.engine.requests for token in request.output_ids]
