"""`check_args(args)`: refuse slime settings under which training would silently go wrong.

Every hook calls it first; what it found is remembered on `args` itself, so it costs one attribute look-up from
then on. The rules are pure and are checked at every call until they pass; the one question to a sidecar (how
long a context it lets agents have) is asked once and can only warn. Rules are those of slime 0.3.1; an
attribute that `args` lacks breaks no rule. Safe from any thread; may block for some seconds the first time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from trainer_hooks.control_errors import ControlError
from trainer_hooks.control_requests import capabilities
from trainer_hooks.slime.control import open_control
from trainer_hooks.slime.errors import SettingError
from trainer_hooks.slime.settings import arg, text_setting, token_cap

logger = logging.getLogger(__name__)

_CHECKED = "tito_args_checked"
_QUESTION = replace(capabilities(), timeout_seconds=5.0, idempotent=False)
"""Asked once, without the client's repeats: training must not wait for a warning."""


def check_args(args: Any) -> None:
    """Refuse `args` that would train the wrong thing. Raises `SettingError` with every reason found.

    Blocks for some seconds at most, the first time: use `check_args_async` on an event loop.
    """
    if _first_to_pass(args):
        warn_of_long_contexts(args)


async def check_args_async(args: Any) -> None:
    """`check_args` without blocking the event loop."""
    if _first_to_pass(args):
        await asyncio.to_thread(warn_of_long_contexts, args)


def _first_to_pass(args: Any) -> bool:
    if getattr(args, _CHECKED, False):
        return False
    problems = list(find_problems(args))
    if problems:
        raise SettingError("slime's arguments do not fit these hooks:\n- " + "\n- ".join(problems))
    setattr(args, _CHECKED, True)
    for warning in find_doubts(args):
        logger.warning("%s", warning)
    return True


def find_problems(args: Any) -> Iterator[str]:
    """What is wrong, one sentence each, with its remedy."""
    for rule in _RULES:
        yield from rule(args)


def find_doubts(args: Any) -> Iterator[str]:
    """What may be meant, and mostly is not."""
    if arg(args, "apply_chat_template", False):
        yield (
            "--apply-chat-template is set: agents get prompts that are rendered already, as if the user had typed "
            "the template's special tokens; leave it out unless your agents take their task from elsewhere"
        )
    for name in ("rollout_stop", "rollout_stop_token_ids"):
        if arg(args, name):
            yield (
                f"--{name.replace('_', '-')} {getattr(args, name)} does not reach agents: their turns end at the "
                "model's own stop tokens"
            )


def warn_of_long_contexts(args: Any) -> None:
    """Log a warning where agents may have longer contexts than training takes: their ends would be cut off."""
    cap = token_cap(args)
    if cap is None or text_setting(args, "TITO_CONTROL_URL") is None:
        return
    try:
        with open_control(args) as control:
            reply = control.send(_QUESTION)
    except (ControlError, SettingError) as error:
        logger.warning("the sidecar's context window is not known, so it was not compared to %d: %s", cap, error)
        return
    window = context_window(reply)
    if window is not None and window > cap:
        logger.warning(
            "context_window_exceeds_training_cap: agents may use %d tokens but training takes %d "
            "(max_tokens_per_gpu times context parallelism); longer trajectories lose their ends. Start the "
            "sidecar with --context-window %d, or raise --max-tokens-per-gpu",
            window,
            cap,
            cap,
        )


def context_window(reply: dict[str, Any]) -> int | None:
    """Tokens that a session may hold, as `GET /integration/capabilities` tells; None where it is not known."""
    window = reply.get("context_window")
    engine = (reply.get("engine") or {}).get("context_length")
    known = [int(value) for value in (window, engine) if value]
    return min(known) if known else None


