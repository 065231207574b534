"""Metrics over trajectories, and how they get into slime's log."""

from __future__ import annotations

import copy
import sys
from types import ModuleType
from typing import Any

import pytest

from tests.trainer_hooks.batches import Run, flat_batch
from tests.trainer_hooks.builders import make_segment, make_template
from tests.trainer_hooks.slime_stand_in import Sample, make_args
from trainer_hooks.slime.errors import ConversionError, SettingError
from trainer_hooks.slime.log_helpers import log_rollout_data
from trainer_hooks.slime.samples import expand_segments_to_samples, mark_aborted_no_grad
from trainer_hooks.slime.trajectory_metrics import trajectory_metrics


def metrics(samples: list[Sample], **changes: Any) -> dict[str, float]:
    found = trajectory_metrics(make_args(**({"global_batch_size": 1} | changes)), samples)
    assert all(name.startswith("rollout/") for name in found)
    return {name.removeprefix("rollout/"): value for name, value in found.items()}


def versioned(index: int, *segments: list[str], group: int = 0) -> list[Sample]:
    made = [
        make_segment(
            [0, *[1] * len(versions)],
            index=number,
            session_id=f"s{index}",
            versions=["-1", *versions],
            reward=1.0,
        )
        for number, versions in enumerate(segments)
    ]
    return expand_segments_to_samples(make_template(index, group), made)


def test_runs_are_counted_and_not_their_segments() -> None:
    samples = flat_batch([Run(0, [2, 3, 4], 1.0), Run(0, [5], 0.0), Run(1, [1], 0.5), Run(1, [], dead=True)])
    found = metrics(samples)
    assert found["num_trajectories"] == 4 and found["num_live_trajectories"] == 3
    assert found["reward_mean"] == 0.5, "slime's mean over samples would be 1.5 / 6"
    assert found["segments_per_trajectory_mean"] == pytest.approx(5 / 3)
    assert found["segments_per_trajectory_max"] == 3
    assert found["trained_tokens"] == 15
    assert sum(value for name, value in found.items() if name.startswith("dead_trajectories/")) == 1
    assert found["trajectories_without_reward"] == 0


def test_a_run_without_a_finite_reward_is_not_live_and_is_counted() -> None:
    found = metrics(flat_batch([Run(0, [2, 3], None), Run(0, [5], float("nan")), Run(0, [4], 2.0)]))
    assert found["trajectories_without_reward"] == 2 and found["num_live_trajectories"] == 1
    assert found["reward_mean"] == 2.0 and found["trained_tokens"] == 4


def test_means_over_nothing_are_left_out() -> None:
    found = metrics(flat_batch([Run(0, [], dead=True)]))
    assert found["num_trajectories"] == 1 and found["trained_tokens"] == 0
    assert not {name for name in found if name.endswith(("_mean", "_max", "_ratio"))}


def test_dead_runs_are_counted_by_reason() -> None:
    reasons = ["nothing_trainable", "agent_failed", "agent_failed", "no such file", "KeyError: 'a'"]
    templates = [make_template(i) for i in range(len(reasons))]
    samples = [mark_aborted_no_grad(t, reason=r) for t, r in zip(templates, reasons, strict=True)]
    removed = flat_batch([Run(0, [2], 1.0)])
    removed[0].rollout_id, removed[0].remove_sample = 9, True
    found = {n: v for n, v in metrics(samples + removed).items() if n.startswith("dead")}
    assert found == {
        "dead_trajectories/nothing_trainable": 1,
        "dead_trajectories/agent_failed": 2,
        "dead_trajectories/other": 1,
        "dead_trajectories/KeyError": 1,
        "dead_trajectories/removed": 1,
    }


def test_span_and_gap_of_versions_are_of_what_trains() -> None:
    samples = [
        *versioned(0, ["9", "9"], ["10", "11"]),
        *versioned(1, ["9", "9"]),
        *versioned(2, ["11"]),
    ]
    found = metrics(samples)
    assert found["version_span_mean"] == pytest.approx(5 / 3) and found["version_span_max"] == 3
    assert found["version_gap_mean"] == pytest.approx(2 / 3) and found["version_gap_max"] == 2
    assert found["partial_rollout_ratio"] == pytest.approx(1 / 3)


def test_there_is_no_gap_between_versions_that_are_no_numbers() -> None:
    found = metrics([*versioned(0, ["run-1", "run-2"]), *versioned(1, ["run-1"])])
    assert found["version_span_max"] == 2
    assert not any("gap" in name for name in found)


def test_groups_of_equal_rewards_are_counted_by_run() -> None:
    runs = [Run(0, [2, 2], 1.0), Run(0, [2], 1.0), Run(1, [2, 2], 1.0), Run(1, [2], 0.0), Run(2, [2], 0.0)]
    assert metrics(flat_batch(runs))["equal_reward_groups"] == 2


