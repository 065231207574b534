"""A reply that goes on with the text of the request's last message (`continue_final_message`). Pure functions.

A second sentinel behind that text tells where the template prints it; the prompt ends there:

    rendered   <|im_start|>assistant\\nOnce upon SENTINEL<|im_end|>\\n<|im_start|>assistant\\n
    prompt     <|im_start|>assistant\\nOnce upon

Where the text is the session's own last reply nothing is rendered: the new reply goes on from the sampled ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sidecar.tito.messages import Message
from sidecar.tito.trajectory import Node

_END = "⟦tito:end⟧"


def open_ended(messages: Sequence[Message]) -> tuple[list[Message], str]:
    """The messages with a sentinel behind the last one's text, and that sentinel, which none of them contains."""
    end, number = _END, 0
    while any(end in message.content for message in messages):
        number += 1
        end = f"{_END[:-1]}:{number}{_END[-1]}"
    return [*messages[:-1], replace(messages[-1], content=messages[-1].content + end)], end


def with_prefix(prefix: bytes, answer: Message) -> Message:
    """The message that a client holds after it has put a reply behind the text that it asked to go on with.
    `prefix` is that text's message as JSON, `b""` if the reply began anew."""
    if not prefix:
        return answer
    begun = Message.from_json(prefix)
    reasoning = (begun.reasoning or "") + (answer.reasoning or "")
    return replace(answer, content=begun.content + answer.content, reasoning=reasoning or None, name=begun.name)


def without_prefix(prefix: bytes, message: Message) -> Message:
    """The reply alone, out of what `with_prefix` made."""
    if not prefix:
        return message
    begun = Message.from_json(prefix)
    reasoning = (message.reasoning or "")[len(begun.reasoning or "") :]
    return replace(message, content=message.content[len(begun.content) :], reasoning=reasoning or None)


def own_ids(node: Node) -> list[int]:
    """What was sampled of the reply that a step ended with, the steps included that it went on from."""
    ids: list[int] = node.record.output_ids.tolist()
    while node.record.prefix and not len(node.record.context_ids) and node.parent is not None:
        node = node.parent
        ids = node.record.output_ids.tolist() + ids
    return ids


def inside(text: str, opener: str, closer: str, *, from_start: bool = False) -> bool:
    """Whether a text ends between the two marks. `from_start`: it began there. gpt-oss has no such marks: what
    was cut inside its analysis goes on as content."""
    if not opener:
        return False
    opened, closed = text.rfind(opener), text.rfind(closer)
    return from_start if opened < 0 and closed < 0 else opened > closed
