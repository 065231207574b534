"""What a template prints behind a reply, told by a sentinel in the place of the reply's text. Pure functions.

Nothing of the reply itself is ever rendered, so its sampled ids need no rendering that matches them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sidecar.tito.chat_template import ChatTemplate, Conversation
from sidecar.tito.errors import DeltaError, TemplateError
from sidecar.tito.messages import Call, Message

SENTINEL = "⟦tito:5f1c9e⟧"
"""Stands for the reply's text; `_unused_sentinel` varies it if a message quotes it."""


def around_reply(
    template: ChatTemplate,
    history: Sequence[Message],
    reply: Message,
    appended: Sequence[Message],
    conversation: Conversation,
    *,
    add_generation_prompt: bool = True,
) -> tuple[str, str]:
    """The text before and behind the last sentinel, with the first placement of it that the template prints.

    Raises `DeltaError` if it prints none, `TemplateError` if it refuses the messages."""
    failure: TemplateError | None = None
    sentinel = _unused_sentinel(appended)
    for candidate in _placements(reply, sentinel):
        try:
            text = template.render(
                [*history, candidate, *appended],
                conversation.tools,
                conversation.template_kwargs,
                conversation.clock,
                add_generation_prompt=add_generation_prompt,
            )
        except TemplateError as error:
            failure = failure or error
            continue
        before, found, behind = text.rpartition(sentinel)
        if found:
            return before, behind
    if failure is not None:
        raise failure
    raise DeltaError("the chat template prints nothing of the assistant's last message")


def _unused_sentinel(appended: Sequence[Message]) -> str:
    """A sentinel that no appended message contains: what stands before a quoted one would be lost."""
    sentinel, number = SENTINEL, 0
    while any(sentinel in text for message in appended for text in _texts(message)):
        number += 1
        sentinel = f"{SENTINEL[:-1]}:{number}{SENTINEL[-1]}"
    return sentinel


def _texts(message: Message) -> list[str]:
    return [message.content, message.reasoning or "", *(call.arguments for call in message.calls)]


def _placements(reply: Message, sentinel: str) -> list[Message]:
    """The reply with its text replaced by the sentinel, in the order in which placements are tried.

    With tool calls the sentinel goes into the last call's arguments and nowhere else: Gemma 4 prints a call
    turn's text after the tool responses. gpt-oss prints only the first of parallel calls; SmolLM3, Phi-4 and
    Olmo 3 print no calls at all.
    """
    bare = replace(reply, content="", reasoning=None)
    in_content = replace(bare, content=sentinel)
    if not reply.calls:
        return [in_content]
    return [
        replace(bare, calls=(*reply.calls[:-1], _sentinel_call(reply.calls[-1], sentinel))),
        replace(bare, calls=(_sentinel_call(reply.calls[0], sentinel), *reply.calls[1:])),
        in_content,
    ]


def _sentinel_call(call: Call, sentinel: str) -> Call:
    return replace(call, parsed={"value": sentinel}, arguments=f'{{"value": "{sentinel}"}}')
