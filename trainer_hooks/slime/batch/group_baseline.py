"""The group baseline of GRPO and its relatives: arithmetic only.

Pure functions; safe everywhere.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

GROUP_BASELINE_ESTIMATORS = frozenset({"grpo", "gspo", "cispo", "reinforce_plus_plus_baseline"})
"""Estimators whose rewards slime 0.3.1 centres within a prompt's group."""

STD_ESTIMATORS = frozenset({"grpo", "gspo", "cispo"})
"""Those of them that it also divides by the group's standard deviation."""

STD_EPSILON = 1e-6
"""Added to the standard deviation, as slime does."""


def centred(values: Sequence[float], *, divide_by_std: bool) -> list[float]:
    """`values` of one group less their mean, over the unbiased standard deviation + 1e-6 if asked.

    A group of one, or of equal values, gives exactly 0.0: rounding of the mean must not become an advantage.
    """
    if not values or all(value == values[0] for value in values):
        return [0.0] * len(values)
    mean = statistics.fmean(values)
    scale = statistics.stdev(values, mean) + STD_EPSILON if divide_by_std else 1.0
    return [(value - mean) / scale for value in values]
