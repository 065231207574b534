"""Agent runs made of turns, as one segment or several, with the log-probs of the tiny policy that sampled them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.trainer_hooks.builders import make_segment
from tests.trainer_hooks.slime_stand_in import Sample, make_args
from tests.trainer_hooks.tiny_policy import (
    OLD_WEIGHTS,
    VOCABULARY,
    WEIGHTS,
    Array,
    sample_terms,
    token_logprobs,
)
from trainer_hooks.slime.convert_samples import convert_samples_to_train_data
from trainer_hooks.slime.samples import expand_segments_to_samples

Turn = tuple[list[int], list[int]]
"""Ids that were appended, and ids that were sampled after them."""


@dataclass
class Conversation:
    """One run of an agent. `cuts`: turns at which a new segment begins, within 1..len(turns) - 1."""

    prompt: int
    turns: list[Turn]
    reward: float | None = 1.0
    cuts: list[int] = field(default_factory=list)

    @property
    def sampled(self) -> int:
        """Tokens that train."""
        return sum(len(sampled) for _, sampled in self.turns)


def segments_of(conversation: Conversation, index: int) -> list[dict[str, Any]]:
    """Each segment holds the whole history before it as context, and trains the turns of its own."""
    edges = [0, *sorted(conversation.cuts), len(conversation.turns)]
    segments = []
    for number in range(len(edges) - 1):
        tokens: list[int] = []
        mask: list[int] = []
        for position, (context, sampled) in enumerate(conversation.turns[: edges[number + 1]]):
            tokens += context + sampled
            mask += [0] * len(context) + [int(position >= edges[number])] * len(sampled)
        logprobs, _ = token_logprobs(tokens, OLD_WEIGHTS)
        segments.append(
            make_segment(
                mask,
                index=number,
                session_id=f"s{index}",
                instance_id=f"task-{conversation.prompt}",
                segment_count=len(edges) - 1,
                tokens=tokens,
                full_logprobs=logprobs.tolist(),
                reward=conversation.reward,
            )
        )
    return segments


def samples_of(
    conversations: list[Conversation], *, args: Any = None, sample_type: type[Any] = Sample
) -> list[list[Any]]:
    """Samples per run; run i has index i, and its prompt is its group."""
    return [
        expand_segments_to_samples(
            sample_type(
                index=i,
                group_index=run.prompt,
                session_id=f"s{i}",
                prompt="q",
                metadata={"instance_id": f"task-{run.prompt}"},
            ),
            segments_of(run, i),
            args=args,
        )
        for i, run in enumerate(conversations)
    ]


def train_data(samples: list[list[Sample]], gbs: int, **changes: Any) -> dict[str, list[Any]]:
    """Samples per run, flattened as slime does, to its train data."""
    args = make_args(global_batch_size=gbs, **changes)
    return convert_samples_to_train_data(args, [sample for run in samples for sample in run])


def mean_over_prompts(conversations: list[Conversation]) -> Array:
    """The gradient of a batch whose advantages are all 1: the mean over prompts of the mean over their tokens.

    Knows nothing of samples, denominators and optimizer steps.
    """
    of_prompt: dict[int, list[Array]] = {}
    for i, run in enumerate(conversations):
        (segment,) = segments_of(replace(run, cuts=[]), i)
        whole = {
            "tokens": [segment["tokens"]],
            "response_lengths": [len(segment["tokens"])],
            "rollout_log_probs": [segment["full_logprobs"]],
            "rewards": [1.0],
        }
        _, slopes, gradients = sample_terms(whole, 0, WEIGHTS)
        trained = np.flatnonzero(segment["full_loss_mask"])
        of_prompt.setdefault(run.prompt, []).extend(slopes[t] * gradients[t] for t in trained)
    mean: Array = np.mean([np.mean(found, axis=0) for found in of_prompt.values()], axis=0)
    return mean


ids = st.integers(0, VOCABULARY - 1)
turns = st.tuples(st.lists(ids, min_size=1, max_size=3), st.lists(ids, min_size=2, max_size=4))


@st.composite
def conversations(draw: st.DrawFn) -> Conversation:
    """At least eight sampled tokens, so that no denominator of a small batch falls below 1."""
    made = draw(st.lists(turns, min_size=4, max_size=6))
    return Conversation(draw(st.integers(0, 2)), made, draw(st.sampled_from([0.0, 1.0, 0.25, -1.5])))


@st.composite
def cut(draw: st.DrawFn, whole: Conversation) -> Conversation:
    """The same run in several segments."""
    places = draw(st.lists(st.integers(1, len(whole.turns) - 1), unique=True, max_size=3))
    return Conversation(whole.prompt, whole.turns, whole.reward, places)
