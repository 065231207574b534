"""Pausing and resuming generation around a weight update, durably. One event loop.

Three modes close the gate and differ in what becomes of calls that run: `abort` ends them and keeps their ids,
`drain` waits for their natural ends, `hold` leaves them to a pause of the engine's own. Pauses are rows in the
store, read before the gate first opens, so a sidecar that restarts in the middle of an update stays paused. A lease
that runs out opens the gate and is logged as an error: the trainer lost its hold.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from dataclasses import dataclass
from typing import Any, Literal, get_args

from adapters.engines.base import EngineError
from sidecar.generation.controller import Controller
from sidecar.generation.engine_state import EngineState
from sidecar.generation.foreign_pauses import ForeignPauses
from sidecar.generation.gate import SCOPE_ALL, Gate, Pause, PauseConflict, PauseExpired
from sidecar.generation.workers import Workers
from sidecar.store.protocol import PauseRow, Store, StoreError

log = logging.getLogger(__name__)

PauseMode = Literal["abort", "drain", "hold"]
PAUSE_MODES: tuple[PauseMode, ...] = get_args(PauseMode)
PAUSE_SCOPES = ("all", "session", "instance")
_DISCOVER_SECONDS = 2.0
_SHORTEST_CHECK, _LONGEST_CHECK = 1.0, 10.0


class EngineNotReady(Exception):  # noqa: N818 - a state of the engine
    """A worker does not answer, or they have different weights, so nothing is resumed."""


class HoldRefused(Exception):  # noqa: N818 - what the engine cannot do
    """The engine does not say which weights sampled which token, so a held call's versions would be unknown."""


@dataclass(frozen=True, slots=True)
class PauseRequest:
    """What a trainer asks for. `mode` and `scope` are None where a renewal by `pause_id` does not name them;
    `timeout` in seconds is how long a pause waits for what runs; `lease_seconds` None: the default."""

    scope: str | None = None
    mode: PauseMode | None = None
    reason: str | None = None
    pause_id: str | None = None
    timeout: float = 30.0
    lease_seconds: float | None = None


