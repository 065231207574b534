"""Follows a step for one HTTP handler: what of its reply is new, and how it ended. One event loop.

Text is made from the ids when somebody reads, so a slow agent holds up nobody.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from adapters.models.reply import Delta

if TYPE_CHECKING:
    from sidecar.sessions.step_run import StepResult, StepRun


class StepReader:
    """One follower of a step."""

    def __init__(self, run: StepRun, wake: asyncio.Event) -> None:
        self.run = run
        self.failure: Exception | None = None
        """What this follower is told although the step waits on."""
        self.wake = wake
        self._shown = 0
        self._closed = False

    @property
    def result(self) -> StepResult | None:
        """The committed step; None while it runs. Raises what ended it otherwise."""
        failure = self.failure or self.run.failure
        if failure is not None:
            raise failure
        return self.run.result

    def read(self) -> list[Delta]:
        """What the agent may see and was not given yet.

        A step that may have to start over shows nothing before it is complete: bytes cannot be taken back."""
        generation = self.run.generation
        if not self.run.over:
            if not generation.request.resumable:
                return []
            generation.read_text()
        new = generation.text.deltas[self._shown :]
        self._shown += len(new)
        return new

    @property
    def sampled(self) -> bool:
        """There is a first token for the agent, so that headers may leave. Until a step that may have to start over
        is complete, its failure can still have a status."""
        generation = self.run.generation
        return bool(generation.output_ids) and (generation.request.resumable or self.run.over)

    def close(self) -> None:
        """Stop following; idempotent."""
        if not self._closed:
            self._closed = True
            self.run.generation.listeners.discard(self.wake)
            self.run.leave(self)
