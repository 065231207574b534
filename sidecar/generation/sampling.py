"""Effective sampling: what the agent asks, overridden by the trainer's pin, under SGLang's names. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adapters.protocols.request import Sampling

_DEFAULTS: dict[str, Any] = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0}
_NEUTRAL: dict[str, Any] = {
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "repetition_penalty": 1.0,
    "logit_bias": None,
    "json_schema": None,
    "min_new_tokens": 0,
}
_RESTARTS = ("frequency_penalty", "presence_penalty", "repetition_penalty", "json_schema")
_LEAST = {"max_new_tokens": 1, "min_new_tokens": 0}
PINNABLE = (*_NEUTRAL, "temperature", "sampling_seed", "max_new_tokens")


def effective_sampling(asked: Sampling, pin: Mapping[str, Any], sibling: int = 0) -> dict[str, Any]:
    """SGLang sampling parameters without `max_new_tokens`, which is an upper bound in a pin.

    Unset fields get neutral values instead of the model's own defaults. A seed is moved on for the n-th sibling,
    or all siblings would be the same."""
    wanted: dict[str, Any] = {
        "temperature": asked.temperature,
        "top_p": asked.top_p,
        "top_k": asked.top_k,
        "min_p": asked.min_p,
        "frequency_penalty": asked.frequency_penalty,
        "presence_penalty": asked.presence_penalty,
        "repetition_penalty": asked.repetition_penalty,
        "sampling_seed": asked.seed,
        "logit_bias": dict(asked.logit_bias) if asked.logit_bias else None,
        "json_schema": asked.json_schema,
        "stop": list(asked.stop) or None,
    }
    effective = {**_DEFAULTS, **{name: value for name, value in wanted.items() if value is not None}}
    effective.update((name, value) for name, value in pin.items() if name != "max_new_tokens")
    effective = {name: value for name, value in effective.items() if value is not None}
    if sibling and "sampling_seed" in effective:
        effective["sampling_seed"] += sibling
    return effective


def is_off_policy(sampling: Mapping[str, Any]) -> bool:
    """The sampler did not draw from the distribution whose logprobs are reported, so its tokens must not train.

    Temperature 0 is greedy in SGLang, but reports temperature-1 logprobs."""
    changed = any(sampling.get(name, neutral) != neutral for name, neutral in _NEUTRAL.items())
    return changed or sampling.get("temperature") == 0


def is_resumable(sampling: Mapping[str, Any]) -> bool:
    """The sampler keeps no state beyond the ids, so a preempted reply can go on from them."""
    return all(sampling.get(name, _NEUTRAL[name]) == _NEUTRAL[name] for name in _RESTARTS)


def check_pin(pin: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A pin with known names and numbers. Raises `ValueError` that names the field."""
    for name, value in pin.items():
        if name not in PINNABLE:
            raise ValueError(f"{where}.{name} cannot be pinned; known names are {', '.join(sorted(PINNABLE))}")
        if name in ("logit_bias", "json_schema"):
            if value is not None:
                raise ValueError(f"{where}.{name} is {value!r}; it can only be pinned to null")
        elif name == "sampling_seed" and value is None:
            continue  # no seed, whatever the agent asks
        elif isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{where}.{name} is {value!r}; send a number")
        elif name in _LEAST and (not isinstance(value, int) or value < _LEAST[name]):
            raise ValueError(f"{where}.{name} is {value!r}; send a whole number of at least {_LEAST[name]}")
    return dict(pin)
