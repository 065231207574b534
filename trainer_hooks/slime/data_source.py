"""A data source for `--data-source-path` under which no prompt is lost, however many samples a run becomes.

Reads prompts through slime's own `RolloutDataSource`. What is new is the account of groups: a checkpoint holds
those under way, those left over, and those whose batch was generated but not trained when it was written; after
a restart they come first. Safe from any thread: slime saves while the rollout worker takes groups.
"""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from trainer_hooks.slime.errors import ConversionError
from trainer_hooks.slime.rollouts.data_source_state import read_groups, state_path, write_groups
from trainer_hooks.slime.rollouts.group_source import Templates
from trainer_hooks.slime.segments.sample_fields import STALE_KEYS, metadata_without, set_training_fields
from trainer_hooks.slime.settings import arg
from trainer_hooks.slime.slime_modules import load_path, slime_name

logger = logging.getLogger(__name__)


class FanOutDataSource:
    """slime's data source interface, and `GroupSource` for the rollout functions of this package."""

    def __init__(self, args: Any, dataset: Any = None) -> None:
        self.args = args
        self._dataset = dataset or slime_name("slime.rollout.data_source.RolloutDataSource")(args)
        path = arg(args, "buffer_filter_path")
        self._buffer_filter = None if path is None else load_path(path, "buffer_filter_path")
        self._buffer: list[Templates] = []
        self._under_way: dict[int, Templates] = {}
        self._delivered: dict[int, list[Templates]] = {}
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self._dataset)

    # slime's interface

    def get_samples(self, num_samples: int) -> list[Templates]:
        """`num_samples` groups of `n_samples_per_prompt` samples: those given back first, then the dataset's."""
        with self._lock:
            groups = self._from_buffer(num_samples)
            if len(groups) < num_samples:
                groups += self._dataset.get_samples(num_samples - len(groups))
            return groups

    def add_samples(self, samples: list[Any]) -> None:
        """Put groups back. A run may be a sample or the list of its segments: it becomes a clean prompt again."""
        groups = [self._clean(group) for group in samples or ()]
        with self._lock:
            for group in groups:
                self._under_way.pop(group[0].group_index, None)
            self._put_back(groups)

    def save(self, rollout_id: int) -> None:
        """Beside slime's own file of the dataset's position, one with the groups that have not trained."""
        with self._lock:
            self._dataset.save(rollout_id)
            if arg(self.args, "rollout_global_dataset", False):
                untrained = [groups for later, groups in self._delivered.items() if later > rollout_id]
                groups = _ordered([*self._buffer, *self._under_way.values(), *chain.from_iterable(untrained)])
                write_groups(state_path(Path(self.args.save), rollout_id), groups)

    def load(self, rollout_id: int | None = None) -> None:
        """The position, and the groups that had not trained; they are run again from their prompts."""
        with self._lock:
            self._dataset.load(rollout_id)
            if arg(self.args, "rollout_global_dataset", False) and arg(self.args, "load") is not None:
                self._buffer = read_groups(state_path(Path(self.args.load), rollout_id))
                self._under_way, self._delivered = {}, {}
                logger.info("groups that had not trained are run again: %d", len(self._buffer))

    def update_metadata(self, metadata: dict[str, Any]) -> None:
        """slime's store of anything, saved with the position."""
        self._dataset.metadata.update(metadata)

    def get_metadata(self) -> dict[str, Any]:
        """What `update_metadata` stored."""
        metadata: dict[str, Any] = self._dataset.metadata
        return metadata

    def get_buffer_length(self) -> int:
        """Groups that were given back and not taken again."""
        return len(self._buffer)

    # GroupSource

    def take(self, count: int) -> list[Templates]:
        """`get_samples`, and the groups count as under way until they are given back, delivered or dropped."""
        with self._lock:
            groups = self.get_samples(count)
            for group in groups:
                self._under_way[group[0].group_index] = copy.deepcopy(group)
            return groups

    def give_back(self, groups: Sequence[Templates]) -> None:
        """These were not finished; they come first the next time, in their old order."""
        with self._lock:
            self._put_back(self._settled(groups))

    def deliver(self, rollout_id: int, groups: Sequence[Templates]) -> None:
        """These are in the batch of `rollout_id`; until a checkpoint of that rollout they count as not trained."""
        with self._lock:
            self._delivered[rollout_id] = self._settled(groups)
            # slime generates one batch ahead, so a checkpoint is at most one rollout behind
            for old in [known for known in self._delivered if known < rollout_id - 1]:
                del self._delivered[old]

    def drop(self, groups: Sequence[Templates]) -> None:
        """These will not train, and are forgotten."""
        with self._lock:
            self._settled(groups)

    def _settled(self, groups: Sequence[Templates]) -> list[Templates]:
        return [self._under_way.pop(group[0].group_index, group) for group in groups]

    def _put_back(self, groups: Iterable[Templates]) -> None:
        self._buffer = _ordered([*self._buffer, *groups])

    def _from_buffer(self, count: int) -> list[Templates]:
        if not self._buffer or count < 1:
            return []
        if self._buffer_filter is not None:
            return list(self._buffer_filter(self.args, None, self._buffer, count))
        taken, self._buffer = self._buffer[:count], self._buffer[count:]
        return taken

    def _clean(self, group: Sequence[Any]) -> Templates:
        size = self.args.n_samples_per_prompt
        if len(group) != size:
            raise ConversionError(f"a group of {len(group)} runs was put back; n_samples_per_prompt is {size}")
        return [_as_prompt(run) for run in group]


def _ordered(groups: Sequence[Templates]) -> list[Templates]:
    """By group index; those without one last, as they came."""
    return sorted(groups, key=lambda group: (group[0].group_index is None, group[0].group_index or 0))


def _as_prompt(run: Any) -> Any:
    """The sample that a run started from, without what was generated."""
    sample = copy.deepcopy(run[0] if isinstance(run, list | tuple) else run)
    # its instance_id stays: it may come from the data set, and names the same prompt in any case
    sample.metadata = metadata_without(sample, tuple(key for key in STALE_KEYS if key != "instance_id"))
    set_training_fields(
        sample,
        tokens=[],
        response="",
        loss_mask=[],
        logprobs=[],
        routed_experts=None,
        weight_versions=[],
        status="PENDING",
        remove_sample=False,
    )
    sample.loss_mask = sample.rollout_log_probs = None
    sample.reward = sample.rollout_id = sample.session_id = None
    return sample
