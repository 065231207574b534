"""One agent run of one prompt: slime's custom generate function, its sample hooks, its reward model.

Promises: the template is not handed out, a copy with a fresh session is, so that a run that fails in the middle
leaves nothing behind; what comes back is always a list of segments that share a rollout id, or one dead sample.
Concurrency: any number of runs in one event loop; nothing is shared.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import logging
import uuid
from typing import Any

from trainer_hooks.slime.errors import ConversionError, RewardError, SettingError
from trainer_hooks.slime.samples import mark_aborted_no_grad
from trainer_hooks.slime.settings import arg
from trainer_hooks.slime.slime_modules import load_path, slime_name

logger = logging.getLogger(__name__)

_DEAD = ("ABORTED", "FAILED")


async def run_rollout(args: Any, template: Any, sampling_params: dict[str, Any]) -> list[Any]:
    """The run's samples, the anchor rewarded, or `[one ABORTED sample]` where it failed; see `is_dead`.

    On `template` only `metadata["retry_count"]` and `["last_failed_session_id"]` change, after a failure.
    Raises `SettingError` and `RewardError`, which a retry cannot mend; a cancellation comes through.
    """
    attempt = copy.deepcopy(template)
    attempt.session_id = str(uuid.uuid4())
    try:
        samples = await _generate(args, attempt, sampling_params)
        if not is_dead(samples):
            await _reward(args, samples)
    except (SettingError, RewardError):
        raise
    except asyncio.CancelledError:
        if _cancelled_by_us():
            raise
        samples = _failed(args, attempt, "cancelled from within")
    except Exception as error:
        where = f"index={template.index} group_index={template.group_index}"
        logger.warning("rollout_failed %s", where, exc_info=True)
        samples = _failed(args, attempt, f"{type(error).__name__}: {error}")
    if is_dead(samples):
        _carry_over(template, attempt)
    return samples


def is_dead(samples: list[Any]) -> bool:
    """Whether the run must not train: a live list never contains an ABORTED sample."""
    return any(sample.status.name in _DEAD for sample in samples)


def placeholder(args: Any, template: Any, reason: str) -> list[Any]:
    """A dead run, for a place in the batch that has to be filled; the template stays as it is."""
    return [mark_aborted_no_grad(copy.deepcopy(template), args=args, reason=reason)]


async def _generate(args: Any, attempt: Any, sampling_params: dict[str, Any]) -> list[Any]:
    path = attempt.generate_function_path or arg(args, "custom_generate_function_path")
    if path is None:
        raise SettingError(
            "custom_generate_function_path is not set; use --custom-generate-function-path "
            "trainer_hooks.slime.blackbox_dispatch.generate"
        )
    generate = load_path(path, "custom_generate_function_path")
    more = {"evaluation": False} if "evaluation" in inspect.signature(generate).parameters else {}
    result = await generate(args, attempt, dict(sampling_params), **more)
    if arg(args, "rollout_sample_hook_path"):
        result = await slime_name("slime.rollout.sample_hooks.apply_rollout_sample_hooks")(
            args, result, evaluation=False
        )
    samples = list(result) if isinstance(result, list | tuple) else [result]
    if not samples:
        raise ConversionError(f"{path} returned no sample; it must return one, or a list of at least one")
    for sample in samples:
        if sample.rollout_id is None:
            sample.rollout_id = attempt.index
        elif sample.rollout_id != samples[0].rollout_id:
            raise ConversionError(f"{path} returned segments with different rollout ids; siblings must share one")
    return samples


async def _reward(args: Any, samples: list[Any]) -> None:
    """As slime does for lists: those without a reward go to the reward model together."""
    unrewarded = [sample for sample in samples if sample.reward is None]
    if not unrewarded:
        return
    rewards = list(await slime_name("slime.rollout.rm_hub.batched_async_rm")(args, unrewarded))
    if len(rewards) != len(unrewarded):
        raise ConversionError(f"the reward model returned {len(rewards)} rewards for {len(unrewarded)} samples")
    for sample, reward in zip(unrewarded, rewards, strict=True):
        sample.reward = reward


def _failed(args: Any, attempt: Any, reason: str) -> list[Any]:
    return [mark_aborted_no_grad(attempt, args=args, reason=reason)]


def _carry_over(template: Any, attempt: Any) -> None:
    before = template.metadata or {}
    failed = (attempt.metadata or {}).get("last_failed_session_id")
    template.metadata = before | {
        "last_failed_session_id": failed,
        "retry_count": int(before.get("retry_count") or 0) + 1,
    }


def _cancelled_by_us() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
