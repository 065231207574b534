"""`check_args`: what slime would do wrong in silence is refused, once, with the reason."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from tests.fake_sglang import FakeSGLang
from tests.support.running import Running, running_sidecar
from tests.trainer_hooks.slime_stand_in import make_args
from trainer_hooks.slime.check_args import check_args, check_args_async, context_window, find_problems
from trainer_hooks.slime.errors import SettingError

GOOD = {
    "use_dynamic_batch_size": True,
    "calculate_per_token_loss": False,
    "custom_convert_samples_to_train_data_path": "trainer_hooks.slime.convert_samples.convert",
    "group_rm": False,
    "log_passrate": False,
    "partial_rollout": False,
    "rollout_top_k": -1,
    "rollout_temperature": 1.0,
}


@pytest.mark.parametrize(
    ("changes", "named", "remedy"),
    [
        ({"calculate_per_token_loss": True}, "--calculate-per-token-loss", "leave it out"),
        (
            {"custom_pg_loss_reducer_function_path": "a.b"},
            "--custom-pg-loss-reducer-function-path a.b",
            "leave it out",
        ),
        ({"group_rm": True}, "--group-rm", "leave it out"),
        ({"log_passrate": True}, "--log-passrate", "leave it out"),
        ({"log_reward_category": "kind"}, "--log-reward-category", "leave it out"),
        ({"partial_rollout": True}, "--partial-rollout", "leave it out"),
        ({"use_dynamic_batch_size": False}, "static batching", "--use-dynamic-batch-size"),
        ({"rollout_top_p": 0.9}, "--rollout-top-p is 0.9", "use 1.0"),
        ({"rollout_top_k": 20}, "--rollout-top-k is 20", "use -1"),
        ({"rollout_temperature": 0}, "--rollout-temperature is 0", "use another"),
        ({"rollout_temperature": 0.0}, "--rollout-temperature is 0", "use another"),
        ({"use_rollout_routing_replay": True}, "num_layers and moe_router_topk", "--num-layers"),
        ({"use_rollout_routing_replay": True, "num_layers": 4}, "without moe_router_topk", "--moe-router-topk"),
        ({"global_batch_size": 6, "n_samples_per_prompt": 4}, "--global-batch-size 6", "make it one"),
        (
            {"dynamic_sampling_filter_path": "slime.rollout.filter_hub.x.check_reward_nonzero_std"},
            "--dynamic-sampling-filter-path slime.",
            "trainer_hooks.slime.filters.check_reward_nonzero_std",
        ),
        (
            {"rollout_function_path": "slime.rollout.fully_async_rollout.generate_rollout_fully_async"},
            "--rollout-function-path slime.",
            "trainer_hooks.slime.fully_async_rollout",
        ),
        (
            {"custom_convert_samples_to_train_data_path": None},
            "one reward baseline over the whole batch",
            "--custom-convert-samples-to-train-data-path",
        ),
    ],
)
def test_what_would_silently_go_wrong_is_refused_by_name(changes: dict[str, Any], named: str, remedy: str) -> None:
    args = make_args(**(GOOD | changes))
    for _ in range(2):  # a refusal is not forgotten
        with pytest.raises(SettingError) as caught:
            check_args(args)
        assert named in str(caught.value) and remedy in str(caught.value)
    assert len(list(find_problems(args))) == 1


def test_every_problem_is_told_at_once() -> None:
    args = make_args(**(GOOD | {"group_rm": True, "rollout_top_k": 3, "rollout_top_p": 0.5}))
    with pytest.raises(SettingError) as caught:
        check_args(args)
    assert str(caught.value).count("\n- ") == 3


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"use_rollout_routing_replay": True, "num_layers": 4, "moe_router_topk": 2},
        {"dynamic_sampling_filter_path": "trainer_hooks.slime.filters.check_reward_nonzero_std"},
        {"custom_convert_samples_to_train_data_path": None, "custom_reward_post_process_path": "a.b"},
        {"rollout_function_path": "slime.rollout.sglang_rollout.generate_rollout"},
        {"eval_temperature": 0, "eval_top_p": 0.7},
    ],
)
def test_good_arguments_pass(changes: dict[str, Any]) -> None:
    check_args(make_args(**(GOOD | changes)))


def test_arguments_that_are_not_there_break_no_rule() -> None:
    check_args(make_args())


def test_arguments_that_passed_are_not_checked_again_and_can_travel() -> None:
    import pickle

    args = make_args(**GOOD)
    check_args(args)
    args.group_rm = True
    check_args(pickle.loads(pickle.dumps(args)))


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ({"engine": {"context_length": 4096}}, 4096),
        ({"context_window": 1000, "engine": {"context_length": 4096}}, 1000),
        ({"context_window": 8000, "engine": {"context_length": 4096}}, 4096),
        ({"engine": {"context_length": None}}, None),
        ({}, None),
    ],
)
def test_the_context_window_is_the_smaller_of_the_sidecar_s_and_the_engine_s(reply: Any, expected: Any) -> None:
    assert context_window(reply) == expected


@pytest.mark.parametrize(("per_gpu", "warned"), [(16, True), (10**7, False)])
async def test_a_context_window_beyond_the_training_cap_is_warned_of_once(
    sidecar: Running, caplog: pytest.LogCaptureFixture, per_gpu: int, warned: bool
) -> None:
    args = make_args(
        **GOOD,
        max_tokens_per_gpu=per_gpu,
        tito_control_url=sidecar.sidecar.control.url,
        tito_control_token=sidecar.sidecar.control_token,
    )
    with caplog.at_level(logging.WARNING):
        await check_args_async(args)
        await check_args_async(args)
    assert caplog.text.count("context_window_exceeds_training_cap") == int(warned), caplog.text
    if warned:
        assert f"but training takes {per_gpu}" in caplog.text


async def test_the_sidecar_tells_its_own_limit(engine: FakeSGLang, tmp_path: Path) -> None:
    async with running_sidecar(engine, tmp_path, context_window=777) as running:
        response = await running.control.get("/integration/capabilities")
    assert context_window(response.json()) == 777


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"apply_chat_template": True}, "rendered already"),
        ({"rollout_stop": ["</s>"]}, "--rollout-stop ['</s>'] does not reach agents"),
        ({"rollout_stop_token_ids": [1]}, "--rollout-stop-token-ids [1]"),
    ],
)
def test_what_is_probably_not_meant_is_warned_of_once(
    caplog: pytest.LogCaptureFixture, changes: dict[str, Any], text: str
) -> None:
    args = make_args(**(GOOD | changes))
    check_args(args)
    check_args(args)
    assert caplog.text.count(text) == 1


def test_a_sidecar_that_does_not_answer_is_no_reason_to_stop(caplog: pytest.LogCaptureFixture) -> None:
    args = make_args(**GOOD, max_tokens_per_gpu=5, tito_control_url="http://127.0.0.1:9", tito_control_token="t")
    with caplog.at_level(logging.WARNING):
        check_args(args)
    assert "not known" in caplog.text
