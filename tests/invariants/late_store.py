"""`tito-sidecar` with a store that answers first and writes later: what I5 forbids. Run as a process by a test."""

import asyncio
from collections.abc import Mapping
from typing import Any

from sidecar import cli
from sidecar.store import sql
from sidecar.tito.records import StepRecord

LATE = 0.5
"""Seconds."""


def delay_steps(store: type[sql.SqlStore]) -> None:
    """Let `save_step` return before the step is written."""
    save_step, late = store.save_step, set[asyncio.Task[None]]()

    async def save_later(self: sql.SqlStore, step: StepRecord, blobs: Mapping[bytes, bytes], *fence: Any) -> None:
        async def save() -> None:
            await asyncio.sleep(LATE)
            await save_step(self, step, blobs, *fence)

        late.add(asyncio.get_running_loop().create_task(save()))

    store.save_step = save_later  # type: ignore[method-assign]


if __name__ == "__main__":
    delay_steps(sql.SqlStore)
    cli.main()
