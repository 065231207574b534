"""What the sidecar asks of an engine and what it gets back, in no engine's wire format. Plain data.

EngineError            a reply that is no sampled tokens
├── EngineUnreachable  no connection, or lost before anything was decided: retried, then 503
├── EngineRefusal      the engine's own 4xx: passed on with its words
├── EngineFailure      the engine's own 5xx, or an error it delivers as an abort
└── ContractError      a reply that breaks the engine's contract (ids and logprobs disagree): 502
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal


class EngineError(Exception):
    """Base of all engine errors; the text is for people."""


class EngineUnreachable(EngineError):  # noqa: N818 - a state of the network
    """The engine could not be reached or the connection broke."""


class EngineRefusal(EngineError):  # noqa: N818 - the engine's decision
    """A 4xx of the engine."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class EngineFailure(EngineError):  # noqa: N818 - the engine's state
    """A 5xx of the engine."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class ContractError(EngineError):
    """The engine's reply contradicts itself; nothing of it may be used."""


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One engine call. `input_ids_json` is the ids as JSON without brackets, in runs of at least one id; `rid` is
    fresh for every call."""

    rid: str
    session_id: str
    input_ids_json: Sequence[bytes]
    sampling: Mapping[str, Any]
    """Effective sampling under SGLang's names, `max_new_tokens` excluded."""
    max_new_tokens: int
    stop_token_ids: tuple[int, ...]
    stream_interval: int
    routed_experts_start: int | None = None
    """Ask for the routed experts from this row on; None: not at all."""


@dataclass(frozen=True, slots=True)
class Finish:
    """How the engine ended a call. `matched` is the stop id or stop string."""

    kind: Literal["stop", "length", "abort"]
    matched: int | str | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class ReportedVersions:
    """Weight versions of one call: spans over its output if the engine gives them, else one name or None."""

    spans: tuple[tuple[int, int, str], ...] = ()
    single: str | None = None


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What an engine says of itself; None where it says nothing."""

    model_id: str
    tokenizer_path: str | None
    context_length: int | None
    weight_version: str | None
    incremental: bool | None
    version: str | None
    tool_call_parser: str | None
    reasoning_parser: str | None
    returns_routed_experts: bool | None = None
