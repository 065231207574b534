"""How far ahead a rollout function runs, and what it raises where no batch can be made. Values; no state."""

from __future__ import annotations

from dataclasses import dataclass


class RolloutError(RuntimeError):
    """No batch can be made: agents die one after the other, or there are no more prompts."""


@dataclass(frozen=True)
class Policy:
    """How far ahead to run. `pool`: groups in flight at most. `surplus`: keep the pool full even if fewer groups
    are needed. `between_calls`: also while nobody collects. `keep_dead`: a group of which nothing lives is
    delivered all the same, to keep the batch's size."""

    pool: int
    surplus: bool = False
    between_calls: bool = False
    keep_dead: bool = False
