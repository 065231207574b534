"""The plot of `streams`: what an event costs, and every stall of the sidecar's loop over time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

_WANTED_MS = 50


def plot(figures: dict[str, Any], path: Path) -> None:
    """Write a PNG from the figures that `streams` writes as JSON."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.4), dpi=140, width_ratios=(1, 2.4))
    through, sidecar = figures["pass_through"]["quiet"], figures["sidecar"]["quiet"]
    costs = [through["cpu_us_per_event"], sidecar["cpu_us_per_event"]]
    left.bar(["pass-through", "sidecar"], costs, color=["tab:orange", "tab:blue"], width=0.6)
    left.axhline(2 * costs[0], linestyle="--", color="tab:gray", label="2 x pass-through")
    left.set_ylabel("CPU per event, microseconds")
    left.legend(frameon=False, fontsize=8)
    stalls = [line for line in figures["stalls"] if line["kind"] == "stall"]
    begin = min((line["at"] for line in figures["stalls"]), default=0.0)
    times = [line["at"] - begin for line in stalls]
    right.plot(times, [line["ms"] for line in stalls], ".", color="tab:gray", markersize=4, label="late by")
    own = [min(line["ms"], line["cpu_ms"]) for line in stalls]
    right.plot(times, own, ".", color="tab:blue", markersize=4, label="of which it computed")
    right.axhline(_WANTED_MS, linestyle="--", color="tab:red", linewidth=1)
    right.set_xlabel("seconds since the sidecar's start")
    right.set_ylabel("stall of the event loop, ms")
    right.set_ylim(0, None)
    right.legend(frameon=False, fontsize=8)
    kind = "cumulative" if figures["load"]["cumulative"] else "incremental"
    figure.suptitle(f"{figures['load']['sessions']} sessions streaming at once, {kind} server")
    for axes in (left, right):
        axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)
