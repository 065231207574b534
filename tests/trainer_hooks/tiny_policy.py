"""A policy with a real gradient, small enough for numpy, and slime's loss on it.

The logits of a token depend on all tokens before it, so a sample whose response is cut one token too early, or
whose context is not its own, has another gradient. Every array is float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.trainer_hooks.slime_stand_in import schedule

Array = npt.NDArray[np.float64]

VOCABULARY = 24
FEATURES = 6
CLIP = 0.2

_random = np.random.default_rng(20)
EMBEDDING: Array = _random.normal(size=(VOCABULARY, FEATURES))
WEIGHTS: Array = _random.normal(size=(VOCABULARY, FEATURES))
OLD_WEIGHTS: Array = WEIGHTS + 0.15 * _random.normal(size=WEIGHTS.shape)
"""What sampled: a little off the weights that train, so that ratios are not 1 and some are clipped."""


@dataclass(frozen=True)
class Step:
    """One optimizer step: its loss and the loss' gradient by the weights, shape [VOCABULARY, FEATURES]."""

    loss: float
    gradient: Array


def states_before(tokens: list[int]) -> Array:
    """What the policy knows before each token, and after the last one: shape [n + 1, FEATURES]."""
    states = np.zeros((len(tokens) + 1, FEATURES))
    for i, token in enumerate(tokens):
        states[i + 1] = 0.7 * states[i] + EMBEDDING[token]
    return states


def token_logprobs(tokens: list[int], weights: Array) -> tuple[Array, Array]:
    """Log-prob of each token given those before it, shape [n] (0.0 for the first), and its gradient by the
    weights, shape [n, VOCABULARY, FEATURES]."""
    count = len(tokens)
    states = states_before(tokens)[:-1]
    logits = states @ weights.T
    shifted = logits - logits.max(axis=1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    chosen = -np.exp(logs)
    chosen[np.arange(count), tokens] += 1.0
    gradient = chosen[:, :, None] * states[:, None, :]
    values = logs[np.arange(count), tokens]
    values[0], gradient[0] = 0.0, 0.0
    return values, gradient


def sample_terms(data: dict[str, list[Any]], i: int, weights: Array) -> tuple[Array, Array, Array]:
    """Of sample i's response: clipped losses, their derivative by the log-prob, and the log-probs' gradients."""
    tokens, length = list(data["tokens"][i]), data["response_lengths"][i]
    logs, gradients = token_logprobs(tokens, weights)
    logs, gradients = logs[-length:], gradients[-length:]
    ratio = np.exp(logs - np.asarray(data["rollout_log_probs"][i]))
    advantage = data["rewards"][i]
    plain, clipped = -ratio * advantage, -np.clip(ratio, 1 - CLIP, 1 + CLIP) * advantage
    slope = np.where(plain >= clipped, plain, 0.0)
    slope = np.where((ratio > 1 - CLIP) & (ratio < 1 + CLIP), plain, slope)
    return np.maximum(plain, clipped), slope, gradients


def steps_of(data: dict[str, list[Any]], global_batch_size: int, weights: Array = WEIGHTS) -> list[Step]:
    """Loss and gradient of every optimizer step of slime's train data, as slime reduces them."""
    steps = []
    for positions in schedule(data["rollout_ids"], global_batch_size):
        loss, gradient = 0.0, np.zeros_like(weights)
        for i in positions:
            losses, slopes, gradients = sample_terms(data, i, weights)
            weight = np.asarray(data["loss_masks"][i]) / max(data["rollout_mask_sums"][i], 1.0) / global_batch_size
            loss += float((losses * weight).sum())
            gradient += np.einsum("t,tvf->vf", slopes * weight, gradients)
        steps.append(Step(loss, gradient))
    return steps


def assert_same_steps(one: list[Step], other: list[Step]) -> None:
    """Equal up to the rounding of sums in another order."""
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        np.testing.assert_allclose(a.loss, b.loss, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(a.gradient, b.gradient, rtol=1e-9, atol=1e-12)