def test_untrainable_tokens_of_the_whole_session_are_counted_once() -> None:
    told = {"untrainable_tokens": {"undelivered": 5, "off_policy_sampling": 2}}
    extra = {"mask_nonlast_version_tokens": False} | told
    segments = [make_segment(index=0), make_segment(index=1, extra_info=extra, reward=1.0)]
    live = expand_segments_to_samples(make_template(0), segments)
    assert ["untrainable_tokens" in sample.metadata for sample in live] == [False, True]
    dead = expand_segments_to_samples(make_template(1), [make_segment("00", session_id="s2", extra_info=extra)])
    assert dead[0].status is Sample.Status.ABORTED
    found = metrics(live + dead)
    assert found["untrainable_tokens/undelivered"] == 10 and found["untrainable_tokens/off_policy_sampling"] == 4


def test_untrainable_tokens_of_an_earlier_try_do_not_stay() -> None:
    template = make_template(metadata={"instance_id": "task", "untrainable_tokens": {"undelivered": 9}})
    assert not any("untrainable" in name for name in metrics([mark_aborted_no_grad(template)]))


def test_capped_runs_are_counted_once_each() -> None:
    segments = [make_segment("00111", index=i, reward=1.0) for i in range(2)]
    args = make_args(max_tokens_per_gpu=4)
    samples = expand_segments_to_samples(make_template(0), segments, args=args)
    samples += expand_segments_to_samples(make_template(1), [make_segment(session_id="s1", reward=0.0)], args=args)
    assert metrics(samples)["capped_trajectory_ratio"] == 0.5


def test_what_slime_clamps_or_drops_silently_is_a_metric() -> None:
    runs = [Run(0, [1], 1.0), Run(0, [], dead=True), Run(0, [], dead=True), Run(0, [], dead=True), Run(1, [9], 1.0)]
    found = metrics(flat_batch(runs), global_batch_size=4)
    assert found["denominators_below_one"] == 1 and found["trailing_trajectories_dropped"] == 1


def test_denominators_do_not_count_runs_that_reward_post_processing_will_remove() -> None:
    runs = [Run(0, [1], 1.0), Run(1, [9], None)]
    assert metrics(flat_batch(runs), global_batch_size=2)["denominators_below_one"] == 1
    assert metrics(flat_batch([*runs[:1], Run(1, [9], 1.0)]), global_batch_size=2)["denominators_below_one"] == 0


def test_samples_are_not_modified() -> None:
    samples = flat_batch([Run(0, [2, 3], None), Run(0, [4], 0.0)])
    before = copy.deepcopy(samples)
    metrics(samples)
    assert samples == before


def test_broken_samples_are_refused_as_in_conversion() -> None:
    samples = flat_batch([Run(0, [2], 1.0)])
    samples[0].loss_mask = [1, 2]
    with pytest.raises(ConversionError, match=r"loss_mask\[1\] is 2"):
        metrics(samples)


# The hook ----------------------------------------------------------------------------------------------


def test_metrics_join_those_that_slime_logs() -> None:
    extra = {"rollout/dynamic_filter/drop_x": 2}
    samples = flat_batch([Run(0, [2, 3], 1.0)])
    assert log_rollout_data(3, make_args(global_batch_size=1), samples, extra, 1.5) is False
    assert extra["rollout/num_trajectories"] == 1 and extra["rollout/dynamic_filter/drop_x"] == 2


def test_replayed_debug_data_is_not_logged() -> None:
    extra: dict[str, float] = {}
    assert (
        log_rollout_data(3, make_args(load_debug_rollout_data="x"), flat_batch([Run(0, [2])]), extra, 1.0) is False
    )
    assert extra == {}


def test_arguments_under_which_training_goes_wrong_are_refused_here_too() -> None:
    with pytest.raises(SettingError, match="--group-rm"):
        log_rollout_data(3, make_args(group_rm=True), flat_batch([Run(0, [2], 1.0)]), {}, 1.0)


def test_without_metrics_of_the_rollout_they_are_a_record_with_slimes_step(monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[tuple[dict[str, float], str]] = []
    modules = {name: ModuleType(name) for name in ("slime", "slime.observability")}
    for module in modules.values():
        module.__path__ = []  # type: ignore[attr-defined]
    log = ModuleType("slime.observability.logging_utils")
    log.log = lambda args, metrics, step_key: logged.append((metrics, step_key))  # type: ignore[attr-defined]
    step = ModuleType("slime.observability.metric_utils")
    step.compute_rollout_step = lambda args, rollout_id: rollout_id * 10  # type: ignore[attr-defined]
    for module in (*modules.values(), log, step):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    samples = flat_batch([Run(0, [2], 1.0)])
    assert log_rollout_data(3, make_args(global_batch_size=1), samples, None, 1.0) is False
    [(metrics_logged, step_key)] = logged
    assert step_key == "rollout/step" and metrics_logged["rollout/step"] == 30
    assert metrics_logged["rollout/num_trajectories"] == 1


def test_without_slime_and_without_metrics_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "slime", None)
    with pytest.raises(RuntimeError, match="run inside slime's environment"):
        log_rollout_data(3, make_args(global_batch_size=1), flat_batch([Run(0, [2], 1.0)]), None, 1.0)
