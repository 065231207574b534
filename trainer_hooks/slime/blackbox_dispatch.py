"""Hook for `--custom-generate-function-path`: one sample to one agent run to the samples that train.

    --custom-generate-function-path trainer_hooks.slime.blackbox_dispatch.generate

Promises: a fresh session per call; no agent and no open session is left when `generate` returns or raises; a
run that failed is a dead sample with its reason, never an exception, except for wrong settings, which are the
same for every sample. Runs in slime's rollout actor, any number at a time in one event loop; no shared state.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
import traceback
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer_hooks.redaction import Redactor
from trainer_hooks.slime.agents.evaluation import evaluation_args, evaluation_sample, failed_evaluation
from trainer_hooks.slime.agents.rollout_abort import rollout_aborted
from trainer_hooks.slime.agents.session import AgentSession, AttemptError
from trainer_hooks.slime.agents.trajectory_log import TrajectoryRecord, write_trajectory
from trainer_hooks.slime.check_args import check_args_async
from trainer_hooks.slime.control import control_token
from trainer_hooks.slime.errors import HookError, RewardError, SettingError
from trainer_hooks.slime.samples import expand_segments_to_samples
from trainer_hooks.slime.segments.aborted_sample import abort_session, prompt_identity
from trainer_hooks.slime.settings import text_setting
from trainer_hooks.uninterrupted import uninterrupted

logger = logging.getLogger(__name__)

ABORT_LOOK_SECONDS = 0.5
"""How often slime's abort flag is looked at: until the session is discarded, no engine becomes idle."""

_CLEAN_UP_SECONDS = 120.0
"""How long a launcher may take to end its agent before it is left behind, with an error in the log."""


async def generate(
    args: Any, sample: Any, sampling_params: Mapping[str, Any], evaluation: bool = False
) -> list[Any]:
    """Samples of one agent run: all segments that train with the anchor last, or one dead sample.

    With `evaluation` the anchor alone, or one FAILED sample with reward 0. slime's abort ends the run within half
    a second and returns the dead sample; so does cancellation, which is passed on. `sample` is changed only as
    `mark_aborted_no_grad` says. Raises `SettingError`.
    """
    await check_args_async(args)
    run = _Run(args, sample, sampling_params, evaluation)
    try:
        samples = await run.samples()
        await uninterrupted(run.remove_scratch())
    except asyncio.CancelledError:
        await uninterrupted(run.give_up())
        raise
    except BaseException:
        await uninterrupted(run.remove_scratch())
        raise
    return samples


