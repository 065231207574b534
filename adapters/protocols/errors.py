"""A refusal, before it takes the shape of a client's protocol."""

from __future__ import annotations


class RequestError(Exception):
    """`status` is what the client's library treats rightly: OpenAI's retries 408, 409, 429 and >= 500.

    `param` names the field; `code` is the protocol's machine-readable word. `retry` False adds
    `x-should-retry: false`; `retry_after` is seconds."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
        retry: bool = True,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.code = code
        self.param = param
        self.retry = retry
        self.retry_after = retry_after


def bad_field(param: str, value: object, remedy: str) -> RequestError:
    """400 for a field: names it, its value and what to send instead."""
    shown = repr(value)
    if len(shown) > 120:
        shown = shown[:117] + "..."
    return RequestError(400, f"{param} is {shown}; {remedy}", param=param)
