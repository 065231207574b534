"""The plot of `turn_cost`: CPU per turn over the prompt's length, with the floor and three times the floor."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

if TYPE_CHECKING:
    from benchmarks.turn_cost import Turn

_SMOOTH = 9


def plot(turns: Sequence[Turn], path: Path) -> None:
    """Write a PNG. Dots are turns, lines are running medians."""
    tokens = np.array([turn.tokens for turn in turns]) / 1000
    figure, axes = plt.subplots(figsize=(8, 4.8), dpi=140)
    for name, label, colour in (
        ("sidecar_ms", "sidecar, whole process", "tab:blue"),
        ("floor_ms", "floor: parse + encode new text + serialise ids", "tab:gray"),
        ("pass_through_ms", "bare pass-through", "tab:orange"),
    ):
        values = np.array([getattr(turn, name) for turn in turns])
        axes.plot(tokens, values, ".", color=colour, alpha=0.25, markersize=4)
        axes.plot(tokens, _running_median(values), color=colour, label=label)
        if name == "floor_ms":
            axes.plot(tokens, 3 * _running_median(values), "--", color=colour, label="3 x floor")
    axes.set_xlabel("prompt length, thousand tokens")
    axes.set_ylabel("CPU per turn, ms")
    axes.set_ylim(0, 1.15 * float(np.percentile([turn.sidecar_ms for turn in turns], 98)))
    axes.set_xlim(0, None)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, loc="upper left")
    axes.set_title("Cost of one turn as the conversation grows")
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def _running_median(values: np.ndarray) -> np.ndarray:
    half = _SMOOTH // 2
    return np.array([np.median(values[max(0, i - half) : i + half + 1]) for i in range(len(values))])
