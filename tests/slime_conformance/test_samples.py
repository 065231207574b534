"""Our samples are slime's samples: its type, its checks of nesting, its dumps, and our stand-in of it."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from tests.slime_conformance.checkout import slime_module
from tests.trainer_hooks import slime_stand_in
from tests.trainer_hooks.conversations import Conversation, samples_of
from trainer_hooks.slime.samples import mark_aborted_no_grad

Sample = slime_module("slime.utils.types").Sample
data_utils = slime_module("slime.observability.rollout_data_utils")

RUNS = [
    Conversation(0, [([1, 2], [3, 4]), ([5], [6, 7])], 1.0, [1]),
    Conversation(0, [([1, 2], [8])], 0.0),
]


def groups() -> list[list[list[Any]]]:
    """Two groups: one with a run of two segments, one with a dead run."""
    dead = mark_aborted_no_grad(Sample(index=2, group_index=1, metadata={"instance_id": "task-1"}))
    (live,) = samples_of([Conversation(1, [([1], [2, 3])], 0.5)], sample_type=Sample)
    for sample in live:
        sample.index = sample.rollout_id = 3
    return [samples_of(RUNS, sample_type=Sample), [[dead], live]]


def test_fan_out_passes_slimes_check_of_rollout_ids_and_its_flattening() -> None:
    data: Any = groups()
    data_utils.validate_rollout_id_annotated(data)
    while isinstance(data[0], list):
        data = list(itertools.chain.from_iterable(data))
    assert [sample.rollout_id for sample in data] == [0, 0, 1, 2, 3]
    assert all(type(sample) is Sample for sample in data)


def test_samples_survive_json_and_slimes_debug_dump(tmp_path: Path) -> None:
    flat = [sample for group in groups() for run in group for sample in run]
    back = [Sample.from_dict(json.loads(json.dumps(sample.to_dict()))) for sample in flat]
    assert back == flat
    path = str(tmp_path / "{rollout_id}.pt")
    data_utils.save_debug_rollout_data(path, flat, rollout_id=3, evaluation=False)
    assert data_utils.load_debug_rollout_data(path, rollout_id=3) == flat


def test_the_effective_response_length_is_the_number_of_trained_tokens() -> None:
    first, second = samples_of(RUNS[:1], sample_type=Sample)[0]
    assert (first.effective_response_length, second.effective_response_length) == (2, 2)
    assert (first.response_length, second.response_length) == (2, 2)


@pytest.mark.parametrize("name", ["Sample", "Sample.SpecInfo", "Sample.PrefixCacheInfo"])
def test_the_stand_in_has_slimes_fields_and_defaults(name: str) -> None:
    """Where slime's fields change, the tests without slime must hear of it."""

    def defaults(root: Any) -> dict[str, Any]:
        found = root
        for part in name.split(".")[1:]:
            found = getattr(found, part)
        return {
            f.name: f.default_factory() if f.default is dataclasses.MISSING else f.default
            for f in dataclasses.fields(found)
            if f.name not in ("status", "spec_info", "prefix_cache_info")
        }

    assert defaults(slime_stand_in.Sample) == defaults(Sample)


def test_the_stand_in_has_slimes_states() -> None:
    assert {s.name: s.value for s in slime_stand_in.Sample.Status} == {s.name: s.value for s in Sample.Status}
