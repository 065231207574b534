"""What can be wrong with a conversation, as one small hierarchy.

TitoError
├── MessageError     a message of the request cannot be used: the caller's fault, HTTP 400
├── TemplateError    the chat template refuses these messages: the caller's fault, HTTP 400
├── DeltaError       the template gives no delta here: the step becomes a segment of its own
└── UnstableTemplate the start-up self-test found the template inexact: the server refuses to start
"""

from __future__ import annotations


class TitoError(Exception):
    """Base of all errors of `sidecar.tito`."""


class MessageError(TitoError):
    """A request's message is unusable; `param` names the field, e.g. `messages[3].tool_call_id`."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.param = param


class TemplateError(TitoError):
    """The chat template raised while rendering; the text is the template's own."""


class DeltaError(TitoError):
    """The template did not print the sentinel, or no stop token after it."""


class UnstableTemplate(TitoError):  # noqa: N818 - it names what the template is
    """The delta is not what the template prints; the text names the failing case."""
