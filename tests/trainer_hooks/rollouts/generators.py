"""Generate functions for the rollout tests: what they do is the test's script."""

from __future__ import annotations

import asyncio
import inspect
import threading
from typing import Any

from tests.trainer_hooks.builders import make_segment
from tests.trainer_hooks.slime_stand_in import Sample
from trainer_hooks.slime.samples import expand_segments_to_samples, mark_aborted_no_grad


async def generate(args: Any, sample: Sample, sampling_params: dict[str, Any], evaluation: bool = False) -> Any:
    """Whatever `args.script(sample)` says, or does if it is a coroutine."""
    assert sampling_params["temperature"] == 1.0
    result = args.script(sample)
    return await result if inspect.isawaitable(result) else result


def trajectory(
    sample: Sample, *, segments: int = 1, versions: tuple[str, ...] = ("1",), reward: float | None = 1.0
) -> list[Sample]:
    """A live run: each segment has one trained token per version."""
    mask = [0, 0] + [1] * len(versions)
    return expand_segments_to_samples(
        sample,
        [
            make_segment(
                mask,
                index=number,
                session_id=sample.session_id or "none",
                instance_id=sample.metadata["instance_id"],
                versions=["-1", "-1", *versions],
                reward=reward,
            )
            for number in range(segments)
        ],
    )


def dead(sample: Sample) -> list[Sample]:
    """A dead run."""
    return [mark_aborted_no_grad(sample, reason="scripted")]


class Stage:
    """Runs that wait until the test lets them go, each by its sample's index; `seen` has every start in order.

    Used from slime's loop by the runs and from the test's thread by the test.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._gates: dict[int, asyncio.Event] = {}
        self._started = threading.Condition()
        self.seen: list[int] = []
        self.running: set[int] = set()
        self.cancelled: list[int] = []

    async def __call__(self, sample: Sample) -> list[Sample]:
        assert sample.index is not None
        gate = self._gates.setdefault(sample.index, asyncio.Event())
        with self._started:
            self.seen.append(sample.index)
            self.running.add(sample.index)
            self._started.notify_all()
        try:
            await gate.wait()
        except asyncio.CancelledError:
            self.cancelled.append(sample.index)
            raise
        finally:
            self.running.discard(sample.index)
        return trajectory(sample)

    def let_go(self, *indices: int) -> None:
        """These runs end, now or as soon as they start."""
        for index in indices:
            self._loop.call_soon_threadsafe(lambda i=index: self._gates.setdefault(i, asyncio.Event()).set())

    def wait_started(self, *indices: int) -> None:
        """Until these runs have started."""
        with self._started:
            assert self._started.wait_for(lambda: set(indices) <= set(self.seen), 30), (indices, self.seen)
