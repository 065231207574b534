"""Pausing and resuming all generation around a weight update, durably. One event loop.

Pauses are rows in the store, read before the gate first opens, so a sidecar that restarts in the middle of an
update stays paused. A lease that runs out opens the gate and is logged as an error: the trainer lost its hold.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from typing import Any

from sidecar.generation.controller import Controller
from sidecar.generation.engine_state import EngineState
from sidecar.generation.gate import Gate, Pause, PauseConflict
from sidecar.store.protocol import PauseRow, Store, StoreError

log = logging.getLogger(__name__)

SCOPE_ALL = "all"


class EngineNotReady(Exception):  # noqa: N818 - a state of the engine
    """The engine does not answer, so nothing is resumed."""


class Pauses:
    """The pause commands of the control plane. `lease_seconds` is a pause's life if it does not say."""

    def __init__(self, store: Store, lease_seconds: float) -> None:
        self._store = store
        self._lease_seconds = lease_seconds
        self._forgetting: set[asyncio.Task[None]] = set()
        self._lock = asyncio.Lock()
        self.rollout_epoch = 0
        """Resumes so far."""
        self.gate = Gate(self._on_expiry)

    async def restore(self) -> None:
        """Close the gate for the pauses in the store that are still in force."""
        for row in await self._store.list_pauses():
            if row.lease_expires_at > time.time():
                self.gate.add(Pause(row.pause_id, row.scope, row.mode, row.reason, row.lease_expires_at))
                log.warning("still paused: pause_id=%s reason=%s", row.pause_id, row.reason)
            else:
                await self._store.delete_pauses([row.pause_id])

    async def pause(
        self,
        controller: Controller,
        *,
        mode: str,
        reason: str | None,
        pause_id: str | None,
        timeout: float,
        lease_seconds: float | None,
    ) -> dict[str, Any]:
        """Close the gate, abort what runs and wait until it has ended, for `timeout` seconds at most.

        Raises `PauseExpired` for an unknown `pause_id`, `PauseConflict` for another mode of the same scope."""
        expires = time.time() + (lease_seconds or self._lease_seconds)
        async with self._lock:
            current = self.gate.find(SCOPE_ALL)
            if pause_id is not None or current is not None:
                pause = self.gate.require(pause_id or (current.pause_id if current else ""))
                if pause.mode != mode:
                    raise PauseConflict(f"already paused by {pause.pause_id} in mode {pause.mode}, not {mode}")
                pause = self.gate.renew(pause.pause_id, expires)
                status = "already_paused"
            else:
                pause = Pause(uuid.uuid4().hex, SCOPE_ALL, mode, reason, expires)
                self.gate.add(pause)
                status = "paused"
            await self._save(pause, new=status == "paused")
        ended, failed = await controller.abort_active(timeout)
        return {
            "status": status,
            "pause_id": pause.pause_id,
            "quiesced": not controller.active,
            "mode": pause.mode,
            "active": len(controller.active),
            "suspended": self.gate.suspended,
            "preempted_request_ids": ended,
            "abort_failed_request_ids": failed,
            "version": controller.weight_version,
        }

    async def _save(self, pause: Pause, *, new: bool) -> None:
        row = PauseRow(pause.pause_id, pause.scope, pause.mode, pause.reason, pause.lease_expires_at)
        try:
            await self._store.save_pause(row)
        except BaseException:
            if new:  # the caller was given no id to lift it with
                self.gate.lift(pause.pause_id)
            raise

    async def resume(self, controller: Controller, engine: EngineState, pause_id: str | None) -> dict[str, Any]:
        """Lift one pause, or all with None. Raises `PauseExpired`, `EngineNotReady` (still paused then)."""
        async with self._lock:
            if self.gate.open and pause_id is None:
                return self._resumed("already_running", controller)
            if pause_id is not None:
                self.gate.require(pause_id)
            if not await engine.check():
                raise EngineNotReady(f"the engine does not answer ({engine.error}); still paused")
            ids = [pause_id] if pause_id is not None else [pause.pause_id for pause in self.gate.pauses]
            await self._store.delete_pauses(ids)  # first: a pause that stays in the store has to be lifted again
            self.gate.lift(pause_id)
            self.rollout_epoch += 1
            return self._resumed("resumed", controller)

    @staticmethod
    def compare_version(expected: object, actual: str | None) -> None:
        """Log a trainer's idea of the version that differs from the engine's; tokens carry the engine's."""
        if expected is not None and str(expected) != actual:
            log.warning("resumed with version %s, but the engine says %s", expected, actual)

    def _resumed(self, status: str, controller: Controller) -> dict[str, Any]:
        return {
            "status": status,
            "paused": not self.gate.open,
            "version": controller.weight_version,
            "rollout_epoch": self.rollout_epoch,
            "suspended": self.gate.suspended,
        }

    def state(self, controller: Controller) -> dict[str, Any]:
        """The reply of `pause_state`."""
        return {
            "paused": not self.gate.open,
            "pauses": [
                {
                    "pause_id": pause.pause_id,
                    "scope": pause.scope,
                    "mode": pause.mode,
                    "reason": pause.reason,
                    "lease_expires_at": pause.lease_expires_at,
                }
                for pause in self.gate.pauses
            ],
            "version": controller.weight_version,
            "rollout_epoch": self.rollout_epoch,
            "active": len(controller.active),
            "suspended": self.gate.suspended,
        }

    def _on_expiry(self, pause: Pause) -> None:
        log.error(
            "pause ran out without a resume: pause_id=%s reason=%s; generation goes on",
            pause.pause_id,
            pause.reason,
        )
        task = asyncio.get_running_loop().create_task(self._forget(pause.pause_id))
        self._forgetting.add(task)
        task.add_done_callback(self._forgetting.discard)

    async def _forget(self, pause_id: str) -> None:
        try:
            await self._store.delete_pauses([pause_id])
        except StoreError as error:  # the row says itself when it ended
            log.warning("expired pause stays in the store: pause_id=%s: %s", pause_id, error)
