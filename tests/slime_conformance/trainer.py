"""slime's own way from samples to what each data-parallel rank gets. Needs slime."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.slime_conformance.checkout import slime_module

HOOKS = {
    "custom_convert_samples_to_train_data_path": (
        "trainer_hooks.slime.convert_samples.convert_samples_to_train_data"
    ),
    "custom_reward_post_process_path": "trainer_hooks.slime.reward_post_process.reward_post_process",
}


def slime_args(**changes: Any) -> SimpleNamespace:
    """What slime's rollout manager, schedule, loss and metrics read, as a launch script with our hooks sets it."""
    values: dict[str, Any] = {
        **HOOKS,
        "advantage_estimator": "grpo",
        "rewards_normalization": True,
        "grpo_std_normalization": True,
        "global_batch_size": 2,
        "n_samples_per_prompt": 1,
        "rollout_batch_size": 2,
        "reward_key": None,
        "use_dynamic_batch_size": True,
        "max_tokens_per_gpu": 512,
        "micro_batch_size": None,
        "balance_by_flops": False,
        "balance_data": False,
        "rollout_top_p": 1.0,
        "rollout_top_k": -1,
        "rollout_temperature": 1.0,
        "use_rollout_routing_replay": False,
        "num_layers": None,
        "moe_router_topk": None,
        "log_reward_category": None,
        "rollout_num_gpus": 1,
        "custom_rollout_log_function_path": None,
        "load_debug_rollout_data": None,
        "wandb_always_use_train_step": False,
    }
    return SimpleNamespace(**(values | changes))


def rollout_manager(args: Any, *, dp_size: int = 1) -> Any:
    """slime's RolloutManager without ray and engines: only what conversion and the split by rank use."""
    rollout = slime_module("slime.ray.rollout")
    load = slime_module("slime.utils.misc").load_function
    manager = object.__new__(rollout.RolloutManager.__ray_metadata__.modified_class)
    manager.args = args
    for name in HOOKS:
        path = getattr(args, name)
        setattr(manager, name.removesuffix("_path") + "_func", load(path) if path else None)
    manager.train_parallel_config = {
        "dp_size": dp_size,
        "cp_size": 1,
        "vpp_size": 1,
        "microbatch_group_size_per_vp_stage": 1,
    }
    return manager


def split_by_rank(manager: Any, data: dict[str, Any], monkeypatch: Any) -> list[dict[str, Any]]:
    """What each data-parallel rank would fetch from ray."""
    monkeypatch.setattr(slime_module("slime.ray.rollout").ray, "put", lambda value, **_: value)
    return [box.inner for box in manager._split_train_data_by_dp(dict(data))]


def micro_batches(rank: dict[str, Any]) -> list[list[list[int]]]:
    """Per optimizer step, per micro-batch, the positions in the rank's own lists."""
    steps, start = [], 0
    for count in rank["num_microbatches"]:
        steps.append(rank["micro_batch_indices"][start : start + count])
        start += count
    return steps
