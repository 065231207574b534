"""One agent run from `/session/open` to its segments: the steps, in order, and what each failure is called.

Promises: the session is pinned before the agent starts; the reward is known before the session is finalized,
so that it is stored with the trajectory; calls that a restarting sidecar misses are repeated. Every failure but
a wrong setting is an `AttemptError`. One object per attempt, in one event loop; cancelling `run` ends the agent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from trainer_hooks.control_errors import (
    ControlAuthError,
    ControlBadRequestError,
    ControlError,
    ControlNotFoundError,
    ControlTransportError,
)
from trainer_hooks.control_requests import (
    ControlRequest,
    discard_session,
    finalize_session,
    read_trajectory,
)
from trainer_hooks.launchers.agent_task import EARLY_STOPS, OUTCOMES, AgentResult, AgentTask, Launcher
from trainer_hooks.launchers.load import agent_has_own_sidecar, load_launcher
from trainer_hooks.slime.agents.rewards import Reward, RewardSource
from trainer_hooks.slime.agents.sampling_pin import sampling_pin
from trainer_hooks.slime.control import control_urls, open_control_async
from trainer_hooks.slime.errors import RewardError, SettingError
from trainer_hooks.slime.segments.segment_arrays import Segment
from trainer_hooks.slime.settings import list_setting, number_setting, text_setting

logger = logging.getLogger(__name__)

_LAUNCHER_SLACK_SECONDS = 120.0
"""What a launcher may take beyond the agent's time limit, to start it and to clean up."""
_DISCARD_SECONDS = 10.0


