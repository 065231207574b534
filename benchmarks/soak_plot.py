"""The plot of `soak`: the sidecar's memory over time, and how long each pause took to be quiet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def plot(figures: dict[str, Any], path: Path) -> None:
    """Write a PNG from the figures that `soak` writes as JSON."""
    figure, (upper, lower) = plt.subplots(2, 1, figsize=(8, 5), dpi=140, sharex=True, height_ratios=(2.2, 1))
    samples, pauses = figures["samples"], figures["pauses"]
    upper.plot([one["at"] / 60 for one in samples], [one["resident"] / 2**20 for one in samples], color="tab:blue")
    upper.set_ylabel("resident memory, MB")
    upper.set_ylim(0, None)
    upper.set_title(f"{figures['load']['agents']} agents, a pause every {figures['load']['pause_every']:g} s")
    lower.bar([one["at"] / 60 for one in pauses], [one["took"] for one in pauses], width=0.1, color="tab:orange")
    lower.set_ylabel("quiet after, s")
    lower.set_xlabel("minutes")
    for axes in (upper, lower):
        axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)
