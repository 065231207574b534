"""Loss and gradient of our batches under slime's own reducer and policy loss, with megatron-core on the CPU.

The same batch goes two ways: through slime's schedule, micro-batches, `loss_function`, torch's autograd and what
Megatron does after it; and through the numpy loss of `tests.trainer_hooks.tiny_policy`, on which the properties of
`test_gradients.py` are shown. They must agree, and so must a run and the same run in segments.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.slime_conformance.checkout import slime_module
from tests.slime_conformance.trainer import micro_batches, rollout_manager, slime_args, split_by_rank
from tests.trainer_hooks.conversations import Conversation, mean_over_prompts, samples_of
from tests.trainer_hooks.tiny_policy import WEIGHTS, Step, states_before, steps_of
from trainer_hooks.slime.samples import mark_aborted_no_grad

Sample = slime_module("slime.utils.types").Sample
slime_module("slime.ray.rollout")
torch = pytest.importorskip("torch")
mpu = pytest.importorskip("megatron.core.parallel_state", reason="megatron-core is not installed")
loss_module = slime_module("slime.backends.megatron_utils.loss")
cp_utils = slime_module("slime.backends.megatron_utils.cp_utils")

RUNS = [
    Conversation(0, [([1, 2], [3, 4, 5]), ([5], [6, 7]), ([8], [9] * 6)], 1.0, [1, 2]),
    Conversation(0, [([1, 2], [8, 9, 10]), ([11], [12, 13])], 0.0, [1]),
    Conversation(1, [([3], [4] * 5), ([5], [6, 7])], 1.0),
    Conversation(1, [([3], [14]), ([5], [6, 7, 15, 16]), ([7], [8])], -0.5, [1]),
]
WHOLE = [Conversation(run.prompt, run.turns, run.reward) for run in RUNS]


@pytest.fixture(autouse=True)
def one_process(monkeypatch: pytest.MonkeyPatch) -> Any:
    """megatron-core's groups as they are without context and tensor parallelism; megatron itself stays away."""
    dist = torch.distributed
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    parallel = {"dp": 1}
    found: dict[str, Any] = {
        "get_context_parallel_world_size": lambda: 1,
        "get_context_parallel_rank": lambda: 0,
        "get_tensor_model_parallel_group": lambda *_, **__: dist.group.WORLD,
        "get_tensor_model_parallel_rank": lambda: 0,
        "is_pipeline_last_stage": lambda *_, **__: True,
        "get_data_parallel_world_size": lambda **_: parallel["dp"],
    }
    for name, getter in found.items():
        monkeypatch.setattr(mpu, name, getter)
    yield parallel


def loss_args(**changes: Any) -> SimpleNamespace:
    """Arguments of slime's policy loss: ratios to the sampler's log-probs, nothing else in the loss."""
    values: dict[str, Any] = {
        "loss_type": "policy_loss",
        "use_rollout_logprobs": True,
        "calculate_per_token_loss": False,
        "custom_pg_loss_reducer_function_path": None,
        "custom_advantage_function_path": None,
        "custom_tis_function_path": None,
        "recompute_loss_function": False,
        "allgather_cp": False,
        "log_probs_chunk_size": -1,
        "entropy_coef": 0.0,
        "eps_clip": 0.2,
        "eps_clip_high": 0.2,
        "eps_clip_c": None,
        "kl_coef": 0.0,
        "use_kl_loss": False,
        "use_unbiased_kl": False,
        "use_opsm": False,
        "use_tis": False,
        "get_mismatch_metrics": False,
        "normalize_advantages": False,
        "use_opd": False,
        "gamma": 1.0,
        "lambd": 1.0,
    }
    return slime_args(**(values | changes))


