"""slime's own rollout loop around our generate function: fan-out comes out, and the abort at its end does not hang.

The loop, its state, its abort of servers and its waiting for pending runs are slime's; control plane, agents and
engines are stand-ins in this process.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.slime_conformance.checkout import slime_module
from tests.slime_conformance.stand_ins import LIVENESS, DataSource, loop_args, slime_world
from tests.slime_conformance.trainer import rollout_manager

Sample = slime_module("slime.utils.types").Sample
sglang_rollout = slime_module("slime.rollout.sglang_rollout")
data_utils = slime_module("slime.observability.rollout_data_utils")
slime_module("slime.ray.rollout")


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """Agents of the first four prompts end; the others would run for ever."""
    with slime_world(monkeypatch) as found:
        yield found


def test_groups_of_segments_come_out_and_the_rest_is_aborted_without_hanging(world: Any) -> None:
    args = loop_args()

    async def rollout() -> Any:
        output, aborted = await sglang_rollout.generate_rollout_async(args, 0, DataSource().get_samples)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        return output, aborted, others

    output, aborted, others = asyncio.run(asyncio.wait_for(rollout(), LIVENESS))
    assert not others, "nothing of ours goes on after slime's rollout"
    data_utils.validate_rollout_id_annotated(output.samples)
    assert [[len(run) for run in group] for group in output.samples] == [[2, 2], [2, 2]]
    assert [[run[-1].reward for run in group] for group in output.samples] == [[0.0, 1.0], [0.0, 1.0]]
    assert aborted == []
    assert sorted(world.agents.cancelled) == [4, 5]
    assert Counter(world.sidecar.sessions.values()) == {"finalized": 4, "discarded": 2}
    assert world.asked["abort_request"] >= 1
    flat = [sample for group in output.samples for run in group for sample in run]
    data = rollout_manager(args)._convert_samples_to_train_data(flat)
    assert data["rollout_ids"] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert data["rollout_mask_sums"] == [8 * 2 / 4] * 8


def test_the_next_rollout_starts_clean_after_an_abort(world: Any) -> None:
    """slime's state is a singleton: an abort of the last rollout must not be taken for one of this."""
    args, source = loop_args(), DataSource()
    asyncio.run(asyncio.wait_for(sglang_rollout.generate_rollout_async(args, 0, source.get_samples), LIVENESS))
    world.agents.live = 100
    output, _ = asyncio.run(
        asyncio.wait_for(sglang_rollout.generate_rollout_async(args, 1, source.get_samples), LIVENESS)
    )
    assert [[run[0].index for run in group] for group in output.samples] == [[6, 7], [8, 9]]
    assert all(sample.status is Sample.Status.COMPLETED for g in output.samples for run in g for sample in run)
