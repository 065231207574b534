"""What one engine process holds: pause, weight version, and the requests in flight.

Promise: pause, continue, abort and weight updates follow the lock order of SGLang 0.5.23's tokenizer manager,
with its
consequences: new requests block while paused, an abort of a blocked request does nothing, a weight update
outside a pause waits for running requests, a pause in mode `abort` while the engine stands still in another
mode waits for them too. Concurrency: one event loop; `pause_lock` serialises control calls.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.fake_sglang.exactness import common_prefix
from tests.fake_sglang.job import Job
from tests.fake_sglang.options import Options
from tests.fake_sglang.recorder import RecordedRequest
from tests.fake_sglang.signals import Signal
from tests.fake_sglang.vocabulary import Vocabulary

REMEMBERED_SEQUENCES = 32


@dataclass(slots=True, eq=False)
class Entry:
    """A rid the server knows, from arrival to the end; `job` once the scheduler has it."""

    record: RecordedRequest
    job: Job | None = None
    abort_sent: bool = False


class EngineState:
    """Shared by the routes and the jobs; a restarted engine gets a new one."""

    def __init__(self, options: Options, vocabulary: Vocabulary, changed: Signal, weight_version: str) -> None:
        self.options = options
        self.vocabulary = vocabulary
        self.changed = changed
        self.weight_version = weight_version
        self.named_version = weight_version
        """What `/model_info` says: SGLang's HTTP side has a copy, and misses an update whose flush was refused."""
        self.paused: str | None = None
        self.updating = False
        self.healthy = True
        self.entries: dict[str, Entry] = {}
        self.jobs: dict[Job, None] = {}
        self.readers = 0
        self._pause_lock = asyncio.Lock()
        self._sequences: deque[list[int]] = deque(maxlen=REMEMBERED_SEQUENCES)

    @property
    def frozen(self) -> bool:
        """Whether the scheduler stands still, keeping its requests."""
        return self.paused in ("retract", "in_place")

    # Requests.

    async def enter(self) -> None:
        """Pass the gate: blocks while the engine is paused or its weights are being replaced."""
        while True:
            async with self._pause_lock:
                if self.paused is None and not self.updating:
                    self.readers += 1
                    return
            await self.changed.wait_until(lambda: self.paused is None and not self.updating)

    def leave(self) -> None:
        """The reply of a request that entered is delivered or given up."""
        self.readers -= 1
        self.changed.fire()

    def add_job(self, job: Job) -> None:
        """Into the scheduler."""
        self.jobs[job] = None
        self.changed.fire()

    def remove_job(self, job: Job) -> None:
        """Out of the scheduler; one that waits for a slot may start."""
        self.jobs.pop(job, None)
        self._sequences.append(job.record.input_ids + job.ids)
        for other in self.jobs:
            if other.phase == "waiting":
                other.wake()
        self.changed.fire()

    def has_slot(self) -> bool:
        """Whether one more request may run."""
        running = sum(job.phase != "waiting" for job in self.jobs)
        limit = self.options.max_running_requests
        return limit is None or running < limit

    def queue_full(self) -> bool:
        """Whether a request that has to wait would be one too many."""
        waiting = sum(job.phase == "waiting" for job in self.jobs)
        limit = self.options.max_queued_requests
        return limit is not None and not self.has_slot() and waiting >= limit

    def cached_tokens(self, input_ids: Sequence[int]) -> int:
        """How much of a prompt the prefix cache holds; its last id is always computed."""
        shared = max((common_prefix(known, input_ids) for known in self._sequences), default=0)
        return max(0, min(shared, len(input_ids) - 1))

    # Control calls.

    def abort(self, rid: str = "", *, abort_all: bool = False) -> None:
        """`/abort_request`: needs the very rid to exist, then hits every request whose rid begins with it.

        Only the first abort of a rid counts, even when it came before the scheduler had the request and so
        did nothing (tokenizer_manager.py, `abort_sent`).
        """
        if not abort_all:
            entry = self.entries.get(rid)
            if not rid or entry is None or entry.abort_sent:
                return
            entry.abort_sent = True
        for job in list(self.jobs):
            if abort_all or job.record.rid.startswith(rid):
                job.abort()

    async def pause(self, mode: str) -> None:
        """`/pause_generation`; returns when nothing runs any more (abort) or at once (retract, in_place)."""
        async with self._pause_lock:
            was_frozen = self.frozen
            if mode == "abort":
                # The scheduler stays as it is: mode abort only closes the gate and aborts.
                self.paused = self.paused if was_frozen else mode
                self.changed.fire()
                self.abort(abort_all=True)
                while self.readers:
                    await asyncio.sleep(self.options.timings.pause_poll)
                    self.abort(abort_all=True)
                return
            self.paused = mode
            for job in self.jobs:
                if mode == "retract":
                    job.retract()
                job.wake()
            self.changed.fire()

    async def resume(self) -> None:
        """`/continue_generation`."""
        async with self._pause_lock:
            self.paused = None
            for job in self.jobs:
                job.wake()
            self.changed.fire()

    def set_version(self, version: str) -> None:
        """From now on ids are sampled by `version`."""
        old, self.weight_version, self.named_version = self.weight_version, version, version
        for job in self.jobs:
            job.version_changed(old)
        self.changed.fire()

    async def update_weights(self, version: str | None, *, abort_all: bool, flush: bool) -> bool:
        """Replace the weights; outside a pause this waits for all running requests and holds new ones back.

        False: they are replaced, but the cache could not be flushed, and the version keeps its old name outside
        the scheduler (weight_updater.py, tokenizer_manager.py).
        """
        if abort_all:
            self.abort(abort_all=True)
        if self.paused is None:
            self.updating = True
            self.changed.fire()
            try:
                await self.changed.wait_until(lambda: self.readers == 0)
            finally:
                self.updating = False
        named = self.named_version
        if version is not None:
            self.set_version(version)
        if flush and not self.flush_cache():
            self.named_version = named
            return False
        self.changed.fire()
        return True

    def flush_cache(self) -> bool:
        """Empty the prefix cache; refused while requests run, or wait outside a pause."""
        if any(job.phase == "running" or not self.frozen for job in self.jobs):
            return False
        self._sequences.clear()
        return True

    def snapshot(self) -> dict[str, Any]:
        """A few numbers for `/server_info`."""
        running = sum(job.phase == "running" for job in self.jobs)
        return {"num_running_reqs": running, "num_waiting_reqs": len(self.jobs) - running, "paused": self.paused}
