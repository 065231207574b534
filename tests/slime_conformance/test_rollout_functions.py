"""Our rollout functions inside slime: on its event loop, in its types, through its checks, to its train data."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.slime_conformance.checkout import slime_module
from tests.slime_conformance.stand_ins import DataSource, loop_args, slime_world
from tests.slime_conformance.trainer import micro_batches, rollout_manager, split_by_rank
from trainer_hooks.slime.data_source import FanOutDataSource

base_types = slime_module("slime.rollout.base_types")
load_function = slime_module("slime.utils.misc").load_function
data_utils = slime_module("slime.observability.rollout_data_utils")
slime_module("slime.rollout.sglang_rollout")
slime_module("slime.ray.rollout")

PATHS = {
    "sync": "trainer_hooks.slime.sync_rollout.generate_rollout_sync",
    "partial": "trainer_hooks.slime.partial_async_rollout.generate_rollout_partial_async",
    "fully": "trainer_hooks.slime.fully_async_rollout.generate_rollout_fully_async",
}


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """Agents of the first four prompts end; the others run on until somebody ends them."""
    with slime_world(monkeypatch) as found:
        yield found


def call(name: str, args: Any, rollout_id: int, source: Any) -> Any:
    """As slime's rollout manager calls the function that a launch script names."""
    return base_types.call_rollout_fn(load_function(PATHS[name]), args, rollout_id, source, evaluation=False)


@pytest.mark.parametrize("name", PATHS)
def test_one_rollout_becomes_slimes_train_data(name: str, world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    args = loop_args(num_rollout=1, rollout_function_path=PATHS[name])
    output = call(name, args, 0, FanOutDataSource(args, DataSource()))
    assert type(output) is base_types.RolloutFnTrainOutput and isinstance(output.metrics, dict)
    assert [[len(run) for run in group] for group in output.samples] == [[2, 2], [2, 2]]
    data_utils.validate_rollout_id_annotated(output.samples)
    flat = list(itertools.chain.from_iterable(itertools.chain.from_iterable(output.samples)))
    manager = rollout_manager(args, dp_size=2)
    data = manager._convert_samples_to_train_data(flat)
    assert data["rollout_ids"] == [0, 0, 1, 1, 2, 2, 3, 3] and data["raw_reward"] == [0, 0, 0, 1, 0, 0, 0, 1]
    ranks = split_by_rank(manager, data, monkeypatch)
    assert [len(micro_batches(rank)) for rank in ranks] == [1, 1]
    assert Counter(world.sidecar.sessions.values())["finalized"] == 4
    assert "open" not in world.sidecar.sessions.values(), "the last rollout leaves no session behind"


@pytest.mark.parametrize("name", ["partial", "fully"])
def test_runs_in_flight_go_on_into_the_next_rollout(name: str, world: Any) -> None:
    args = loop_args(num_rollout=2, rollout_function_path=PATHS[name])
    source = FanOutDataSource(args, DataSource())
    call(name, args, 0, source)
    begun = set(world.agents.started)
    assert begun > set(range(4)) and not world.agents.cancelled
    world.agents.release(8)
    output = call(name, args, 1, source)
    assert [[run[0].index for run in group] for group in output.samples] == [[4, 5], [6, 7]]
    assert world.agents.started.count(4) == 1, "it was not begun again"
    assert set(world.agents.cancelled) == set(world.agents.started) - set(range(8)), (
        "the last rollout ends the rest"
    )
    assert "open" not in world.sidecar.sessions.values()
