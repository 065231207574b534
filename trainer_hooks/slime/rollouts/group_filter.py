"""slime's `--dynamic-sampling-filter-path` for groups of runs of segments.

The filter is called as slime calls it, with `[run][segment]` in place of `[run]`; one that knows no segments
(slime's own) fails, and `check_args` refuses it. No state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainer_hooks.slime.settings import arg
from trainer_hooks.slime.slime_modules import load_path


class GroupFilter:
    """`keep_dropped`: somebody wants to see what was dropped (`--rollout-all-samples-process-path`)."""

    def __init__(self, args: Any, function: Callable[..., Any]) -> None:
        self._args = args
        self._function = function
        self.keep_dropped = arg(args, "rollout_all_samples_process_path") is not None

    @classmethod
    def from_args(cls, args: Any) -> GroupFilter | None:
        """The filter that `args` names, or None."""
        path = arg(args, "dynamic_sampling_filter_path")
        return None if path is None else cls(args, load_path(path, "dynamic_sampling_filter_path"))

    def reason_to_drop(self, runs: list[list[Any]], spare: int) -> str | None:
        """Why the group must not train, or None. `spare`: candidates beyond those needed, this one not counted.

        A group that the filter would rather keep than start another (`keep_when_insufficient`) stays while there
        are none to spare.
        """
        output = self._function(self._args, runs)
        if getattr(output, "keep", output):
            return None
        if getattr(output, "keep_when_insufficient", False) and spare < 0:
            return None
        return str(getattr(output, "reason", None) or "dropped")