def _losses(args: Any) -> Iterator[str]:
    if arg(args, "calculate_per_token_loss", False):
        yield (
            "--calculate-per-token-loss ignores rollout_mask_sums, so prompts with long answers would weigh more, "
            "and each masked sample adds a phantom token; leave it out"
        )
    if arg(args, "custom_pg_loss_reducer_function_path"):
        yield (
            f"--custom-pg-loss-reducer-function-path {args.custom_pg_loss_reducer_function_path} does not get "
            "rollout_mask_sums, so segments would weigh by their number; leave it out"
        )


def _fan_out(args: Any) -> Iterator[str]:
    for name, why in (
        ("group_rm", "puts the group's rewards on lists of samples, where nobody reads them"),
        ("log_passrate", "asserts on a number of samples that is not rollout_batch_size * n_samples_per_prompt"),
        ("log_reward_category", "looks for a category in every sample's reward, and only a run's anchor has one"),
        ("partial_rollout", "reads fields of a list of samples; that of the sidecar is on by itself"),
    ):
        if arg(args, name, False):
            yield f"--{name.replace('_', '-')} {why}; leave it out"
    if getattr(args, "use_dynamic_batch_size", None) is False:
        yield (
            "static batching needs a number of samples that divides evenly, and one agent run becomes any number "
            "of them; use --use-dynamic-batch-size with --max-tokens-per-gpu"
        )
    if str(arg(args, "dynamic_sampling_filter_path", "")).startswith("slime."):
        yield (
            f"--dynamic-sampling-filter-path {args.dynamic_sampling_filter_path} fails on lists of samples; use "
            "trainer_hooks.slime.filters.check_reward_nonzero_std"
        )
    if str(arg(args, "rollout_function_path", "")).startswith("slime.rollout.fully_async_rollout."):
        yield (
            f"--rollout-function-path {args.rollout_function_path} does not see that a list of samples was aborted "
            "and would train it; use trainer_hooks.slime.fully_async_rollout.generate_rollout_fully_async"
        )


def _rewards(args: Any) -> Iterator[str]:
    paths = ("custom_convert_samples_to_train_data_path", "custom_reward_post_process_path")
    if all(hasattr(args, name) and not getattr(args, name) for name in paths):
        yield (
            "slime's own conversion takes one reward baseline over the whole batch once a rollout has several "
            "samples; use --custom-convert-samples-to-train-data-path "
            "trainer_hooks.slime.convert_samples.convert_samples_to_train_data and "
            "--custom-reward-post-process-path trainer_hooks.slime.reward_post_process.reward_post_process"
        )


def _sampling(args: Any) -> Iterator[str]:
    if arg(args, "rollout_top_p", 1.0) != 1.0:
        yield (
            f"--rollout-top-p is {args.rollout_top_p}: slime then needs the kept ids of every token, which are not "
            "recorded; use 1.0"
        )
    if arg(args, "rollout_top_k", -1) != -1:
        yield f"--rollout-top-k is {args.rollout_top_k}: logprobs would not be those of the sampler; use -1"
    if arg(args, "rollout_temperature", 1.0) == 0:
        yield "--rollout-temperature is 0: greedy tokens come with the logprobs of temperature 1; use another"


def _replay(args: Any) -> Iterator[str]:
    if not arg(args, "use_rollout_routing_replay", False):
        return
    missing = [name for name in ("num_layers", "moe_router_topk") if arg(args, name) is None]
    if missing:
        yield (
            f"--use-rollout-routing-replay without {' and '.join(missing)}: expert rows cannot be checked; give "
            "the model's --num-layers and --moe-router-topk"
        )


def _batch(args: Any) -> Iterator[str]:
    batch, group = arg(args, "global_batch_size"), arg(args, "n_samples_per_prompt")
    if batch and group and batch % group:
        yield (
            f"--global-batch-size {batch} is no multiple of --n-samples-per-prompt {group}: an optimizer step "
            "would end within a prompt's group; make it one"
        )


_RULES: tuple[Callable[[Any], Iterator[str]], ...] = (_losses, _fan_out, _rewards, _sampling, _replay, _batch)
