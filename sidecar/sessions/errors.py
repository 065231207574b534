"""Session errors, as refusals that both planes understand.

All are `RequestError`s: the gateway and the control plane put them into their own envelopes.
"""

from __future__ import annotations

from adapters.engines.base import (
    ContractError,
    EngineFailure,
    EngineRefusal,
    EngineUnreachable,
)
from adapters.protocols.errors import RequestError
from sidecar.generation.controller import Stalled
from sidecar.sessions.step_run import StepAborted
from sidecar.store.protocol import StoreError, StoreFenced
from sidecar.tito.version_rules import VersionChanged

_OVERFLOW_WORDS = (
    "longer than the model's context length",
    "Requested token count exceeds",
    "exceeds the maximum allowed length",
)
"""SGLang's wordings (0.5.9 to 0.5.23) for a prompt that does not fit."""


def session_closed(session_id: str, state: str) -> RequestError:
    """409: SDKs would try again, so they are told not to."""
    return RequestError(
        409, f"session {session_id!r} is {state}; open a new one", code=f"session_{state}", retry=False
    )


def session_full(session_id: str, what: str, flag: str, limit: int) -> RequestError:
    """413, which client libraries do not send again: no later call of the session can do better, unlike with 429 or
    503; and no wording that agents take for a full context, for a shorter history would not help either."""
    return RequestError(
        413,
        f"session {session_id!r} {what} ({flag} is {limit}); end it and open another one, or raise the limit",
        code="session_full",
        retry=False,
    )


def session_of_another_run(session_id: str, run_id: str, asked: str) -> RequestError:
    """409: weight versions have a meaning within one run only, so a session's steps are all of one run."""
    return RequestError(
        409,
        f"session {session_id!r} has steps of run {run_id!r}, and run_id is {asked!r}; open another session",
        code="session_of_another_run",
        param="run_id",
        retry=False,
    )


def session_unknown(session_id: str) -> RequestError:
    """404, on the control plane only: on the data plane an unknown id opens a session."""
    return RequestError(404, f"session {session_id!r} is unknown", code="session_not_found", kind="not_found_error")


def session_moved(session_id: str) -> RequestError:
    """503: another sidecar has the session; the same call finds its way there."""
    return unavailable(f"session {session_id!r} has moved to another sidecar; try again", "session_moved")


def unavailable(message: str, code: str) -> RequestError:
    """503 that SDKs retry after a second."""
    return RequestError(503, message, kind="server_error", code=code, retry_after=1)


def bad_engine_reply(message: str) -> RequestError:
    """502: the engine broke its contract, and nothing of its reply was used."""
    return RequestError(502, message, kind="server_error", code="bad_engine_reply")


def context_length_exceeded(limit: int, prompt_tokens: int, status: int) -> RequestError:
    """OpenAI's own wording: agents compact their history when they read it."""
    return RequestError(
        status,
        f"This model's maximum context length is {limit} tokens. However, your messages resulted in "
        f"{prompt_tokens} tokens. Please reduce the length of the messages.",
        code="context_length_exceeded",
        param="messages",
    )


def refusal_of(error: BaseException) -> RequestError:
    """What an agent is told of the error that ended its step. Unknown errors are 500 without detail."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, EngineRefusal):
        return _engine_refusal(error)
    if isinstance(error, ContractError):
        return bad_engine_reply(f"the engine's reply cannot be used: {error}")
    if isinstance(error, EngineUnreachable | EngineFailure):
        return unavailable(f"the engine cannot answer: {error}", "engine_unavailable")
    if isinstance(error, Stalled):
        return unavailable(str(error), "engine_stalled")
    if isinstance(error, StoreFenced):
        return unavailable(f"the session has moved to another sidecar: {error}", "session_moved")
    if isinstance(error, StoreError):
        return unavailable(f"it could not be stored: {error}", "store_unavailable")
    if isinstance(error, VersionChanged):
        return RequestError(502, str(error), kind="server_error", code="trajectory_version_changed", retry=False)
    if isinstance(error, StepAborted):
        return RequestError(409, f"the step was aborted: {error}", code="step_aborted", retry=False)
    return RequestError(500, "internal error; the sidecar's log has the details", kind="server_error")


def _engine_refusal(error: EngineRefusal) -> RequestError:
    text = str(error)
    if any(words in text for words in _OVERFLOW_WORDS):
        return RequestError(
            400,
            f"This model's maximum context length is exceeded: {text}. Please reduce the length of the messages.",
            code="context_length_exceeded",
            param="messages",
        )
    if error.status in (401, 403):  # the agent's own key is not the one that is wrong
        return RequestError(
            502, f"the engine refuses the sidecar: {text}; check --engine-api-key", kind="server_error", retry=False
        )
    return RequestError(error.status, f"the engine refuses the request: {text}")
