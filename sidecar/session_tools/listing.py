"""`sessions ls`: which sessions there are, newest first, as a table of 80 columns or JSON. Reads the store."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sidecar.store import open_store
from sidecar.store.listing import SessionFilter, SessionSummary, count_sessions, list_sessions
from sidecar.terminal import visible

STATES = ("open", "finalized", "discarded", "expired")


async def find_sessions(url: str, chosen: SessionFilter, limit: int) -> tuple[list[SessionSummary], int]:
    """The newest sessions, and how many there are in all. Raises `StoreError`."""
    store = open_store(url, read_only=True)
    await store.start()
    try:
        return await list_sessions(store, chosen, limit), await count_sessions(store, chosen)
    finally:
        await store.close()


def summary_json(one: SessionSummary) -> dict[str, Any]:
    """A session as one JSON object. Times in Unix seconds."""
    finalization = one.finalization or {}
    reply = finalization.get("reply") or {}
    return {
        "session_id": one.session_id,
        "instance_id": one.instance_id,
        "run_id": one.run_id,
        "state": one.state,
        "unread": is_unread(one),
        "steps": one.steps,
        "segments": reply.get("num_segments"),
        "reward": finalization.get("reward"),
        "created_at": one.created_at,
        "active_at": one.active_at,
        "drained_at": one.drained_at,
    }


def is_unread(one: SessionSummary) -> bool:
    """Finalized, and nobody has drained it."""
    return one.state == "finalized" and one.drained_at is None


def print_sessions(console: Console, found: list[SessionSummary], total: int, now: float) -> None:
    """The table. What is too long is cut, and shown whole by --json."""
    table = Table(box=None, padding=(0, 1), show_edge=False)
    table.add_column("session", no_wrap=True, overflow="ellipsis", ratio=3)
    table.add_column("instance", no_wrap=True, overflow="ellipsis", ratio=2)
    table.add_column("state", no_wrap=True, min_width=16)
    for name in ("steps", "age", "idle"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in found:
        table.add_row(
            Text(visible(one.session_id)),
            Text(visible(one.instance_id or "-")),
            shown_state(one.state, one.drained_at),
            str(one.steps),
            ago(now - one.created_at),
            ago(now - one.active_at),
        )
    if found:
        console.print(table)
    if total > len(found):
        console.print(f"... and {total - len(found)} older; --limit N lists more.")
    if not total:
        console.print("No session.")


def shown_state(state: str, drained_at: float | None) -> str:
    """The state in words: of finalized ones, whether somebody has read them."""
    if state == "finalized":
        return "finalized, unread" if drained_at is None else "finalized, read"
    return state


def ago(seconds: float) -> str:
    """A time span in one unit: `90s`, `15m`, `5h`, `3d`."""
    for unit, length, limit in (("s", 1, 120), ("m", 60, 7200), ("h", 3600, 172_800)):
        if seconds < limit:
            return f"{max(0, seconds) / length:.0f}{unit}"
    return f"{seconds / 86400:.0f}d"
