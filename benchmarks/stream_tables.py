"""The tables of `streams`. Pure but for printing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from benchmarks.load import Load
    from benchmarks.loop_watch import Stalls
    from benchmarks.streams import Phase, Window

_HEADINGS = "errors", "events/s", "us/event", "ratio", "CPU", "stall ms", "own ms", "loop ms", ">50 ms", "KB/stream"


def print_tables(
    console: Console,
    load: Load,
    through: Phase,
    sidecar: Phase,
    collection: dict[str, Any],
    held: dict[str, Any],
) -> None:
    """CPU per event, stalls, memory and collections."""
    kind = "cumulative" if load.cumulative else "incremental"
    table = Table(title=f"{load.sessions} streams at once, {kind} server")
    for heading in ("", *_HEADINGS):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    _row(table, "pass-through", through.quiet, through, through)
    _row(table, "sidecar", sidecar.quiet, sidecar, through)
    if sidecar.busy is not None:
        _row(table, "sidecar, busy", sidecar.busy, sidecar, through)
    console.print(table)
    console.print(
        f"from the first request to the last byte: sidecar {sidecar.whole_run_us_per_event:.0f} us per event "
        f"(large prompts included), pass-through {through.whole_run_us_per_event:.0f}; stalls while the agents "
        f"arrive {_shown(sidecar.arrival)} ms, while their streams end {_shown(sidecar.end)} ms"
    )
    busy = sidecar.busy_agents
    if busy:
        console.print(
            f"busy: {busy['roots']['replies']} new roots of {busy['roots']['prompt_tokens']:,} tokens and "
            f"{busy['turns']['replies']} short turns, {len(busy['errors'])} errors"
        )
    console.print(
        f"full collection while {load.sessions} sessions stream: {collection['ms']:.0f} ms "
        f"({collection['cpu_ms']:.0f} ms CPU), {collection['tracked']:,} objects"
    )
    if held:
        console.print(
            f"full collection with {held['sessions']:,} sessions of {held['messages']} messages held: "
            f"{held['collection_ms']:.0f} ms, {held['tracked']:,} objects, "
            f"{held['resident_bytes'] / held['sessions'] / 1024:.0f} KB per session"
        )


def _row(table: Table, name: str, window: Window, phase: Phase, floor: Phase) -> None:
    errors = len(phase.agents["errors"]) + len(phase.busy_agents.get("errors", ()))
    table.add_row(
        name,
        str(errors),
        f"{window.events_per_second:,.0f}",
        "" if window is phase.busy else f"{window.cpu_us_per_event:.0f}",
        "" if window is phase.busy else f"{window.cpu_us_per_event / floor.quiet.cpu_us_per_event:.2f}x",
        f"{window.cpu_share:.0%}",
        f"{window.stalls.worst_ms:.0f}",
        f"{window.stalls.own_ms:.0f}",
        f"{window.stalls.loop_ms:.0f}",
        str(window.stalls.over_50),
        f"{phase.resident_kb_per_stream:.0f}",
    )


def _shown(stalls: Stalls) -> str:
    return f"{stalls.worst_ms:.0f} ({stalls.own_ms:.0f})"
