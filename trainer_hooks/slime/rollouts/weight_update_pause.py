"""`rollout_paused(args)`: no token is sampled while the weights change, on any sidecar.

    with rollout_paused(args, reason="weight update 7"):
        actor_model.update_weights()

Settings: `TITO_PAUSE_AROUND_WEIGHT_UPDATE` (1), `TITO_PAUSE_REQUIRED` (1), `TITO_PAUSE_TIMEOUT_SEC` (300),
`TITO_PAUSE_MODE` (abort); the first three may also be spelled `DRESSAGE_PROXY_PAUSE_AROUND_WEIGHT_UPDATE` and so
on. Runs in the driver: slime's rollout manager is blocked while it generates. Blocking; one at a time.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, cast

from trainer_hooks.control_errors import ControlError
from trainer_hooks.control_requests import PauseMode
from trainer_hooks.fan_out import FanOutError, FleetPause, HeldPause, PauseLostError, pause_all, resume_all
from trainer_hooks.pause_lease import RENEW_SECONDS, LeaseKeeper
from trainer_hooks.sidecar_list import connect, find_sidecars
from trainer_hooks.slime.control import control_token, control_urls
from trainer_hooks.slime.errors import SettingError
from trainer_hooks.slime.settings import arg, choice_setting, flag_setting, number_setting

logger = logging.getLogger(__name__)

_NAMES = {
    "TITO_PAUSE_AROUND_WEIGHT_UPDATE": "DRESSAGE_PROXY_PAUSE_AROUND_WEIGHT_UPDATE",
    "TITO_PAUSE_REQUIRED": "DRESSAGE_PROXY_PAUSE_REQUIRED",
    "TITO_PAUSE_TIMEOUT_SEC": "DRESSAGE_PROXY_PAUSE_TIMEOUT_SEC",
}


@dataclass(frozen=True)
class PauseSettings:
    """What to do around a weight update. `timeout_seconds` is for the pause and again for the resume."""

    enabled: bool = True
    required: bool = True
    timeout_seconds: float = 300.0
    mode: PauseMode = "abort"

    @classmethod
    def read(cls, args: Any) -> PauseSettings:
        """From the variables, or their lower-case keys on `args`. Raises `SettingError`."""
        around, required, timeout = (_name_in_use(args, *names) for names in _NAMES.items())
        return cls(
            enabled=flag_setting(args, around, cls.enabled),
            required=flag_setting(args, required, cls.required),
            timeout_seconds=number_setting(args, timeout, cls.timeout_seconds, least=1, most=3600),
            mode=cast(PauseMode, choice_setting(args, "TITO_PAUSE_MODE", ("abort", "drain", "hold"), cls.mode)),
        )


@contextmanager
def rollout_paused(args: Any, *, reason: str, renew_seconds: float = RENEW_SECONDS) -> Iterator[FleetPause | None]:
    """Pause every live sidecar, keep the pauses alive, and resume each by its id whatever happens in the block.

    Gives None where the pause is switched off. Raises `FanOutError` where a sidecar has not quiesced (then none
    stays paused and the block does not run) or does not resume, and `PauseLostError` where a lease was lost; with
    `TITO_PAUSE_REQUIRED=0` these are logged and the block runs. A sidecar that is gone by the end needs nothing:
    agents' pods end while the weights change. An error of the block itself comes through.
    """
    settings = PauseSettings.read(args)
    if not settings.enabled:
        yield None
        return
    with ExitStack() as stack:
        token = control_token(args)
        seeds = [stack.enter_context(client) for client in connect(control_urls(args), token)]

        def still_lives(url: str) -> bool:
            try:
                return find_sidecars(seeds).lives(url)
            except ControlError as error:
                logger.warning("whether the sidecar at %s is gone is not known: %s", url, error)
                return True

        clients = [stack.enter_context(client) for client in connect(find_sidecars(seeds).urls, token)]
        fleet = pause_all(
            clients,
            still_lives=still_lives,
            timeout_seconds=settings.timeout_seconds,
            mode=settings.mode,
            reason=reason,
            required=settings.required,
        )
        for url, failure in fleet.failures.items():
            logger.error("%s goes on though %s is not quiet: %s", reason, url, failure)
        logger.info("paused for %s: sidecars=%d mode=%s", reason, len(fleet.held), settings.mode)
        with LeaseKeeper(fleet.held, every=renew_seconds) as keeper:
            try:
                yield fleet
            except BaseException:
                for problem in _end(fleet, keeper, settings, reason, still_lives):
                    logger.error("after the failure of %s: %s", reason, problem)
                raise
            problems = _end(fleet, keeper, settings, reason, still_lives)
    for problem in problems:
        logger.error("%s: %s", reason, problem)
    if problems and settings.required:
        raise problems[0]


def _end(
    fleet: FleetPause,
    keeper: LeaseKeeper,
    settings: PauseSettings,
    reason: str,
    still_lives: Callable[[str], bool],
) -> list[RuntimeError]:
    """Resume what is still held, the keeper renewing meanwhile; then what went wrong, if anything."""
    problems: list[RuntimeError] = []
    waiting: list[HeldPause] = [one for one in fleet.held if one.url not in keeper.lost]
    try:
        resume_all(
            waiting,
            timeout_seconds=settings.timeout_seconds,
            reason=f"end of {reason}",
            still_lives=still_lives,
        )
    except FanOutError as error:
        problems.append(error)
    keeper.close()
    lost = {url: why for url, why in keeper.lost.items() if not _was_lifted(fleet, url) and still_lives(url)}
    if lost:
        named = "; ".join(f"{url}: {why}" for url, why in lost.items())
        problems.insert(
            0,
            PauseLostError(
                f"the pause was not in force to the end at {len(lost)} of {len(fleet.held)} sidecars ({named}); "
                "generation may have gone on during the update. Tokens name their versions, so nothing is wrong "
                "in the data; find out why the trainer could not renew in time"
            ),
        )
    return problems


def _was_lifted(fleet: FleetPause, url: str) -> bool:
    return any(one.lifted for one in fleet.held if one.url == url)


def _name_in_use(args: Any, name: str, other: str) -> str:
    """The one of two spellings that is set; the first where none is. Raises `SettingError` where they differ."""
    values = {spelling: os.environ.get(spelling) or arg(args, spelling.lower()) for spelling in (name, other)}
    given = {spelling: value for spelling, value in values.items() if value is not None and value != ""}
    if len({str(value) for value in given.values()}) > 1:
        raise SettingError(f"{name} is {given[name]!r} but {other} is {given[other]!r}; set one of them")
    return name if name in given or not given else other
