"""The dead sample, and what it leaves on the template."""

from __future__ import annotations

import copy

import pytest

from tests.trainer_hooks.builders import dirty_template, make_template
from tests.trainer_hooks.slime_stand_in import Sample, make_args
from trainer_hooks.slime.samples import mark_aborted_no_grad


def test_the_copy_trains_nothing_whatever_the_sample_held() -> None:
    dead = mark_aborted_no_grad(dirty_template(), reason="agent failed")
    assert (dead.tokens, dead.response_length, dead.loss_mask) == ([0, 0], 1, [0])
    assert (dead.rollout_log_probs, dead.response, dead.reward) == ([0.0], "", 0.0)
    assert (dead.rollout_id, dead.remove_sample, dead.status) == (0, True, Sample.Status.ABORTED)
    assert dead.rollout_top_p_token_ids is None and dead.rollout_top_p_token_offsets is None
    assert dead.teacher_log_probs is None and dead.rollout_routed_experts is None
    assert dead.weight_versions == [] and dead.spec_info == Sample.SpecInfo()
    assert dead.metadata == {
        "instance_id": "task",
        "image": "img",
        "parent_traj_id": "s0",
        "segment_index": 0,
        "is_anchor": True,
        "abort_reason": "agent failed",
    }


def test_only_session_and_retry_marks_change_on_the_template() -> None:
    template = make_template()
    expected = copy.deepcopy(template)
    expected.session_id = None
    expected.metadata |= {"last_failed_session_id": "s0", "retry_count": 1}
    mark_aborted_no_grad(template, reason="x")
    assert template == expected


def test_a_shared_metadata_dict_is_not_modified() -> None:
    template = make_template()
    shared = template.metadata
    mark_aborted_no_grad(template)
    assert shared == {"instance_id": "task", "image": "img"}


def test_the_copy_shares_nothing_with_the_sample() -> None:
    template = make_template(prompt=[{"role": "user", "content": "q"}])
    dead = mark_aborted_no_grad(template)
    dead.prompt[0]["content"] = "changed"
    assert template.prompt == [{"role": "user", "content": "q"}]


def test_retries_are_counted_and_name_the_latest_session() -> None:
    template = make_template()
    mark_aborted_no_grad(template)
    template.session_id = "second"
    dead = mark_aborted_no_grad(template)
    assert template.metadata["retry_count"] == 2
    assert template.metadata["last_failed_session_id"] == "second"
    assert dead.metadata["parent_traj_id"] == "second"


def test_a_sample_that_never_had_a_session_is_still_a_trajectory_of_its_own() -> None:
    dead = [mark_aborted_no_grad(make_template(i, session_id=None)) for i in range(2)]
    assert dead[0].metadata["parent_traj_id"] != dead[1].metadata["parent_traj_id"]


@pytest.mark.parametrize(
    ("metadata", "group_index", "instance_id"),
    [({"instance_id": 12}, 3, "12"), ({}, 3, "3"), (None, None, "eval-5")],
)
def test_instance_id_falls_back_to_the_group_and_then_to_the_index(
    metadata: dict | None, group_index: int | None, instance_id: str
) -> None:
    dead = mark_aborted_no_grad(make_template(5, group_index, metadata=metadata))
    assert dead.metadata["instance_id"] == instance_id


def test_the_reward_is_a_dict_under_a_reward_key() -> None:
    args = make_args(reward_key="score")
    assert mark_aborted_no_grad(make_template(), args=args).get_reward_value(args) == 0.0
