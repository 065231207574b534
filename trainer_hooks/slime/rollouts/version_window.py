"""Which weight versions are new enough to train: the newest so many that were observed.

Versions are names, never numbers: their order is that in which they were seen to sample. One event loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from trainer_hooks.slime.rollouts.run import is_dead
from trainer_hooks.slime.segments.segment_arrays import CONTEXT_VERSION, UNKNOWN_VERSION

_NAMELESS = (CONTEXT_VERSION, UNKNOWN_VERSION)


class VersionWindow:
    """Keeps trajectories of the newest `keep` versions; 0 keeps all."""

    def __init__(self, keep: int) -> None:
        self.keep = keep
        self._order: list[str] = []

    @property
    def observed(self) -> tuple[str, ...]:
        """Oldest first."""
        return tuple(self._order)

    def observe(self, versions: Sequence[str]) -> None:
        """Versions in the order in which they sampled one sequence of tokens.

        A version that turns up late, in a long trajectory, goes before the one that followed it there.
        """
        before: int | None = None
        for version in reversed(versions):
            if version in _NAMELESS:
                continue
            if version not in self._order:
                self._order.insert(len(self._order) if before is None else before, version)
            before = self._order.index(version)

    def observe_group(self, runs: Iterable[Sequence[Any]]) -> None:
        """What the segments of a group's live runs say."""
        for run in runs:
            for sample in run:
                self.observe(sample.weight_versions or ())

    def last_version(self, run: Sequence[Any]) -> str | None:
        """The trajectory's last trainable version: the newest that ends a segment; None if none is named."""
        ends = [end for sample in run if (end := _end_version(sample)) in self._order]
        return max(ends, key=self._order.index, default=None)

    def gap(self, run: Sequence[Any]) -> int | None:
        """How many observed versions are newer than the trajectory's last; None if it names none."""
        last = self.last_version(run)
        return None if last is None else len(self._order) - 1 - self._order.index(last)

    def is_fresh(self, runs: Iterable[Sequence[Any]]) -> bool:
        """Whether every live run of a group is within the window. A run of unknown version is not."""
        if not self.keep:
            return True
        gaps = [self.gap(run) for run in runs if not is_dead(list(run))]
        return all(gap is not None and gap < self.keep for gap in gaps)


def _end_version(sample: Any) -> str | None:
    metadata = sample.metadata or {}
    if "end_token_version" in metadata:
        end = metadata["end_token_version"]
        return None if end is None else str(end)
    return str(sample.weight_versions[-1]) if sample.weight_versions else None
