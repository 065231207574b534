"""The demo's table: what was sampled, what trains, and what re-tokenising would have changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from sidecar.session_tools.drift_view import drift_rows
from sidecar.terminal import quoted
from sidecar.tito.codec import Codec
from sidecar.tito.drift import SampledReply, Stretch, find_drift, total_drift


def sampled_replies(segments: Sequence[Mapping[str, Any]]) -> list[SampledReply]:
    """Runs of trained ids of the segments, each a reply; named by segment and position."""
    replies = []
    for segment in segments:
        start = None
        for position, trained in enumerate([*segment["full_loss_mask"], 0]):
            if trained and start is None:
                start = position
            elif not trained and start is not None:
                name = f"{segment['segment_index']}:{start}"
                before, output = segment["tokens"][:start], segment["tokens"][start:position]
                replies.append(SampledReply(name, before, output, trained=True))
                start = None
    return replies


def print_report(
    console: Console, view: Mapping[str, Any], segments: Sequence[Mapping[str, Any]], codec: Codec
) -> None:
    """Print the table, and one example of drift if there is any."""
    drift = [find_drift(codec, reply) for reply in sampled_replies(segments)]
    steps = [step for step in view["steps"] if step["state"] == "committed"]
    versions = {step["step_id"]: step["versions"] for step in steps}
    mixed = sum(len(names) > 1 for names in versions.values())
    names = sorted({name for each in versions.values() for name in each})
    table = Table(title="What the trainer gets", show_header=False, title_justify="left")
    table.add_row("turns", str(len(steps)))
    table.add_row("tokens sampled", str(sum(step["output_tokens"] for step in steps)))
    table.add_row("tokens trained", str(sum(sum(segment["full_loss_mask"]) for segment in segments)))
    for name, value in drift_rows(total_drift(drift)):
        table.add_row(name, value)
    table.add_row("segments", str(len(segments)))
    table.add_row("weight versions", f"{', '.join(names)} (both in {mixed} reply)")
    console.print(table)
    examples = [stretch for reply in drift for stretch in reply.stretches]
    if examples:
        console.print(_example(codec, max(examples, key=_shifts)), markup=False)


def _shifts(stretch: Stretch) -> bool:
    return len(stretch.sampled) != len(stretch.encoded)


def _example(codec: Codec, stretch: Stretch) -> str:
    sampled = " ".join(f"{index}={quoted(codec.decode([index]))}" for index in stretch.sampled[:8])
    encoded = " ".join(f"{index}={quoted(codec.decode([index]))}" for index in stretch.encoded[:8])
    return (
        f"For example, the model sampled   {sampled}\n"
        f"decoded and encoded again it is  {encoded}\n"
        f"so a logprob kept by position belongs to another token{' from there on' if _shifts(stretch) else ''}."
    )
