"""Runs groups and hands out whole ones, oldest first; what is not needed yet stays and goes on.

Promises: every group that was taken from the source ends in exactly one of: delivered, dropped (and counted), given
back. Nothing polls: whoever waits is woken when a group ends.
Concurrency: all of it runs in one event loop, that of slime's hooks; call it from there.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import Counter
from typing import Any

from trainer_hooks.slime.rollouts.group import Group, Run, run_group
from trainer_hooks.slime.rollouts.group_filter import GroupFilter
from trainer_hooks.slime.rollouts.group_source import GroupSource
from trainer_hooks.slime.rollouts.policy import Policy, RolloutError
from trainer_hooks.slime.rollouts.run import is_dead
from trainer_hooks.slime.rollouts.settings import RolloutSettings
from trainer_hooks.slime.rollouts.version_window import VersionWindow

logger = logging.getLogger(__name__)

STOP_SECONDS = 60.0
"""How long a stop waits for agents to end; they are killed at once, so this is for a sidecar that hangs."""

LOG_SECONDS = 60.0


class RolloutWorker:
    """`run` does one agent run; `window` and `group_filter` decide which groups may train."""

    def __init__(
        self,
        source: GroupSource,
        run: Run,
        policy: Policy,
        settings: RolloutSettings,
        *,
        group_filter: GroupFilter | None = None,
    ) -> None:
        self._source = source
        self._run_one = run
        self._policy = policy
        self._settings = settings
        self._filter = group_filter
        self.window = VersionWindow(settings.keep_versions)
        self.filtered: list[list[list[Any]]] = []
        """Groups that the filter dropped since somebody last looked; kept only if the filter says so."""
        self._slots = asyncio.Semaphore(settings.concurrency)
        self._running: dict[asyncio.Task[None], Group] = {}
        self._finished: list[tuple[int, Group]] = []
        self._broken: list[Group] = []
        self._counts: Counter[str] = Counter()
        self._taken = 0
        self._wanted = 0
        self._collecting = False
        self._stopping = False
        self._dead_in_a_row = 0
        self._first_of_call = self._wrongly_stale = 0
        self._error: BaseException | None = None
        self._changed = asyncio.Event()

    async def collect(self, rollout_id: int, target: int, version: str | None = None) -> list[Group]:
        """The `target` oldest groups that are finished and fit to train, as soon as there are so many.

        `version`: what the engine samples with now, if it is known. Raises `RolloutError`, and whatever a run
        raises that no retry can mend; the worker is then to be stopped. Cancelling it loses nothing.
        """
        if version is not None:
            self.window.observe([version])
        self._wanted, self._collecting = target, True
        self._first_of_call, self._wrongly_stale = self._taken, 0
        try:
            while True:
                self._drop_stale()
                self._top_up()
                if self._error is not None:
                    raise self._error
                if len(self._finished) >= target:
                    break
                if not self._running:
                    raise RolloutError(
                        f"rollout {rollout_id} has {len(self._finished)} of {target} groups and the data source "
                        "gives no more; check --prompt-data"
                    )
                await self._wait(rollout_id, target)
        finally:
            self._collecting = False
        groups = [heapq.heappop(self._finished)[1] for _ in range(target)]
        self._source.deliver(rollout_id, [group.templates for group in groups])
        self._counts["delivered"] += target
        if self._policy.between_calls:
            self._top_up()
        return groups

    async def stop(self) -> None:
        """Cancel what runs, wait for its end, and give back every group that was not delivered."""
        self._stopping = True
        tasks = list(self._running)
        unfinished = [*self._running.values(), *self._broken, *(group for _, group in self._finished)]
        for task in tasks:
            task.cancel()
        if tasks:
            _, hanging = await asyncio.wait(tasks, timeout=STOP_SECONDS)
            if hanging:
                logger.error("%d groups did not end within %g s of their cancellation", len(hanging), STOP_SECONDS)
        self._finished, self._broken = [], []
        self._running.clear()
        self._source.give_back([group.templates for group in sorted(unfinished, key=lambda group: group.order)])
        self._counts["given_back"] += len(unfinished)

    def take_counts(self) -> dict[str, int]:
        """What happened to groups since the last call, by name."""
        counts, self._counts = dict(self._counts), Counter()
        return counts

    @property
    def in_flight(self) -> int:
        """Groups that run."""
        return len(self._running)

    @property
    def left_over(self) -> int:
        """Groups that are finished and were not needed yet."""
        return len(self._finished)

    def _top_up(self) -> None:
        while self._may_start():
            groups = self._source.take(1)
            if not groups:
                return
            for templates in groups:
                self._start(Group(self._taken, templates))
                self._taken += 1
                self._counts["taken"] += 1

    def _may_start(self) -> bool:
        if self._stopping or self._error is not None or not (self._collecting or self._policy.between_calls):
            return False
        if len(self._running) >= self._policy.pool or len(self._finished) >= self._wanted:
            return False
        return self._policy.surplus or len(self._running) + len(self._finished) < self._wanted

    def _start(self, group: Group) -> None:
        task = asyncio.get_running_loop().create_task(self._drive(group), name=f"tito-group-{group.order}")
        self._running[task] = group
        task.add_done_callback(self._ended)

    async def _drive(self, group: Group) -> None:
        await run_group(
            group,
            self._in_slot,
            retries=self._settings.retries,
            retry_delay=self._settings.retry_delay,
            on_retry=lambda runs: self._counts.update(runs_retried=runs),
        )

    async def _in_slot(self, template: Any, position: int) -> list[Any]:
        async with self._slots:
            samples = await self._run_one(template, position)
        if not is_dead(samples):
            self.window.observe_group([samples])
        return samples

    def _ended(self, task: asyncio.Task[None]) -> None:
        group = self._running.pop(task, None)
        if group is None or self._stopping:
            if not task.cancelled():
                task.exception()  # looked at, or asyncio complains; `stop` gives the group back whatever it is
            return
        try:
            if task.cancelled():
                raise RolloutError(f"group {group.order} was cancelled, by nobody known")
            task.result()
            self._settle(group)
        except (Exception, asyncio.CancelledError) as error:
            # kept for whoever collects: raised here it would reach nobody but the loop's exception handler
            self._broken.append(group)
            self._fail(error)
        try:
            self._top_up()
        except Exception as error:
            self._fail(error)
        self._changed.set()

    def _fail(self, error: BaseException) -> None:
        self._error = self._error or error

    def _settle(self, group: Group) -> None:
        dead = len(group.templates) - len(group.live())
        self._counts["runs_dead"] += dead
        if dead == len(group.templates):
            self._exhausted(group)
        elif self._filter is not None and (reason := self._filter.reason_to_drop(group.runs, self._spare())):
            self._drop(group, f"filtered/{reason}")
            if self._filter.keep_dropped:
                self.filtered.append(group.runs)
            return
        else:
            self._dead_in_a_row = 0
            heapq.heappush(self._finished, (group.order, group))

    def _spare(self) -> int:
        """Groups that could still fill the batch without this one, less those that are needed."""
        return len(self._running) + len(self._finished) - self._wanted

    def _exhausted(self, group: Group) -> None:
        reason = group.runs[0][0].metadata.get("abort_reason")
        logger.error(
            "group_exhausted order=%d group_index=%s tries=%d: no run lives, the first one because: %s",
            group.order, group.templates[0].group_index, group.tries, reason,
        )  # fmt: skip
        self._counts["exhausted"] += 1
        if self._policy.keep_dead:
            heapq.heappush(self._finished, (group.order, group))
            return
        self._source.drop([group.templates])
        self._dead_in_a_row += 1
        if self._dead_in_a_row >= self._settings.max_dead_groups:
            self._fail(
                RolloutError(
                    f"{self._dead_in_a_row} groups in a row had no living run after {group.tries} tries each, the "
                    f"last one because: {reason}. Look at the sidecar and the launcher; "
                    "TITO_ROLLOUT_MAX_DEAD_GROUPS, TITO_ROLLOUT_RETRIES and TITO_ROLLOUT_RETRY_DELAY_SEC say when "
                    "to give up"
                )
            )

    def _drop(self, group: Group, why: str) -> None:
        self._source.drop([group.templates])
        self._counts[why] += 1

    def _drop_stale(self) -> None:
        groups = [group for _, group in self._finished]
        stale = [group for group in groups if group.live() and not self.window.is_fresh(group.runs)]
        if not stale:
            return
        self._finished = [(group.order, group) for group in groups if group not in stale]
        heapq.heapify(self._finished)
        for group in stale:
            self._drop(group, "stale")
        # what was started in this call cannot be old: the weights are not updated before it returns
        self._wrongly_stale += sum(group.order >= self._first_of_call for group in stale)
        if not self.window.observed or self._wrongly_stale >= self._settings.max_dead_groups:
            observed = ", ".join(self.window.observed) or "none"
            self._fail(
                RolloutError(
                    f"TITO_KEEP_VERSIONS is {self.window.keep}, but {self._wrongly_stale} groups of this call are "
                    f"not of the newest versions or do not name theirs (observed: {observed}); start the sidecar "
                    "with --record-token-versions and look whether all engines are updated, or set "
                    "TITO_KEEP_VERSIONS=0"
                )
            )

    async def _wait(self, rollout_id: int, target: int) -> None:
        self._changed.clear()
        while True:
            try:
                async with asyncio.timeout(LOG_SECONDS):
                    await self._changed.wait()
                return
            except TimeoutError:
                logger.info(
                    "rollout %d waits: finished=%d of %d in_flight=%d so_far=%s", rollout_id, len(self._finished),
                    target, len(self._running), dict(self._counts),
                )  # fmt: skip
