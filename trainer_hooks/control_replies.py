"""Replies of the control plane: their bytes in one buffer, and what they say.

`ReplyBuffer` belongs to one call; `read_reply` is pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

from trainer_hooks.control_errors import STATUS_ERRORS, ControlReplyError, ControlStatusError
from trainer_hooks.control_requests import ControlRequest
from trainer_hooks.trajectory_body import SAFETENSORS, read_body


class ReplyBuffer:
    """Takes a reply's chunks. Where the length is known beforehand they are written to their place at once, so that
    a large reply is in memory one time."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        length = None if "content-encoding" in headers else headers.get("content-length")
        self.content_type = headers.get("content-type", "").partition(";")[0].strip()
        self._announced = int(length) if length is not None else None
        self._buffer = bytearray(self._announced or 0)
        self._filled = 0

    def add(self, chunk: bytes) -> None:
        """The next chunk."""
        end = self._filled + len(chunk)
        self._buffer[self._filled : end] = chunk
        self._filled = end

    @property
    def missing(self) -> int:
        """Bytes that were announced and did not come."""
        return max(0, (self._announced or 0) - self._filled)

    @property
    def content(self) -> memoryview:
        """What came."""
        return memoryview(self._buffer)[: self._filled]


def read_reply[T](request: ControlRequest[T], status: int, reply: ReplyBuffer) -> T:
    """The reply's object.

    Raises `ControlStatusError` on an error status, `ControlReplyError` on another body."""
    where = f"{request.method} {request.path}"
    if not 200 <= status < 300:
        raise _status_error(where, status, _json_or_text(reply.content))
    if reply.missing:
        raise _cut_off(where, status, f"{reply.missing} bytes of it are missing")
    if reply.content_type == SAFETENSORS:
        try:
            return cast(T, read_body(reply.content))
        except (ValueError, TypeError, LookupError) as error:
            raise ControlReplyError(
                f"{where} answered a safetensors body that cannot be read: {error}",
                status=status,
                code="invalid_reply",
            ) from error
    try:
        body: Any = json.loads(bytes(reply.content))
    except ValueError as error:
        if reply.content_type == "application/json" and bytes(reply.content[:1]) == b"{":
            raise _cut_off(where, status, str(error)) from error
        body = bytes(reply.content[:500]).decode("utf-8", "replace")
    if not isinstance(body, dict):
        raise ControlReplyError(
            f"{where} answered {str(body)[:200]!r} instead of a JSON object; check TITO_CONTROL_URL",
            status=status,
            code="invalid_reply",
            body=body,
        )
    return cast(T, body)


def _cut_off(where: str, status: int, why: str) -> ControlReplyError:
    return ControlReplyError(
        f"{where}: the reply is cut off ({why}); the sidecar's log says what went wrong; read again, with the same "
        "drain_id or include_drained if it was drained",
        status=status,
        code="reply_cut_off",
    )


def _json_or_text(content: memoryview) -> Any:
    try:
        return json.loads(bytes(content))
    except ValueError:
        return bytes(content[:500]).decode("utf-8", "replace")


def _status_error(where: str, status: int, body: Any) -> ControlStatusError:
    envelope = body.get("error") if isinstance(body, dict) else None
    if not isinstance(envelope, dict):
        envelope = {"message": str(body)[:500]}
    return STATUS_ERRORS.get(status, ControlStatusError)(
        f"{where}: {envelope.get('message')}",
        status=status,
        code=envelope.get("code"),
        type=envelope.get("type"),
        param=envelope.get("param"),
        body=body,
    )
