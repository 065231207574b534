"""A group: the agent runs of one prompt, which are compared with each other and therefore stay together.

Promises: a run that lives is never done again and never lost; only the dead ones of a group are tried anew.
One event loop; a group belongs to one task at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from trainer_hooks.slime.rollouts.run import is_dead

Run = Callable[[Any, int], Awaitable[list[Any]]]
"""`(template, position in the group) -> samples`: one agent run."""

LONGEST_DELAY = 30.0


@dataclass(eq=False)
class Group:
    """`order`: its place among all groups. `templates`: one per run, as the data source gave them."""

    order: int
    templates: list[Any]
    runs: list[list[Any]] = field(default_factory=list)
    """Samples of each run, dead or alive; empty before the first try."""
    tries: int = 0

    def live(self) -> list[list[Any]]:
        """The runs that may train."""
        return [run for run in self.runs if not is_dead(run)]

    @property
    def complete(self) -> bool:
        """Every run lives."""
        return bool(self.runs) and len(self.live()) == len(self.templates)

    async def attempt(self, run: Run) -> int:
        """Run those that have not succeeded, at the same time; how many were run.

        The first error that a run raises cancels the others and comes through.
        """
        waiting = [i for i in range(len(self.templates)) if not self.runs or is_dead(self.runs[i])]
        try:
            async with asyncio.TaskGroup() as tasks:
                started = {i: tasks.create_task(_await(run(self.templates[i], i))) for i in waiting}
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from errors
        self.runs = [started[i].result() if i in started else self.runs[i] for i in range(len(self.templates))]
        self.tries += 1
        return len(waiting)


async def run_group(
    group: Group, run: Run, *, retries: int, retry_delay: float, on_retry: Callable[[int], None]
) -> None:
    """Run the group, and its dead runs up to `retries` times more with a fresh session each.

    Between tries it rests `retry_delay` seconds, doubled each time up to half a minute: what killed a run (an
    engine or a sidecar that restarts) needs a moment. `on_retry` gets the number of runs that are done again.
    """
    await group.attempt(run)
    delay = retry_delay
    for _ in range(retries):
        if group.complete:
            return
        await asyncio.sleep(delay)
        delay = min(2 * delay, LONGEST_DELAY)
        on_retry(len(group.templates) - len(group.live()))
        await group.attempt(run)


async def _await(work: Awaitable[list[Any]]) -> list[Any]:
    return await work
