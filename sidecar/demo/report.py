"""The demo's table: what was sampled, what trains, and what re-tokenising would have changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from sidecar.tito.codec import Codec
from sidecar.tito.drift import Drift, find_drift


def sampled_outputs(segments: Sequence[dict[str, Any]]) -> list[tuple[str, list[int]]]:
    """Runs of trained ids of the segments, each a reply; named by segment and position."""
    outputs = []
    for segment in segments:
        start = None
        for position, trained in enumerate([*segment["full_loss_mask"], 0]):
            if trained and start is None:
                start = position
            elif not trained and start is not None:
                outputs.append((f"{segment['segment_index']}:{start}", segment["tokens"][start:position]))
                start = None
    return outputs


def print_report(console: Console, view: dict[str, Any], segments: Sequence[dict[str, Any]], codec: Codec) -> None:
    """Print the table, and one example of drift if there is any."""
    outputs = sampled_outputs(segments)
    drift = find_drift(codec, outputs)
    steps = [step for step in view["steps"] if step["state"] == "committed"]
    versions = {step["step_id"]: step["versions"] for step in steps}
    mixed = sum(len(names) > 1 for names in versions.values())
    names = sorted({name for each in versions.values() for name in each})
    table = Table(title="What the trainer gets", show_header=False, title_justify="left")
    table.add_row("turns", str(len(steps)))
    table.add_row("tokens sampled", str(sum(step["output_tokens"] for step in steps)))
    table.add_row("tokens trained", str(sum(sum(segment["full_loss_mask"]) for segment in segments)))
    table.add_row("changed by re-tokenising", f"{len(drift)} of {len(outputs)} replies")
    table.add_row("segments", str(len(segments)))
    table.add_row("weight versions", f"{', '.join(names)} (both in {mixed} reply)")
    console.print(table)
    if drift:
        console.print(_example(codec, drift[0]), markup=False)


def _example(codec: Codec, drift: Drift) -> str:
    sampled = " ".join(f"{index}={codec.decode([index])!r}" for index in drift.sampled[:8])
    encoded = " ".join(f"{index}={codec.decode([index])!r}" for index in drift.encoded[:8])
    return (
        f"For example, the model sampled   {sampled}\n"
        f"decoded and encoded again it is  {encoded}\n"
        "and every logprob and mask behind that point would belong to another token."
    )