class AttemptError(Exception):
    """This attempt gives no trajectory. `reason` is one word for metrics; the text says more."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class AgentSession:
    """One attempt at one sample. `result` and `segments` are there as far as it came."""

    def __init__(
        self,
        args: Any,
        sample: Any,
        sampling_params: Mapping[str, Any],
        *,
        session_id: str,
        instance_id: str,
        scratch: Path,
        evaluation: bool,
    ) -> None:
        self._args = args
        self._sample = sample
        self._sampling_params = sampling_params
        self._scratch = scratch
        self._evaluation = evaluation
        self.session_id = session_id
        self.instance_id = instance_id
        self.api_key: str | None = None
        self.result: AgentResult | None = None
        self.segments: list[Segment] = []
        self._url: str | None = None

    async def run(self) -> list[Segment]:
        """Open, launch, rate, finalize, read. Raises `AttemptError`, and `SettingError`."""
        # Settings that are needed in the end are read first: an agent's run is long.
        rewards, launch, harvested = RewardSource.read(self._args), load_launcher(self._args), self._harvested()
        task = await self._open()
        self.result = await self._launch(launch, task)
        if self.result.outcome not in harvested:
            outcome = self.result.outcome
            raise AttemptError(f"agent_{outcome}", self.result.error or f"the agent ended: {outcome}")
        reward = await self._rate(rewards, task, self.result)
        await self._finalize(reward)
        # Marked as read, or retention would take what has trained for lost, and a sidecar whose store goes with its
        # pod would wait for a reader. The id is the session's: a repeat gets the same again.
        read = read_trajectory(session_id=self.session_id, drain=True, drain_id=self.session_id)
        reply = await self._patiently("read_failed", partial(self._ask, read))
        self.segments = reply["data"]
        if not self.segments:
            raise AttemptError("no_segments", "the session was finalized but has no segments")
        return self.segments

    async def discard(self) -> None:
        """Abort and forget the session, wherever it may have been opened; never raises, never takes long."""
        if self._url is None:
            return
        try:
            async with asyncio.timeout(_DISCARD_SECONDS):
                await self._ask(discard_session(self.session_id))
        except ControlNotFoundError:
            pass  # it was never opened
        except (ControlError, TimeoutError) as error:
            logger.warning(
                "session_not_discarded session=%s: %s; its retention will", self.session_id, error or "timed out"
            )

    async def _open(self) -> AgentTask:
        urls = control_urls(self._args)
        first = int(self.session_id[:8], 16) % len(urls)
        turn = 0
        hand_over = agent_has_own_sidecar(self._args)

        async def open_one() -> Mapping[str, Any]:
            nonlocal turn
            self._url = urls[(first + turn) % len(urls)]
            turn += 1
            async with open_control_async(self._args, self._url) as control:
                return await control.open_session(
                    session_id=self.session_id,
                    instance_id=self.instance_id,
                    run_id=text_setting(self._args, "TITO_RUN_ID"),
                    metadata=self._facts(),
                    sampling=sampling_pin(self._sampling_params),
                    hand_over=hand_over,
                )

        try:
            opened = await self._patiently("open_failed", open_one)
        except ControlBadRequestError as error:
            raise SettingError(f"the sidecar does not open sessions as they are pinned: {error}") from error
        self.api_key = opened["api_key"]
        metadata = dict(self._sample.metadata or {})
        limit = number_setting(self._args, "TITO_AGENT_TIMEOUT_SEC", 1800.0, least=1)
        return AgentTask(
            session_id=self.session_id,
            instance_id=self.instance_id,
            prompt=self._sample.prompt,
            metadata=metadata,
            base_url=opened["base_url"],
            anthropic_base_url=opened["anthropic_base_url"],
            api_key=opened["api_key"],
            scratch=self._scratch,
            timeout_seconds=float(metadata.get("agent_timeout_sec") or limit),
            args=self._args,
            evaluation=self._evaluation,
        )

    def _facts(self) -> dict[str, Any]:
        sample = self._sample
        return {"index": sample.index, "group_index": sample.group_index, "evaluation": self._evaluation}

    async def _launch(self, launch: Launcher, task: AgentTask) -> AgentResult:
        limit = asyncio.timeout(task.timeout_seconds + _LAUNCHER_SLACK_SECONDS)
        try:
            async with limit:
                result = await launch(task)
        except SettingError:
            raise
        except Exception as error:
            if limit.expired():
                raise AttemptError("agent_timeout", "the launcher did not return in time") from error
            raise AttemptError("launcher_failed", f"{type(error).__name__}: {error}") from error
        if not isinstance(result, AgentResult):
            raise AttemptError(
                "launcher_failed", f"the launcher returned {result!r}; it must return an AgentResult"
            )
        return result

    def _harvested(self) -> list[str]:
        early = list_setting(self._args, "TITO_EARLY_STOPS", EARLY_STOPS)
        for name in early:
            if name not in OUTCOMES:
                raise SettingError(f"TITO_EARLY_STOPS names {name!r}; known outcomes are {', '.join(OUTCOMES)}")
        return ["completed", *early]

    async def _rate(self, rewards: RewardSource, task: AgentTask, result: AgentResult) -> Reward | None:
        try:
            return await rewards.reward_of(self._sample, task, result)
        except RewardError as error:
            raise AttemptError("reward_failed", str(error)) from error

    async def _ask(self, request: ControlRequest[Any]) -> Any:
        """Ask the sidecar that opened the session; where it cannot be reached, the others: one that shares its
        store answers in its place, any other does not know the session, or nothing but its name."""
        assert self._url is not None
        try:
            return await self._ask_at(self._url, request)
        except ControlTransportError as error:
            if error.code != "connect_failed":
                raise
            for url in control_urls(self._args):
                if url != self._url:
                    with suppress(ControlError):
                        return await self._ask_at(url, request)
            raise

    async def _ask_at(self, url: str, request: ControlRequest[Any]) -> Any:
        async with open_control_async(self._args, url) as control:
            return await control.send(request)

    async def _finalize(self, reward: Reward | None) -> None:
        label = self._sample.label
        request = finalize_session(
            self.session_id,
            label=None if label is None else str(label),
            reward=reward,
            timeout_seconds=number_setting(self._args, "TITO_FINALIZE_TIMEOUT_SEC", 60.0),
        )
        try:
            await self._patiently("finalize_failed", partial(self._ask, request))
        except ControlBadRequestError as error:
            raise AttemptError("no_steps", f"the agent asked its model nothing: {error}") from error

    async def _patiently(self, reason: str, call: Callable[[], Awaitable[Mapping[str, Any]]]) -> Mapping[str, Any]:
        """Repeat an idempotent call while the sidecar is away or not ready, for `TITO_CONTROL_RETRY_SEC` (60)."""
        patience = number_setting(self._args, "TITO_CONTROL_RETRY_SEC", 60.0)
        loop = asyncio.get_running_loop()
        end, delay = loop.time() + patience, 0.25
        while True:
            try:
                return await call()
            except ControlAuthError as error:
                raise SettingError(f"{error}; check TITO_CONTROL_TOKEN") from error
            except ControlBadRequestError:
                raise
            except ControlError as error:
                passing = isinstance(error, ControlTransportError) or (error.status or 0) >= 500
                if not passing or loop.time() + delay > end:
                    raise AttemptError(reason, str(error)) from error
            await asyncio.sleep(delay)
            delay = min(2 * delay, 5.0)
