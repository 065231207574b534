"""What a control-plane call raises.

    ControlError                    status, code, message, type, param, body
    ├── ControlTransportError       no reply: could not connect, connection lost, timeout (status None)
    ├── ControlReplyError           a reply that is not what the control plane sends (no JSON object)
    └── ControlStatusError          the control plane refused
        ├── ControlBadRequestError      400
        ├── ControlAuthError            401, 403
        ├── ControlNotFoundError        404
        ├── ControlConflictError        409  (`pause_expired`, `pause_conflict`, ...: see `code`)
        └── ControlUnavailableError     503  (`backend_not_ready`, ...; `ready` while not ready)

Plain classes without state; safe everywhere. No message holds the token.
"""

from __future__ import annotations

from typing import Any


class ControlError(Exception):
    """Base of everything a control-plane call raises, except for wrong arguments (ValueError)."""

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        code: str | None = None,
        type: str | None = None,  # noqa: A002 - the envelope's own name
        param: str | None = None,
        body: Any = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        """HTTP status, or None where there was no reply."""
        self.code = code
        """`code` of the error envelope; for transport errors `connect_failed`, `timeout` or `connection_lost`."""
        self.type = type
        self.param = param
        self.body = body
        """The parsed JSON of the reply, or its text."""

    def __str__(self) -> str:
        status = "no reply" if self.status is None else f"HTTP {self.status}"
        return f"{self.message} ({status}, code {self.code})"


class ControlTransportError(ControlError):
    """There was no reply; whether the call took effect is unknown unless `code` is `connect_failed`."""


class ControlReplyError(ControlError):
    """The reply is no JSON object: another program answers at this address, or a proxy does."""


class ControlStatusError(ControlError):
    """The control plane answered with an error status."""


class ControlBadRequestError(ControlStatusError):
    """400: a field is missing or wrong."""


class ControlAuthError(ControlStatusError):
    """401 or 403: the token is missing or wrong."""


class ControlNotFoundError(ControlStatusError):
    """404: the session or trajectory was never seen."""


class ControlConflictError(ControlStatusError):
    """409: the session or pause is in another state."""


class ControlUnavailableError(ControlStatusError):
    """503: not ready; the call may be repeated later."""


STATUS_ERRORS: dict[int, type[ControlStatusError]] = {
    400: ControlBadRequestError,
    401: ControlAuthError,
    403: ControlAuthError,
    404: ControlNotFoundError,
    409: ControlConflictError,
    503: ControlUnavailableError,
}
