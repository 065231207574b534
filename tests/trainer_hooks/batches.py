"""Whole batches for reward and conversion tests: trajectories of several segments, each token with its own id."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

from tests.trainer_hooks.builders import make_segment, make_template
from tests.trainer_hooks.slime_stand_in import Sample
from trainer_hooks.slime.samples import expand_segments_to_samples, mark_aborted_no_grad


@dataclass
class Run:
    """One trajectory: its prompt, its terminal reward, and the trained tokens of each of its segments."""

    prompt: int
    segments: list[int]
    reward: float | None = 1.0
    dead: bool = False


def make_batch(runs: list[Run], *, args: Any = None) -> list[list[Sample]]:
    """Samples per run. Run i has index i; a trained token's id is unique in the batch and starts at 1000."""
    counter = itertools.count(1000)
    batch = []
    for index, run in enumerate(runs):
        template = make_template(index, run.prompt, metadata={"instance_id": f"task-{run.prompt}"})
        if run.dead:
            batch.append([mark_aborted_no_grad(template, args=args)])
            continue
        segments = []
        for number, count in enumerate(run.segments):
            trained = [next(counter) for _ in range(count)]
            segments.append(
                make_segment(
                    [0, 0] + [1] * count,
                    index=number,
                    session_id=f"s{index}",
                    instance_id=f"task-{run.prompt}",
                    tokens=[1, 2, *trained],
                    reward=run.reward,
                )
            )
        batch.append(expand_segments_to_samples(template, segments, args=args))
    return batch


def flat_batch(runs: list[Run], *, args: Any = None) -> list[Sample]:
    """The same as one flat list, as slime hands it to its hooks."""
    return [sample for samples in make_batch(runs, args=args) for sample in samples]