class Pauses:
    """The pause commands of the control plane. `lease_seconds` is a pause's life if it does not say."""

    def __init__(self, store: Store, lease_seconds: float, sidecar_id: str | None = None) -> None:
        self._store = store
        self._sidecar_id = sidecar_id
        self._lease_seconds = lease_seconds
        self._background: set[asyncio.Task[None]] = set()
        self._lock = asyncio.Lock()
        self.rollout_epoch = 0
        """Resumes so far."""
        self.gate = Gate(self._on_expiry)
        self._foreign = ForeignPauses(store, self.gate)

    def close(self) -> None:
        """Stop the timers; the pauses stay in the store."""
        self._foreign.close()
        self.gate.close()

    async def restore(self, predecessor: str | None = None) -> None:
        """Close the gate for the pauses in the store that are still in force: those that were this sidecar's in an
        earlier life, as `predecessor`, and those of others."""
        rows = await self._store.list_pauses()
        over = [row.pause_id for row in rows if row.lease_expires_at <= time.time()]
        if over:
            await self._store.delete_pauses(over)
        foreign = []
        for row in rows:
            if row.pause_id in over:
                continue
            if row.sidecar_id in (None, predecessor) and self.gate.find(row.scope) is None:
                await self._take_up(Pause(row.pause_id, row.scope, row.mode, row.reason, row.lease_expires_at))
            else:
                foreign.append(row)
        self._foreign.adopt(foreign)

    async def _take_up(self, pause: Pause) -> None:
        self.gate.add(pause)
        log.warning(
            "still paused: pause_id=%s scope=%s mode=%s reason=%s",
            pause.pause_id, pause.scope, pause.mode, pause.reason,
        )  # fmt: skip
        if self._sidecar_id is not None:
            await self._store.save_pause(self._row(pause))

    async def pause(
        self, controller: Controller, engine: EngineState, workers: Workers, asked: PauseRequest
    ) -> dict[str, Any]:
        """Close the gate for a scope and let what runs in it end as the mode says, for `timeout` seconds at most.

        Raises `PauseExpired` for a `pause_id` that is not in force (any more), `PauseConflict` for another mode of
        the same scope, `HoldRefused`."""
        lease = asked.lease_seconds or self._lease_seconds
        if asked.mode == "hold" and asked.pause_id is None and self.gate.find(SCOPE_ALL) is None:
            await self._check_hold(engine, asked.timeout)
        async with self._lock:
            # the pause itself is the sign of life while it waits
            pause, status = self._begin(asked, time.time() + asked.timeout + lease)
            await self._save(pause, new=status == "paused")
        rids = controller.active.of(pause.scope)
        await self._end_calls(controller, workers, pause, rids, asked.timeout)
        pause = await self._start_lease(pause, lease)
        running = controller.active.of(pause.scope)
        left = set(controller.active.still(rids))
        log.info(
            "%s: pause_id=%s scope=%s mode=%s active=%d suspended=%d",
            status, pause.pause_id, pause.scope, pause.mode, len(running), self.gate.held(pause.scope),
        )  # fmt: skip
        aborted = rids if pause.mode == "abort" else []
        return {
            "status": status,
            "pause_id": pause.pause_id,
            "quiesced": not running,
            "scope": pause.scope,
            "mode": pause.mode,
            "active": len(running),
            "suspended": self.gate.held(pause.scope),
            "preempted_request_ids": [rid for rid in aborted if rid not in left],
            "abort_failed_request_ids": [rid for rid in aborted if rid in left],
            "running_request_ids": running,
            "version": controller.weight_version,
        }

    @staticmethod
    async def _check_hold(engine: EngineState, timeout: float) -> None:
        lacking = await engine.without_spans(min(max(timeout, _SHORTEST_CHECK), _LONGEST_CHECK))
        if lacking:
            raise HoldRefused(
                f"mode hold needs an engine that gives weight_versions (SGLang >= 0.5.19): {'; '.join(lacking)}; "
                "pause in mode abort or drain"
            )

    def _begin(self, asked: PauseRequest, expires: float) -> tuple[Pause, str]:
        """The pause in force now, and whether it was before. A renewal keeps what it does not name."""
        scope = asked.scope or SCOPE_ALL
        current = self.gate.find(scope) if asked.pause_id is None else self._own(asked.pause_id)
        if current is None:
            pause = Pause(uuid.uuid4().hex, scope, asked.mode or "abort", asked.reason, expires)
            self.gate.add(pause)
            return pause, "paused"
        mode = asked.mode or (current.mode if asked.pause_id is not None else "abort")
        if mode != current.mode:
            raise PauseConflict(
                f"{current.scope} is paused by {current.pause_id} in mode {current.mode}, not {mode}"
            )
        if asked.pause_id is not None and asked.scope not in (None, current.scope):
            raise PauseConflict(f"pause {current.pause_id} is of {current.scope}, not of {asked.scope}")
        return self.gate.renew(current.pause_id, expires), "already_paused"

    def _own(self, pause_id: str) -> Pause:
        pause = self.gate.require(pause_id)
        if pause.foreign:
            raise PauseExpired(f"pause {pause_id} is another sidecar's; it is renewed there")
        return pause

    async def _save(self, pause: Pause, *, new: bool) -> None:
        try:
            await self._store.save_pause(self._row(pause))
        except BaseException:
            if new:  # the caller was given no id to lift it with
                self.gate.lift(pause.pause_id)
            raise

    async def _end_calls(
        self, controller: Controller, workers: Workers, pause: Pause, rids: list[str], timeout: float
    ) -> None:
        def in_force() -> bool:
            return pause.pause_id in self.gate

        if pause.mode == "abort" and rids:
            self._spawn(_discover(workers))  # meanwhile those known are asked
            await controller.active.abort(rids, timeout, in_force)
        elif pause.mode == "drain":
            await controller.active.wait_ended(rids, timeout, in_force)

    async def _start_lease(self, pause: Pause, lease: float) -> Pause:
        """Let the lease run from now, unless somebody renewed the pause while it waited."""
        async with self._lock:  # else a resume could delete the row first, and this would bring it back
            current = self.gate.require(pause.pause_id)
            if current.lease_expires_at != pause.lease_expires_at:
                return current
            renewed = self.gate.renew(pause.pause_id, time.time() + lease)
            try:
                await self._store.save_pause(self._row(renewed))
            except StoreError as error:  # the row says a later end, and is deleted at this one
                log.warning("the store keeps an older lease: pause_id=%s: %s", pause.pause_id, error)
            return renewed

    async def resume(self, controller: Controller, engine: EngineState, pause_id: str | None) -> dict[str, Any]:
        """Lift one pause, or with None all that were in force when it was asked.

        Raises `PauseExpired`, `EngineNotReady` (still paused then)."""
        if self.gate.open and pause_id is None:
            return self._resumed("already_running", controller)
        asked = self.gate.pauses if pause_id is None else [self.gate.require(pause_id)]
        problem = await engine.problem()  # not under the lock: a worker that hangs must not hold up a pause
        if problem is not None:
            raise EngineNotReady(f"{problem}; still paused")
        async with self._lock:
            if pause_id is not None:
                self.gate.require(pause_id)
            ids = [pause.pause_id for pause in asked if pause.pause_id in self.gate]
            own = [pause.pause_id for pause in asked if pause.pause_id in self.gate and not pause.foreign]
            await self._store.delete_pauses(own)  # first: a pause that stays in the store has to be lifted again
            for one in ids:
                if one in self.gate:  # else it ran out meanwhile
                    self.gate.lift(one)
            self.rollout_epoch += 1
            log.info("resumed: pause_ids=%s version=%s", ",".join(ids), controller.weight_version)
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

    def state(self, controller: Controller, engine: EngineState) -> dict[str, Any]:
        """The reply of `pause_state`. `workers` are as of the last time they were asked."""
        return {
            "paused": not self.gate.open,
            "pauses": [
                {
                    "pause_id": pause.pause_id,
                    "scope": pause.scope,
                    "mode": pause.mode,
                    "reason": pause.reason,
                    "lease_expires_at": pause.lease_expires_at,
                    "active": len(controller.active.of(pause.scope)),
                    "suspended": self.gate.held(pause.scope),
                }
                for pause in self.gate.pauses
            ],
            "version": controller.weight_version,
            "rollout_epoch": self.rollout_epoch,
            "active": len(controller.active),
            "suspended": self.gate.suspended,
            "workers": engine.workers,
        }

    def _row(self, pause: Pause) -> PauseRow:
        return PauseRow(
            pause.pause_id, pause.scope, pause.mode, pause.reason, pause.lease_expires_at, self._sidecar_id
        )

    def _on_expiry(self, pause: Pause) -> None:
        if pause.foreign:
            log.warning("another sidecar's pause ran out: pause_id=%s", pause.pause_id)
            return
        log.error(
            "pause ran out without a resume: pause_id=%s reason=%s scope=%s mode=%s; generation goes on",
            pause.pause_id, pause.reason, pause.scope, pause.mode,
        )  # fmt: skip
        self._spawn(self._forget(pause.pause_id))

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _forget(self, pause_id: str) -> None:
        try:
            await self._store.delete_pauses([pause_id])
        except StoreError as error:  # the row says itself when it ended
            log.warning("expired pause stays in the store: pause_id=%s: %s", pause_id, error)


async def _discover(workers: Workers) -> None:
    try:
        await workers.discover(_DISCOVER_SECONDS)
    except EngineError as error:
        log.warning("aborting at the workers that were known: %s", error)
