"""The plot of `store`: committed steps per second and what a reply waits, over the sessions at work."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

if TYPE_CHECKING:
    from benchmarks.store import Rate

_COLOURS = {"sqlite": "tab:blue", "postgresql": "tab:orange"}


def plot(rates: Sequence[Rate], path: Path) -> None:
    """Write a PNG: rates on the left, latencies on the right, the median as a line, p99 in dashes."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.4), dpi=140)
    for database, colour in _COLOURS.items():
        own = [rate for rate in rates if rate.database == database and rate.sessions]
        raw = next(rate for rate in rates if rate.database == database and not rate.sessions)
        sessions = [rate.sessions for rate in own]
        left.plot(sessions, [rate.steps_per_second for rate in own], "o-", color=colour, label=database)
        left.axhline(raw.steps_per_second, color=colour, ls=":", label=f"{database}, raw single-row inserts")
        right.plot(sessions, [rate.p50_ms for rate in own], "o-", color=colour, label=f"{database}, p50")
        right.plot(sessions, [rate.p99_ms for rate in own], "o--", color=colour, label=f"{database}, p99")
    for axes, what in ((left, "committed steps per second"), (right, "added latency, ms")):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(sorted({rate.sessions for rate in rates if rate.sessions}))
        axes.xaxis.set_major_formatter("{x:.0f}")
        axes.set_xlabel("sessions at once")
        axes.set_ylabel(what)
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, fontsize=8)
    figure.suptitle("Steps kept for good")
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)
