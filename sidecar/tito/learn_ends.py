"""How this template ends replies without and with calls, tried out at start-up. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from sidecar.tito import probes
from sidecar.tito.chat_template import ChatTemplate, Conversation
from sidecar.tito.errors import TitoError
from sidecar.tito.messages import Message
from sidecar.tito.reply_end import ControlAt, ReplyEnd, find_end, find_end_of_calls, is_in_place
from sidecar.tito.sentinel import around_reply

_NOT_IN_PLACE = (
    "the chat template prints a reply somewhere else than where its generation prompt asks for one, so that what "
    "was generated is no part of a later prompt"
)


def learn_ends(
    template: ChatTemplate, stops: frozenset[str], closers: frozenset[str], control_at: ControlAt
) -> tuple[ReplyEnd, ReplyEnd]:
    """Without calls and with calls. `stops` are the engine's stop tokens, `closers` what the family is known to
    print in their place. A template that refuses the probes is taken to close replies with these."""
    end = _end_of_text(template, stops | closers, control_at)
    reply = Message("assistant", calls=(probes.call("call_1", "sidecar"),))
    result = probes.result("call_1", "a vehicle")
    for _, followed, _ in _around(template, reply, result, [probes.TOOL], alone=False):
        return end, find_end_of_calls(followed, result.content, end.closers)
    return end, ReplyEnd(end.closers)


def _end_of_text(template: ChatTemplate, stops: frozenset[str], control_at: ControlAt) -> ReplyEnd:
    thanks = Message("user", "Thanks.")
    for before, followed, (prompt, alone) in _around(template, Message("assistant"), thanks, None, alone=True):
        end = find_end(alone, followed, thanks.content, stops, control_at)
        return end if end.closed or is_in_place(prompt, before) else ReplyEnd(stops, fault=_NOT_IN_PLACE)
    return ReplyEnd(stops)


def _around(
    template: ChatTemplate, reply: Message, following: Message, tools: list[dict[str, Any]] | None, *, alone: bool
) -> Iterator[tuple[str, str, tuple[str, str]]]:
    """What is printed before and behind a reply that a message follows; with `alone` also the generation prompt
    that asks for the reply, and what is printed behind it as the last message. For each opening that is taken."""
    conversation = Conversation(tools, {}, probes.CLOCK)
    for opening in probes.OPENINGS:
        with suppress(TitoError):
            before, followed = around_reply(template, opening, reply, [following], conversation)
            if not alone:
                yield before, followed, ("", "")
                continue
            prompt = template.render(opening, tools, {}, probes.CLOCK)
            _, last = around_reply(template, opening, reply, [], conversation, add_generation_prompt=False)
            yield before, followed, (prompt, last)
