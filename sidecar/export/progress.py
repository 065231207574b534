"""How far an export is: a bar on a terminal, else a line every ten seconds. Written to stderr. One thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

_LINE_SECONDS = 10.0


class Report(Protocol):
    """Called after every session: `(sessions looked at, segments added, parts complete)`."""

    def __call__(self, sessions: int, segments: int, parts: int) -> None:
        """Show it."""


@contextmanager
def progress(console: Console, total: int, clock: Callable[[], float] = time.monotonic) -> Iterator[Report]:
    """The report of an export of `total` sessions."""
    if not console.is_terminal:
        yield _lines(console, total, clock)
        return
    columns = (
        TextColumn("sessions"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[added]}"),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=total, added="")

        def show(sessions: int, segments: int, parts: int) -> None:
            bar.update(task, completed=sessions, added=f"{segments} new segments, {parts} parts")

        yield show


def _lines(console: Console, total: int, clock: Callable[[], float]) -> Report:
    last = clock()

    def show(sessions: int, segments: int, parts: int) -> None:
        nonlocal last
        if clock() - last >= _LINE_SECONDS:
            last = clock()
            console.print(f"{sessions} of {total} sessions, {segments} new segments, {parts} parts")

    return show
