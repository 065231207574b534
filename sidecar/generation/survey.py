"""What the servers behind `--engine-url` said when they were asked, and what follows for all of them. Values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from adapters.engines.base import EngineError, EngineInfo
from adapters.engines.version_spans import gives_version_spans


@dataclass(frozen=True, slots=True)
class WorkerState:
    """One server: what it says of itself, or why it does not."""

    url: str
    info: EngineInfo | None
    failure: EngineError | None


@dataclass(frozen=True, slots=True)
class Survey:
    """All servers asked at one time. `router`: they stand behind a router.

    `vouched`: what the router says of its workers, which none of them ever told this process itself: only the
    router can reach them, and it counts them all as healthy."""

    router: bool
    workers: tuple[WorkerState, ...]
    vouched: EngineInfo | None = None

    @property
    def infos(self) -> list[EngineInfo]:
        """The answers that there are."""
        found = [worker.info for worker in self.workers if worker.info is not None]
        return found or ([self.vouched] if self.vouched is not None else [])

    @property
    def merged(self) -> EngineInfo | None:
        """One picture of all that answered; None if nobody did. What they do not agree on is None."""
        infos = self.infos
        if not infos:
            return None
        windows = [info.context_length for info in infos if info.context_length is not None]
        return replace(
            infos[0],
            context_length=min(windows, default=None),
            weight_version=_common([info.weight_version for info in infos]),
            incremental=_every([info.incremental for info in infos]),
            returns_routed_experts=_every([info.returns_routed_experts for info in infos]),
        )

    @property
    def silence(self) -> str | None:
        """Which servers do not answer and why; None if all do, or the router vouches for them."""
        if self.vouched is not None:
            return None
        silent = [f"{worker.url}: {_unprefixed(worker)}" for worker in self.workers if worker.failure is not None]
        return "; ".join(silent) or None

    @property
    def disagreement(self) -> str | None:
        """Which weights the servers have, if not all have the same."""
        versions = {info.weight_version for info in self.infos}
        if len(versions) < 2:
            return None
        named = [f"{w.url} has {w.info.weight_version}" for w in self.workers if w.info is not None]
        return f"the workers do not agree on the weight version: {', '.join(named)}"

    @property
    def without_spans(self) -> list[str]:
        """The servers that are not known to give a weight version for each token, with their versions."""
        if self.vouched is not None:
            return [f"{self.workers[0].url} cannot be asked"]
        return [
            f"{worker.url} says version {worker.info and worker.info.version}"
            for worker in self.workers
            if worker.info is None or not gives_version_spans(worker.info.version)
        ]

    def described(self) -> list[dict[str, Any]]:
        """For people and trainers: one entry per server."""
        return [
            {
                "url": worker.url,
                "version": worker.info and worker.info.version,
                "weight_version": worker.info and worker.info.weight_version,
                "error": None if worker.failure is None else _unprefixed(worker),
            }
            for worker in self.workers
        ]


def _unprefixed(worker: WorkerState) -> str:
    """The failure without the URL that it may begin with."""
    return str(worker.failure).removeprefix(worker.url).removeprefix(": ")


def _every(values: Sequence[bool | None]) -> bool | None:
    """What holds for all: False if one says no, None if one does not say."""
    return False if False in values else None if None in values else True


def _common[T](values: Sequence[T]) -> T | None:
    return values[0] if all(value == values[0] for value in values) else None
