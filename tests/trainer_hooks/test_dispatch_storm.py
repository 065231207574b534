"""Many runs at once, each meeting another fate: whatever happens, nothing is left behind and every result is one
of those that slime can take."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from tests.support.running import Running
from tests.trainer_hooks.dispatching import SAMPLING, dispatch_args, plain_agent, python_command, task_sample
from tests.trainer_hooks.slime_stand_in import Sample, check_rollout_ids_annotated, flatten
from trainer_hooks.slime.blackbox_dispatch import generate

FATES = {
    "good": plain_agent(2),
    "broken": python_command("raise SystemExit(1)"),
    "silent": python_command(""),
    "slow": python_command("import time; time.sleep(1000)"),
    "turns": plain_agent(1, '{"status": "turn_limit"}', "", 1),
    "garbage": plain_agent(1, "["),
}


LIVE = ({Sample.Status.COMPLETED},)
DEAD = ({Sample.Status.ABORTED}, {Sample.Status.FAILED})


def processes_with(text: str) -> list[str]:
    """Command lines of processes that hold `text` in their environment."""
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            if text in (directory / "environ").read_bytes().decode(errors="replace"):
                found.append((directory / "cmdline").read_bytes().decode(errors="replace"))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("seed", range(1))
async def test_whatever_becomes_of_many_runs_nothing_is_left_behind(
    sidecar: Running, tmp_path: Path, seed: int
) -> None:
    randomness = random.Random(seed)
    args = dispatch_args(sidecar, tmp_path, tito_agent_grace_sec=0)
    templates, runs = [], []
    for index in range(14):
        fate = randomness.choice(list(FATES))
        metadata: dict[str, Any] = {"agent_command": FATES[fate], "fate": fate}
        if fate == "slow":
            metadata["agent_timeout_sec"] = 1.5
        template = task_sample(index, metadata=metadata)
        evaluation = randomness.random() < 0.25
        templates.append(template)
        runs.append(asyncio.create_task(generate(args, template, SAMPLING, evaluation=evaluation)))
    await sidecar.engine.wait_requests(1)
    cancelled = randomness.sample(range(14), 4)
    for index in cancelled:
        runs[index].cancel()
    results: list[Any] = await asyncio.gather(*runs, return_exceptions=True)

    lists = []
    for template, run, result in zip(templates, runs, results, strict=True):
        if isinstance(result, asyncio.CancelledError):
            assert run.cancelled() and template.session_id is None
            continue
        assert isinstance(result, list), result
        lists.append(result)
        statuses = {sample.status for sample in result}
        alive = template.metadata["fate"] in ("good", "turns")
        assert statuses in (LIVE if alive else DEAD), template.metadata
        assert all(sample.rollout_id == template.index for sample in result)
    check_rollout_ids_annotated([lists])
    assert len(flatten([lists])) >= len(lists) >= 10
    await sidecar.engine.wait_idle()
    assert processes_with(str(tmp_path)) == []
    assert list(tmp_path.glob("tito-agent-*")) == []  # noqa: ASYNC240
