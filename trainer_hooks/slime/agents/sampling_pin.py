"""What a session pins, so that the agent samples as slime believes it does. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_NEUTRAL: dict[str, Any] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "repetition_penalty": 1.0,
    "logit_bias": None,
    "sampling_seed": None,
}
"""Pinned where slime says nothing. A seed of the agent's would give the same answers again and again."""

_BOUNDS = ("max_new_tokens", "min_new_tokens")


def sampling_pin(sampling_params: Mapping[str, Any]) -> dict[str, Any]:
    """The `sampling` of `/session/open` for slime's sampling parameters (slime 0.3.1, training and evaluation).

    `max_new_tokens` is an upper bound there, for each call. Stop strings cannot be pinned: the model's own stop
    tokens end a turn.
    """
    pin = {
        name: neutral if sampling_params.get(name) is None else sampling_params[name]
        for name, neutral in _NEUTRAL.items()
    }
    bounds = {name: int(sampling_params[name]) for name in _BOUNDS if sampling_params.get(name)}
    return pin | bounds
