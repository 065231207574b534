"""A stand-in for slime 0.3.1: its `Sample`, and the checks of what consumes samples and train data.

Written from facts measured on slime, so that the hooks are tested without torch, ray or slime. Each check
fails where slime's would, also in its unhelpful ways. No shared state.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from enum import Enum
from types import SimpleNamespace
from typing import Any

import numpy as np


@dataclass
class Sample:
    """slime's unit of training, with its fields and defaults."""

    group_index: int | None = None
    index: int | None = None
    rollout_id: int | None = None
    prompt: str | list[dict[str, str]] = ""
    tokens: list[int] = field(default_factory=list)
    multimodal_inputs: dict[str, Any] | None = None
    multimodal_train_inputs: dict[str, Any] | None = None
    multimodal_train_input_id: str | None = None
    apply_chat_template_kwargs: dict = field(default_factory=dict)
    response: str = ""
    response_length: int = 0
    label: str | None = None
    reward: float | dict[str, Any] | None = None
    loss_mask: list[int] | None = None
    weight_versions: list[str] = field(default_factory=list)
    rollout_log_probs: list[float] | None = None
    rollout_top_p_token_ids: Any = None
    rollout_top_p_token_offsets: Any = None
    rollout_routed_experts: Any = None
    remove_sample: bool = False
    teacher_log_probs: list[float] | None = None

    class Status(Enum):
        PENDING = "pending"
        COMPLETED = "completed"
        TRUNCATED = "truncated"
        ABORTED = "aborted"
        FAILED = "failed"

    status: Status = Status.PENDING
    metadata: dict = field(default_factory=dict)
    generate_function_path: str | None = None
    custom_rm_path: str | None = None
    train_metadata: dict | None = None
    session_id: str | None = None
    non_generation_time: float = 0.0

    @dataclass
    class SpecInfo:
        spec_accept_token_num: int = 0
        spec_draft_token_num: int = 0
        spec_verify_ct: int = 0
        completion_token_num: int = 0

    spec_info: SpecInfo = field(default_factory=SpecInfo)

    @dataclass
    class PrefixCacheInfo:
        cached_tokens: int = 0
        total_prompt_tokens: int = 0

    prefix_cache_info: PrefixCacheInfo = field(default_factory=PrefixCacheInfo)

    def to_dict(self) -> dict[str, Any]:
        return self.__dict__ | {
            "status": self.status.value,
            "spec_info": dict(vars(self.spec_info)),
            "prefix_cache_info": dict(vars(self.prefix_cache_info)),
        }

    @staticmethod
    def from_dict(data: dict[str, Any]) -> Sample:
        return Sample(
            **data
            | {
                "status": Sample.Status(data["status"]),
                "spec_info": Sample.SpecInfo(**data["spec_info"]),
                "prefix_cache_info": Sample.PrefixCacheInfo(**data["prefix_cache_info"]),
            }
        )

    def get_reward_value(self, args: Any) -> Any:
        return self.reward[args.reward_key] if args.reward_key else self.reward


def make_args(**changes: Any) -> SimpleNamespace:
    """The arguments that the hooks read, with slime's defaults."""
    defaults = {
        "advantage_estimator": "grpo",
        "rewards_normalization": True,
        "grpo_std_normalization": True,
        "global_batch_size": 4,
        "n_samples_per_prompt": 1,
        "rollout_batch_size": 2,
        "reward_key": None,
        "max_tokens_per_gpu": None,
        "context_parallel_size": 1,
        "rollout_top_p": 1.0,
        "use_rollout_routing_replay": False,
        "num_layers": None,
        "moe_router_topk": None,
        "custom_reward_post_process_path": None,
    }
    return SimpleNamespace(**(defaults | changes))


def flatten(data: list[Any]) -> list[Sample]:
    """The rollout manager's flattening: only the first element decides how deep it goes."""
    while isinstance(data[0], list):
        data = list(itertools.chain.from_iterable(data))
    return data


