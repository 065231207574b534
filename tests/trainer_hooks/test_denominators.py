"""Loss denominators: the worked example, steps, scope and clamping."""

from __future__ import annotations

from tests.trainer_hooks.slime_stand_in import schedule
from trainer_hooks.slime.batch.denominators import (
    optimizer_steps,
    prompt_equal_denominators,
    trajectory_denominators,
)


def test_the_worked_example() -> None:
    # Segments of one trajectory or two trajectories: it is the prompt that counts.
    for rollout_ids in ([0, 0, 1], [0, 1, 2]):
        found = prompt_equal_denominators(
            [100, 150, 200], ["1", "1", "2"], rollout_ids, global_batch_size=4, scope="step"
        )
        assert found.values == [125.0, 125.0, 100.0]


def test_steps_take_distinct_rollouts_in_first_seen_order_and_drop_the_trailing_ones() -> None:
    rollout_ids = [5, 5, 3, 9, 3, 7, 5]
    steps = optimizer_steps(rollout_ids, 2)
    assert steps.positions == [[0, 1, 6, 2, 4], [3, 5]]
    assert steps.dropped == []
    assert optimizer_steps(rollout_ids, 3).dropped == [5]
    assert [sorted(s) for s in steps.positions] == [sorted(s) for s in schedule(rollout_ids, 2)]


def test_each_step_counts_its_own_prompts_and_tokens() -> None:
    mask_sums, prompts, ids = [10, 30, 20, 40], ["a", "b", "a", "c"], [0, 1, 2, 3]
    per_step = prompt_equal_denominators(mask_sums, prompts, ids, global_batch_size=2, scope="step")
    assert per_step.values == [10.0, 30.0, 20.0, 40.0]
    whole = prompt_equal_denominators(mask_sums, prompts, ids, global_batch_size=2, scope="batch")
    assert whole.values == [45.0, 45.0, 45.0, 60.0]


def test_with_one_step_both_scopes_agree() -> None:
    mask_sums, prompts, ids = [10, 30, 20, 40], ["a", "b", "a", "c"], [0, 1, 2, 3]
    step, batch = (
        prompt_equal_denominators(mask_sums, prompts, ids, global_batch_size=4, scope=scope)
        for scope in ("step", "batch")
    )
    assert step == batch


def test_dropped_rollouts_count_for_nothing_in_the_steps() -> None:
    found = prompt_equal_denominators([10, 30, 50], ["a", "b", "a"], [0, 1, 2], global_batch_size=2, scope="step")
    assert found.values == [10.0, 30.0, 25.0]
    assert found.below_one == 0


def test_dead_prompts_do_not_count_as_prompts() -> None:
    found = prompt_equal_denominators([12, 0], ["a", "b"], [0, 1], global_batch_size=2, scope="step")
    assert found.values == [6.0, 1.0]


def test_denominators_that_slime_would_clamp_are_counted() -> None:
    found = prompt_equal_denominators(
        [1, 0, 1, 9], ["a", "a", "b", "c"], [0, 1, 2, 3], global_batch_size=4, scope="step"
    )
    assert found.values == [0.75, 0.75, 0.75, 27 / 4]
    assert found.below_one == 2, "the masked sample trains nothing and is not counted"


def test_other_estimators_get_the_mask_sum_of_the_trajectory() -> None:
    found = trajectory_denominators([3, 4, 5], [7, 8, 7])
    assert found.values == [8.0, 4.0, 8.0] and found.below_one == 0
