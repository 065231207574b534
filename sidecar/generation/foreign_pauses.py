"""Pauses that other sidecars of the store are in when this one starts. One event loop.

A sidecar that starts in the middle of a weight update was not there when the trainer paused the others, so it
keeps to their pauses until they end: each is followed in the store, where its renewals and its end are seen. It is
theirs: nothing is written of it here, and a trainer that pauses this sidecar too is given a pause of its own.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence

from sidecar.generation.gate import Gate, Pause
from sidecar.store.protocol import PauseRow, Store, StoreError

log = logging.getLogger(__name__)

_FOLLOW_SECONDS = 1.0


class ForeignPauses:
    """Those of one sidecar's gate."""

    def __init__(self, store: Store, gate: Gate) -> None:
        self._store = store
        self._gate = gate
        self._task: asyncio.Task[None] | None = None

    def adopt(self, rows: Sequence[PauseRow]) -> None:
        """Close the gate for them, and follow them from now on."""
        for row in rows:
            self._gate.add(_pause(row))
            log.warning(
                "paused like another sidecar: pause_id=%s scope=%s mode=%s reason=%s sidecar_id=%s",
                row.pause_id, row.scope, row.mode, row.reason, row.sidecar_id,
            )  # fmt: skip
        if rows:
            self._task = asyncio.get_running_loop().create_task(self._follow())

    def close(self) -> None:
        """Stop following."""
        if self._task is not None:
            self._task.cancel()

    async def _follow(self) -> None:
        while mine := [pause for pause in self._gate.pauses if pause.foreign]:
            await asyncio.sleep(_FOLLOW_SECONDS)
            try:
                rows = {row.pause_id: row for row in await self._store.list_pauses()}
            except StoreError as error:
                log.warning("pauses of other sidecars last as long as their leases: %s", error)
                continue
            for pause in mine:
                self._compare(pause, rows.get(pause.pause_id))

    def _compare(self, pause: Pause, row: PauseRow | None) -> None:
        if pause.pause_id not in self._gate:
            return
        if row is None:
            self._gate.lift(pause.pause_id)
            log.info("another sidecar's pause was lifted: pause_id=%s", pause.pause_id)
        elif row.lease_expires_at > max(time.time(), pause.lease_expires_at):
            self._gate.renew(pause.pause_id, row.lease_expires_at)


def _pause(row: PauseRow) -> Pause:
    return Pause(row.pause_id, row.scope, row.mode, row.reason, row.lease_expires_at, foreign=True)