def check_rollout_ids_annotated(node: Any, depth: int = 0) -> None:
    """Siblings of a fan-out (a list of samples at depth 2 or more) must share a rollout id."""
    if isinstance(node, Sample):
        return
    assert isinstance(node, list), type(node)
    if node and isinstance(node[0], Sample):
        if depth >= 2 and len(node) > 1:
            ids = {sample.rollout_id for sample in node}
            assert None not in ids and len(ids) == 1, ids
        return
    for child in node:
        check_rollout_ids_annotated(child, depth + 1)


ALWAYS_KEYS = {
    "tokens",
    "response_lengths",
    "rewards",
    "raw_reward",
    "truncated",
    "sample_indices",
    "rollout_ids",
    "loss_masks",
    "rollout_mask_sums",
}

TENSOR_KEYS = ("tokens", "loss_masks", "rollout_log_probs", "teacher_log_probs", "rollout_routed_experts")


def check_train_data(data: dict[str, list[Any]]) -> None:
    """What conversion asserts and what making tensors would refuse: lengths, None, ragged values."""
    assert data.keys() >= ALWAYS_KEYS, ALWAYS_KEYS - data.keys()
    count = len(data["tokens"])
    for key, values in data.items():
        assert len(values) == count, key
    for i in range(count):
        assert len(data["loss_masks"][i]) == data["response_lengths"][i]
        assert len(data["tokens"][i]) > data["response_lengths"][i] >= 1
    for key in TENSOR_KEYS:
        for value in data.get(key, []):
            if value is None:
                raise TypeError(f"{key}: a tensor cannot be made of None")
            assert np.asarray(value).dtype != object, key
    assert np.isfinite(np.asarray(data["rollout_mask_sums"], dtype=np.float32)).all()
    assert np.isfinite(np.asarray(data["rewards"], dtype=np.float32)).all()


def check_replay(experts: np.ndarray, args: Any) -> None:
    """Routing replay refuses other shapes, and layers whose rows are all zero."""
    assert experts.ndim == 3 and experts.shape[1:] == (args.num_layers, args.moe_router_topk), experts.shape
    assert experts.shape[0] > 0
    if args.moe_router_topk > 1:
        assert experts.any(axis=(0, 2)).all()


def schedule(rollout_ids: list[int], global_batch_size: int) -> list[list[int]]:
    """Sample positions per optimizer step: whole steps of distinct ids in first-seen order, the rest dropped."""
    order = list(dict.fromkeys(rollout_ids))
    steps = len(order) // global_batch_size
    assert steps >= 1, f"{len(order)} rollouts < global_batch_size {global_batch_size}"
    return [
        [
            i
            for rid in order[s * global_batch_size : (s + 1) * global_batch_size]
            for i in range(len(rollout_ids))
            if rollout_ids[i] == rid
        ]
        for s in range(steps)
    ]


def token_weights(data: dict[str, list[Any]], global_batch_size: int) -> list[dict[int, float]]:
    """Per optimizer step, the weight of each trained token's loss by token id (give every token its own id)."""
    steps = []
    for positions in schedule(data["rollout_ids"], global_batch_size):
        weights: dict[int, float] = {}
        for i in positions:
            response = data["tokens"][i][len(data["tokens"][i]) - data["response_lengths"][i] :]
            for token, mask in zip(response, data["loss_masks"][i], strict=True):
                if mask:
                    assert token not in weights, f"token {token} trains twice"
                    weights[token] = mask / max(data["rollout_mask_sums"][i], 1.0) / global_batch_size
        steps.append(weights)
    return steps


def token_advantages(data: dict[str, list[Any]]) -> dict[int, float]:
    """The advantage of each trained token by token id: the sample's reward, broadcast."""
    advantages = {}
    for tokens, length, mask, reward in zip(
        data["tokens"], data["response_lengths"], data["loss_masks"], data["rewards"], strict=True
    ):
        advantages |= {t: reward for t, m in zip(tokens[len(tokens) - length :], mask, strict=True) if m}
    return advantages
