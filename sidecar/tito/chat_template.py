"""A model's chat template as a function from messages to text.

Compiled by transformers, so that it prints what trainers and engines print. The clock a template reads is an
argument: the same session prints the same date on every day. Immutable, usable from any thread.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from transformers.utils.chat_template_utils import _compile_jinja_template

from sidecar.tito.errors import TemplateError
from sidecar.tito.messages import Message


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

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[dict[str, Any]] | None,
        template_kwargs: Mapping[str, Any],
        clock: datetime,
        *,
        add_generation_prompt: bool = True,
    ) -> str:
        """The conversation as text. Call arguments go in as objects, or as text if the template wants that.

        Raises `TemplateError` with the template's own words."""
        failure: Exception | None = None
        with_calls = any(message.calls for message in messages)
        for arguments_as_text in (False, True) if with_calls else (False,):
            variables = {
                **self._special_tokens,
                **template_kwargs,
                "messages": [m.for_template(arguments_as_text=arguments_as_text) for m in messages],
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
