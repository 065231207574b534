"""What a template prints, by transformers' own renderer: the oracle's side of the matrix.

Nothing of `sidecar` is used here. Messages are dicts as OpenAI's clients send them; which form of them a template
wants (arguments as object or text, `content` null, empty or a list of parts, reasoning or none) is tried out, and
the first form counts in which everything that matters is printed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from copy import deepcopy
from itertools import product
from typing import Any

from transformers.utils.chat_template_utils import render_jinja_template

CONTROL = re.compile(
    r"<\|[^|<>\s'\"{}]{1,40}\|?>|<[^|<>\s'\"{}]{1,40}\|>|<｜[^｜\s<>'\"{}]{1,40}｜>|\[/?[A-Z][A-Z_]+\]|\[\|[a-z]+\|\]"
    r"|</?s>|<[be]os>|<(?:start|end)_of_[a-z]+>|<(?:start|end)_function_[a-z]+>|<SPECIAL_\d+>|<extra_id_\d+>"
    r"|</?seed:[a-z_]+>|</?longcat_[a-z_]+>|\]~!?b\[?\]?|\]<\]minimax\[>\[|\[e~\[|</?(?:role|assistant|user|system)>"
    r"|<eos:[0-9a-z]+>|<sep>|\[gMASK\]|<sop>"
)
"""Spellings of control tokens in template sources and rendered text."""

Messages = Sequence[dict[str, Any]]


class Renderer:
    """`special` are the tokens a template may print by name, e.g. `eos_token`."""

    def __init__(self, source: str, special: dict[str, str]) -> None:
        self.source = source
        self.special = special

    def text(self, messages: Messages, tools: Any = None, *, prompt: bool = True) -> str | Exception:
        """The rendered conversation, or what the template raised."""
        try:
            rendered, _ = render_jinja_template(
                conversations=[list(messages)],
                tools=tools,
                chat_template=self.source,
                add_generation_prompt=prompt,
                **self.special,
            )
        except Exception as error:  # templates are foreign code: they raise whatever they like
            return error
        return str(rendered[0])

    def printing(
        self, messages: Messages, wanted: Sequence[str], tools: Any = None, *, prompt: bool = True
    ) -> tuple[str, Messages] | Exception:
        """The text of the first form of `messages` that prints all `wanted` texts, and that form; else why not."""
        failure: Exception = LookupError("not printed: " + ", ".join(wanted))
        for form in forms(messages):
            text = self.text(form, tools, prompt=prompt)
            if isinstance(text, Exception):
                failure = text if isinstance(failure, LookupError) else failure
            elif all(part in text for part in wanted):
                return text, form
        return failure


def forms(messages: Messages) -> Iterator[Messages]:
    """`messages` as templates may want them, the most usual form first. Their canonical form has contents and
    arguments as text, null beside calls, reasoning, and no tool's name beside its result."""
    calls = any(message.get("tool_calls") for message in messages)
    thoughts = any(message.get("reasoning_content") for message in messages)
    results = any(message["role"] == "tool" for message in messages)
    for named, silent, parts, null, as_text in product((False, True), repeat=5):
        if ((null or as_text) and not calls) or (named and not results) or (silent and not thoughts):
            continue
        form = with_tool_names(messages) if named else deepcopy(list(messages))
        for message in form:
            if silent:
                message.pop("reasoning_content", None)
            if parts and message["content"]:
                message["content"] = [{"type": "text", "text": message["content"]}]
            for call in message.get("tool_calls", ()):
                if not as_text:
                    call["function"]["arguments"] = json.loads(call["function"]["arguments"])
            if message.get("tool_calls") and not message["content"]:
                message["content"] = None if null else ""
        yield form


def with_tool_names(messages: Messages) -> list[dict[str, Any]]:
    """A copy in which each result bears the name of the tool that was called."""
    named = deepcopy(list(messages))
    names = {call["id"]: call["function"]["name"] for one in named for call in one.get("tool_calls", ())}
    for message in named:
        if message["role"] == "tool":
            message["name"] = names[message["tool_call_id"]]
    return named
