"""How this template ends replies without and with calls, tried out at start-up. Pure."""

from __future__ import annotations

from collections.abc import Sequence

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
    trials = (_end_of_text(template, opening, stops | closers, control_at) for opening in probes.OPENINGS)
    end = next(filter(None, trials), ReplyEnd(stops | closers))
    calls = (_end_of_calls(template, opening, end.closers) for opening in probes.OPENINGS)
    return end, next(filter(None, calls), ReplyEnd(end.closers))


def _end_of_text(
    template: ChatTemplate, opening: Sequence[Message], stops: frozenset[str], control_at: ControlAt
) -> ReplyEnd | None:
    reply, thanks = Message("assistant"), Message("user", "Thanks.")
    conversation = Conversation(None, {}, probes.CLOCK)
    try:
        before, followed = around_reply(template, opening, reply, [thanks], conversation)
        _, alone = around_reply(template, opening, reply, [], conversation, add_generation_prompt=False)
        prompt = template.render(opening, None, {}, probes.CLOCK)
    except TitoError:
        return None
    end = find_end(alone, followed, thanks.content, stops, control_at)
    return end if end.closed or is_in_place(prompt, before) else ReplyEnd(stops, fault=_NOT_IN_PLACE)


def _end_of_calls(template: ChatTemplate, opening: Sequence[Message], closers: frozenset[str]) -> ReplyEnd | None:
    reply = Message("assistant", calls=(probes.call("call_1", "sidecar"),))
    result = probes.result("call_1", "a vehicle")
    try:
        _, followed = around_reply(
            template, opening, reply, [result], Conversation([probes.TOOL], {}, probes.CLOCK)
        )
    except TitoError:
        return None
    return find_end_of_calls(followed, result.content, closers)
