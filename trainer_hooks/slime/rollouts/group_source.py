"""Where groups come from and what becomes of them, whichever data source slime was started with.

A source that keeps accounts (`FanOutDataSource`) is told of every group's fate, so that a checkpoint holds the
prompts that are still under way. Slime's own is asked for groups and gets unfinished ones back, no more.
Called from the event loop of the rollout worker alone.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

logger = logging.getLogger(__name__)

Templates = list[Any]
"""The samples of one group, one per agent run, before anything was generated."""


@runtime_checkable
class GroupSource(Protocol):
    """Groups with their accounts. Every group that was taken is given back, delivered or dropped once."""

    def take(self, count: int) -> list[Templates]:
        """Up to `count` groups; fewer where there are no more."""

    def give_back(self, groups: Sequence[Templates]) -> None:
        """These were not finished; they come first the next time."""

    def deliver(self, rollout_id: int, groups: Sequence[Templates]) -> None:
        """These are in the batch of `rollout_id`."""

    def drop(self, groups: Sequence[Templates]) -> None:
        """These will not train."""


def group_source(data_source: Any) -> GroupSource:
    """`data_source` itself if it keeps accounts, else one that does what slime's can."""
    if isinstance(data_source, GroupSource):
        return data_source
    logger.warning(
        "%s does not keep account of groups under way: those are lost when training restarts from a checkpoint; "
        "use --data-source-path trainer_hooks.slime.data_source.FanOutDataSource",
        type(data_source).__name__,
    )
    return _PlainSource(data_source)


class _PlainSource:
    def __init__(self, data_source: Any) -> None:
        self._data_source = data_source

    def take(self, count: int) -> list[Templates]:
        return list(self._data_source.get_samples(count) or ())

    def give_back(self, groups: Sequence[Templates]) -> None:
        if groups:
            self._data_source.add_samples([copy.deepcopy(group) for group in groups])

    def deliver(self, rollout_id: int, groups: Sequence[Templates]) -> None:
        pass

    def drop(self, groups: Sequence[Templates]) -> None:
        pass