def flat(runs: list[Conversation], *, dead: int = 0) -> list[Any]:
    """Samples of slime's type, dead ones last."""
    extra = [
        mark_aborted_no_grad(Sample(index=90 + n, group_index=n % 2, metadata={"instance_id": f"task-{n % 2}"}))
        for n in range(dead)
    ]
    return [sample for run in samples_of(runs, sample_type=Sample) for sample in run] + extra


def slime_steps(
    args: Any, samples: list[Any], parallel: dict[str, int], monkeypatch: Any, *, dp_size: int = 1
) -> tuple[dict[str, Any], list[Step]]:
    """Train data, and per optimizer step what the optimizer gets: means over ranks of summed micro-batches."""
    parallel["dp"] = dp_size
    manager = rollout_manager(args, dp_size=dp_size)
    data = manager._convert_samples_to_train_data(samples)
    ranks = split_by_rank(manager, data, monkeypatch)
    steps = []
    for number in range(len(ranks[0]["num_microbatches"])):
        weights = torch.tensor(WEIGHTS, dtype=torch.float32, requires_grad=True)
        total = 0.0
        for rank in ranks:
            loss_module.compute_advantages_and_returns(args, rank)
            count = rank["num_microbatches"][number]
            for places in micro_batches(rank)[number]:
                loss = micro_batch_loss(args, rank, places, weights, count) / count / dp_size
                loss.backward()
                total += float(loss.detach())
        steps.append(Step(total, weights.grad.double().numpy()))
    return data, steps


def micro_batch_loss(args: Any, rank: dict[str, Any], places: list[int], weights: Any, count: int) -> Any:
    """slime's `loss_function` for one micro-batch."""
    batch: dict[str, Any] = {
        key: [rank[key][place] for place in places]
        for key in ("tokens", "loss_masks", "response_lengths", "rollout_log_probs", "advantages")
    }
    batch["unconcat_tokens"] = batch["tokens"]
    batch["total_lengths"] = [len(tokens) for tokens in batch["tokens"]]
    batch["rollout_mask_sums"] = rank["rollout_mask_sums"][places]
    states = np.concatenate([states_before(tokens.tolist())[1:] for tokens in batch["tokens"]])
    logits = (torch.tensor(states, dtype=torch.float32) @ weights.T).unsqueeze(0)
    loss, normaliser, _ = loss_module.loss_function(args, batch, count, args.global_batch_size, logits)
    assert int(normaliser) == 1
    return loss


def assert_close(one: list[Step], other: list[Step]) -> None:
    """Equal in single precision."""
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        assert a.loss == pytest.approx(b.loss, rel=1e-4, abs=1e-6)
        np.testing.assert_allclose(a.gradient, b.gradient, rtol=1e-3, atol=1e-6)
        assert np.abs(a.gradient).max() > 1e-3


