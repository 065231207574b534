"""A model's chat template as a function from messages to text.

Compiled by transformers, so that it prints what trainers and engines print. The clock a template reads is an
argument: the same session prints the same date on every day. The form of message that it reads is found out once
(`message_shape.py`). Immutable, usable from any thread.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from transformers.utils.chat_template_utils import _compile_jinja_template

from sidecar.tito.errors import TemplateError
from sidecar.tito.message_shape import MessageShape, find_shape
from sidecar.tito.messages import Message
from sidecar.tito.probes import CLOCK, TOOL


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a template is given besides the messages. `clock` is fixed for the life of a session."""

    tools: Sequence[dict[str, Any]] | None
    template_kwargs: Mapping[str, Any]
    clock: datetime


class ChatTemplate:
    """`source` is Jinja text; `special_tokens` are the names a template may print (`bos_token`, ...)."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """Raises `TemplateError` if the text is no Jinja template."""
        self.source = source
        self.sha256 = hashlib.sha256(source.encode()).hexdigest()
        self._special_tokens = dict(special_tokens)
        try:
            # The public render function copies every message on each call and refuses a clock of our own.
            self._compiled = _compile_jinja_template(source)
        except Exception as error:
            raise TemplateError(f"the chat template cannot be compiled: {error}") from error
        self.shape: MessageShape = find_shape(source, self._try_out)

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[dict[str, Any]] | None,
        template_kwargs: Mapping[str, Any],
        clock: datetime,
        *,
        add_generation_prompt: bool = True,
    ) -> str:
        """The conversation as text, its messages in the shape that the template wants.

        Raises `TemplateError` with the template's own words."""
        failure: Exception | None = None
        for shaped in self._attempts(messages):
            variables = {
                **self._special_tokens,
                **template_kwargs,
                "messages": shaped,
                "tools": list(tools) if tools else None,
                "documents": None,
                "add_generation_prompt": add_generation_prompt,
                "strftime_now": clock.strftime,
            }
            try:
                return str(self._compiled.render(**variables))
            except Exception as error:  # templates are foreign code: they raise whatever they like
                failure = failure or error
        raise TemplateError(f"the chat template refuses these messages: {failure}") from failure

    def _attempts(self, messages: Sequence[Message]) -> Iterator[list[dict[str, Any]]]:
        """`messages` in their usual shape, then in others for a template that refuses them so: with arguments in
        their other form, and without reasoning, which gpt-oss refuses beside both text and calls, others always."""
        yield self.shape.applied(messages)
        if any(message.calls for message in messages):
            other = replace(self.shape, arguments_as_text=not self.shape.arguments_as_text)
            yield other.applied(messages)
        if any(message.reasoning for message in messages):
            beside = [replace(m, reasoning=None) if m.calls and m.content else m for m in messages]
            yield self.shape.applied(beside)
            yield self.shape.applied([replace(message, reasoning=None) for message in messages])

    def _try_out(self, messages: list[dict[str, Any]], with_tools: bool) -> str | None:
        variables = {
            **self._special_tokens,
            "messages": messages,
            "tools": [TOOL] if with_tools else None,
            "documents": None,
            "add_generation_prompt": True,
            "strftime_now": CLOCK.strftime,
        }
        try:
            return str(self._compiled.render(**variables))
        except Exception:  # templates are foreign code; a shape that they refuse is not theirs
            return None
