"""How a template ends a reply: by which tokens, or by none. Pure functions on text.

Found once per kind of reply, by what is printed behind its text when another message follows (`followed`), and when
it is the last (`alone`):

    Qwen      followed  <|im_end|>\\n<|im_start|>user...    alone  <|im_end|>\\n   its stop token
    GLM       followed  <|user|>\\n...                      alone                the stop token is the next opener
    gpt-oss   followed  <|end|><|start|>user...            alone  <|return|>    the stop token, rewritten
    Ring      followed  <role>HUMAN</role>...              alone                nothing at all

A stop token further back, behind the next message's content, ends somebody else's message.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sidecar.tito.errors import DeltaError

ControlAt = Callable[[str, int], str | None]
"""The control token that begins at a position of a text."""


@dataclass(frozen=True, slots=True)
class ReplyEnd:
    """The first of `closers` that is printed behind a reply closes it, if replies of this kind are `closed`. If
    not, each has to be looked at: a template may close some of them (DeepSeek R1: calls, if they are parallel)."""

    closers: frozenset[str]
    closed: bool = True
    fault: str = ""
    """Why no reply of this kind can be continued, if that is so."""


def find_end(alone: str, followed: str, content: str, stops: frozenset[str], control_at: ControlAt) -> ReplyEnd:
    """What ends a reply without calls; `content` is the following message's. A control token at which the engine
    does not stop is a fault."""
    if _closes(stops, followed, content):
        return ReplyEnd(stops)
    position, stop = first_of(stops, alone)
    rewritten = None if stop is None or alone[:position].strip() else control_at(followed, position)
    if rewritten is not None and _closes(frozenset({rewritten}), followed, content):
        return ReplyEnd(stops | {rewritten})
    foreign = next(filter(None, (control_at(alone, at) for at in range(shared_length(alone, followed)))), None)
    if foreign is None or foreign in stops:
        return ReplyEnd(stops, closed=False)
    known = ", ".join(map(repr, sorted(stops)))
    return ReplyEnd(
        stops,
        fault=f"the chat template closes a reply with {foreign!r}, which is none of the stop tokens {known}: "
        "if the engine stops there, add it to eos_token_id in generation_config.json",
    )


def find_end_of_calls(followed: str, content: str, closers: frozenset[str]) -> ReplyEnd:
    """What ends a reply with calls; `closers` are the stop tokens and what `find_end` found besides."""
    return ReplyEnd(closers, closed=_closes(closers, followed, content))


def is_in_place(prompt: str, before: str) -> bool:
    """Whether a reply is printed (behind `before`) where the generation prompt asked for it. Templates that judge a
    conversation print it inside a message of their own; reasoning marks at the end do not count."""
    return prompt.startswith(before.rstrip()) or before.startswith(prompt.rstrip())


def behind_end(
    end: ReplyEnd, followed: str, alone: Callable[[], str], *, with_calls: bool
) -> tuple[str | None, str]:
    """The token that closes the reply, and what is printed after it up to the next generation.

    Behind a reply that nothing closes everything belongs to what follows, except a call's own closing marks, which
    `alone` tells. Raises `DeltaError` if a closing token is missing or the call's end cannot be told."""
    if end.fault:
        raise DeltaError(end.fault)
    position, close = first_of(end.closers, followed)
    if end.closed and close is None:
        known = ", ".join(map(repr, sorted(end.closers)))
        raise DeltaError(f"the chat template prints none of the stop tokens {known} after a reply")
    own = "" if end.closed else alone()
    if close is not None and (end.closed or not followed[shared_length(own, followed) : position].strip()):
        return close, followed[position + len(close) :]
    if not with_calls:
        return None, followed
    own = own[: first_of(end.closers, own)[0]]  # a template may close only the last message (VAETKI)
    if not followed.startswith(own):
        raise DeltaError(
            "the chat template prints no stop token after a call, and ends the call in another way once its result "
            "is there"
        )
    return None, followed[len(own) :]


def lacks_beginning(followed: str, delta_length: int, contents: Sequence[str]) -> bool:
    """Whether any of the appended `contents` is printed before the last `delta_length` characters."""
    before = followed[: len(followed) - delta_length]
    return any(content in before for content in contents if content)


def shared_length(one: str, other: str) -> int:
    """Characters that both texts begin with."""
    for position, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return position
    return min(len(one), len(other))


def first_of(spellings: frozenset[str], text: str) -> tuple[int, str | None]:
    """Position and spelling of the first of them in `text`, the longest where several begin there; None without."""
    found = [(text.find(spelling), spelling) for spelling in spellings]
    printed = [(position, spelling) for position, spelling in found if position >= 0]
    if not printed:
        return len(text), None
    return min(printed, key=lambda entry: (entry[0], -len(entry[1])))


def _closes(closers: frozenset[str], followed: str, content: str) -> bool:
    """Whether one of them is printed before the following message's content."""
    position, close = first_of(closers, followed)
    return close is not None and position < followed.find(content)