@pytest.mark.parametrize("estimator", ["grpo", "reinforce_plus_plus_baseline"])
@pytest.mark.parametrize(("dp_size", "tokens"), [(1, 512), (1, 20), (2, 20)])
@pytest.mark.parametrize("dead", [0, 2])
def test_slimes_loss_has_the_gradient_of_the_numpy_one(
    estimator: str,
    dp_size: int,
    tokens: int,
    dead: int,
    one_process: dict[str, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gbs = 4 + dead
    args = loss_args(advantage_estimator=estimator, max_tokens_per_gpu=tokens, global_batch_size=gbs)
    data, steps = slime_steps(args, flat(RUNS, dead=dead), one_process, monkeypatch, dp_size=dp_size)
    assert_close(steps, steps_of(data, gbs))


@pytest.mark.parametrize("dead", [0, 2])
def test_in_slimes_loss_each_prompt_counts_by_the_mean_over_its_tokens(
    dead: int, one_process: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an advantage of 1 everywhere, against an expectation that knows nothing of samples and denominators."""
    runs = [replace(run, reward=1.0) for run in RUNS]
    args = loss_args(rewards_normalization=False, global_batch_size=len(runs) + dead, max_tokens_per_gpu=24)
    _, (step,) = slime_steps(args, flat(runs, dead=dead), one_process, monkeypatch, dp_size=2)
    np.testing.assert_allclose(step.gradient, mean_over_prompts(runs), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("estimator", ["grpo", "reinforce_plus_plus_baseline", "cispo"])
def test_splitting_changes_nothing_of_slimes_loss(
    estimator: str, one_process: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    args = loss_args(advantage_estimator=estimator, global_batch_size=4, max_tokens_per_gpu=24)
    _, split = slime_steps(args, flat(RUNS), one_process, monkeypatch, dp_size=2)
    _, whole = slime_steps(args, flat(WHOLE), one_process, monkeypatch, dp_size=1)
    assert_close(split, whole)


def test_dead_samples_change_nothing_of_slimes_loss(
    one_process: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, alone = slime_steps(loss_args(global_batch_size=4), flat(RUNS), one_process, monkeypatch)
    _, with_dead = slime_steps(loss_args(global_batch_size=7), flat(RUNS, dead=3), one_process, monkeypatch)
    assert_close(alone, with_dead)


def test_two_optimizer_steps_have_full_gradients_each(
    one_process: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    args = loss_args(global_batch_size=2)
    data, steps = slime_steps(args, flat(RUNS), one_process, monkeypatch)
    assert len(steps) == 2
    assert_close(steps, steps_of(data, 2))
    _, first = slime_steps(loss_args(global_batch_size=2), flat(RUNS[:2]), one_process, monkeypatch)
    assert_close(steps[:1], first)


def test_without_our_conversion_the_gradient_of_these_segments_is_another(
    one_process: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test can fail: slime's own conversion and baseline give another gradient for the same samples."""
    _, ours = slime_steps(loss_args(global_batch_size=4), flat(RUNS), one_process, monkeypatch)
    bare = loss_args(
        global_batch_size=4, custom_convert_samples_to_train_data_path=None, custom_reward_post_process_path=None
    )
    _, theirs = slime_steps(bare, flat(RUNS), one_process, monkeypatch)
    assert np.abs(ours[0].gradient - theirs[0].gradient).max() > 1e-3


def test_the_reducer_gives_the_denominators_of_the_worked_example() -> None:
    """Masks of 100 and 150 for prompt 1, 200 for prompt 2, gbs 4: each prompt sums to gbs / 2 of a mean of ones."""
    counts, denominators = [100, 150, 200], torch.tensor([125.0, 125.0, 100.0])
    reduce = cp_utils.get_sum_of_sample_mean(
        [count + 1 for count in counts], counts, [torch.ones(count) for count in counts], denominators
    )
    for chosen, share in ((slice(0, 250), 2.0), (slice(250, 450), 2.0)):
        values = torch.zeros(450)
        values[chosen] = 1.0
        assert float(reduce(values)) == pytest.approx(share)
    assert float(reduce(torch.ones(450))) / 4 == pytest.approx(1.0), "the weights of a step sum to 1"


def test_the_reducer_clamps_denominators_below_one_as_our_metric_says() -> None:
    reduce = cp_utils.get_sum_of_sample_mean([2], [1], [torch.ones(1)], torch.tensor([0.25]))
    assert float(reduce(torch.ones(1))) == 1.0


def test_reinforce_plus_plus_takes_our_batches_with_dead_samples(
    one_process: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    *live, dead = flat(RUNS, dead=1)
    args = loss_args(advantage_estimator="reinforce_plus_plus", global_batch_size=4)
    _, steps = slime_steps(args, [dead, *live], one_process, monkeypatch)
    assert np.abs(steps[0].gradient).max() > 1e-3
    bare = loss_args(
        advantage_estimator="reinforce_plus_plus",
        global_batch_size=5,
        custom_convert_samples_to_train_data_path=None,
    )
    with pytest.raises(AssertionError):
        slime_steps(bare, [dead, *live], one_process, monkeypatch)