class _Run:
    """One call of `generate`."""

    def __init__(self, args: Any, sample: Any, sampling_params: Mapping[str, Any], evaluation: bool) -> None:
        self.args = evaluation_args(args) if evaluation else args
        self.sample = sample
        self.evaluation = evaluation
        self._work: asyncio.Task[list[Any]] | None = None
        self._is_dead = False
        session_id = uuid.uuid4().hex
        self.scratch = Path(
            text_setting(args, "TITO_SCRATCH_DIR") or tempfile.gettempdir(), f"tito-agent-{session_id}"
        )
        self.session = AgentSession(
            self.args,
            sample,
            sampling_params,
            session_id=session_id,
            instance_id=prompt_identity(sample),
            scratch=self.scratch,
            evaluation=evaluation,
        )

    async def samples(self) -> list[Any]:
        self._work = work = asyncio.create_task(self._harvest(), name=f"agent {self.session.session_id}")
        while not work.done() and not rollout_aborted(self.args):
            await asyncio.wait({work}, timeout=ABORT_LOOK_SECONDS)
        if not work.done():
            await uninterrupted(self._stop(work))
            return [self._dead("rollout_aborted")]
        error = AttemptError("agent_cancelled", "cancelled from within") if work.cancelled() else work.exception()
        if error is None:
            return await self._kept(work.result())
        # A RewardError that comes out here is a reward's shape that does not fit --reward-key: a wrong setting.
        if isinstance(error, (SettingError, RewardError)) or not isinstance(error, Exception):
            await uninterrupted(self.session.discard())
            raise error
        return await self._failed(error)

    async def give_up(self) -> None:
        """What cancellation leaves to do, whenever it comes: no agent, no session, a template that starts clean."""
        if self._work is not None:
            await self._stop(self._work)
        if not self._is_dead:
            self._dead("cancelled")
        await self.remove_scratch()

    async def remove_scratch(self) -> None:
        """Once no agent works in it."""
        await asyncio.to_thread(shutil.rmtree, self.scratch, ignore_errors=True)

    def _make_scratch(self) -> None:
        """A full disk costs this run; a folder that is not there, or not ours, is a wrong setting."""
        try:
            self.scratch.mkdir(mode=0o700)
        except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
            raise SettingError(
                f"TITO_SCRATCH_DIR is {str(self.scratch.parent)!r}, where no folder can be made: {error.strerror}"
            ) from error
        except OSError as error:
            raise AttemptError("no_scratch", f"no scratch folder in {self.scratch.parent}: {error}") from error

    async def _harvest(self) -> list[Any]:
        await asyncio.to_thread(self._make_scratch)
        segments = await self.session.run()
        result = self.session.result
        assert result is not None
        if self.evaluation:
            samples = [evaluation_sample(self.sample, segments, args=self.args)]
        else:
            samples = expand_segments_to_samples(self.sample, segments, args=self.args)
        for sample in samples:
            sample.session_id = None if sample.remove_sample else self.session.session_id
            sample.metadata["agent_outcome"] = result.outcome
        return samples

    async def _stop(self, work: asyncio.Task[list[Any]]) -> None:
        """The session first, or the sidecar would go on asking the engine for the agent's call; then the agent."""
        await self.session.discard()
        work.cancel()
        _, late = await asyncio.wait({work}, timeout=_CLEAN_UP_SECONDS)
        session = self.session.session_id
        if late:
            logger.error("agent_left_behind session=%s: its launcher ignores being cancelled", session)
        elif not work.cancelled() and (error := work.exception()) is not None:
            logger.info("stopped session=%s: %s", session, self._redactor().text(repr(error)))

    async def _kept(self, samples: list[Any]) -> list[Any]:
        """Log a run that came to its end; it may have nothing that trains all the same."""
        reason = samples[0].metadata.get("abort_reason") if samples[0].remove_sample else None
        if reason is not None:
            self._warn(reason, f"untrainable tokens: {samples[0].metadata.get('untrainable_tokens')}")
        await self._log(samples, None if reason is None else {"reason": reason})
        return samples

    async def _failed(self, error: Exception) -> list[Any]:
        """Log why, keep what there is, forget the session."""
        reason = error.reason if isinstance(error, AttemptError) else type(error).__name__
        trace = "".join(traceback.format_exception(error))
        # A traceback says nothing new of a failure that has a name.
        told = str(error) if isinstance(error, (AttemptError, HookError)) else trace
        self._warn(reason, told)
        await uninterrupted(self.session.discard())
        dead = [self._dead(reason)]
        await self._log(dead, {"reason": reason, "message": str(error), "traceback": trace})
        return dead

    def _warn(self, reason: str, told: str) -> None:
        logger.warning(
            "rollout_dead reason=%s session=%s instance=%s index=%s: %s",
            reason,
            self.session.session_id,
            self.session.instance_id,
            self.sample.index,
            self._redactor().text(told),
        )

    def _dead(self, reason: str) -> Any:
        self._is_dead = True
        make = failed_evaluation if self.evaluation else abort_session
        return make(
            self.sample,
            session_id=self.session.session_id,
            instance_id=self.session.instance_id,
            args=self.args,
            reason=reason,
        )

    async def _log(self, samples: list[Any], error: Mapping[str, Any] | None) -> None:
        if text_setting(self.args, "TITO_LOG_DIR") is None:
            return
        result = self.session.result
        record = TrajectoryRecord(
            session_id=self.session.session_id,
            instance_id=self.session.instance_id,
            facts={
                "index": self.sample.index,
                "group_index": self.sample.group_index,
                "evaluation": self.evaluation,
                "outcome": None if result is None else result.outcome,
                "exit_code": None if result is None else result.exit_code,
                "result": {} if result is None else dict(result.data),
            },
            segments=self.session.segments,
            samples=samples,
            error=error,
            output={} if result is None else result.output,
        )
        await asyncio.to_thread(write_trajectory, self.args, record, self._redactor())

    def _redactor(self) -> Redactor:
        return Redactor([self.session.api_key, control_token(self.args)])
