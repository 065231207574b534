"""What has to stand between a reply and the next generation, by the template alone.

The whole real conversation is rendered by transformers twice: `followed`, with the appended messages and the next
generation prompt, and `alone`, ending in the reply. Both are taken from the reply's last word on, so they are what
the template prints there *given the same earlier text*, whatever it does to that earlier text (dropping reasoning,
moving the tool list). What both print belongs to the reply, where they part the appended messages begin.

Independent of the product: no sentinel, the reply's own words, reasoning and all; transformers' renderer; messages
as a client sends them; no stop token is searched for. `judge` compares texts and, by the plain tokenizer, ids.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from tests.conformance.conversations import MARK, RESULT, Case
from tests.conformance.renderer import CONTROL, Messages, Renderer

_SPOKEN = "I look."


@dataclass(frozen=True, slots=True)
class Printed:
    """What the template prints for a case. `messages`: history and reply as a client sends them; `appended`: what
    follows."""

    messages: list[dict[str, Any]]
    appended: Sequence[dict[str, Any]]
    whole: str
    followed: str
    alone: str | None
    """None if the template refuses to end in a reply."""
    repeats_text: bool
    """It prints the text of a turn with calls once more behind the results."""


def printed(renderer: Renderer, case: Case) -> Printed | Exception:
    """The template's word on `case`, with its system message or, where that is refused, without; else why not."""
    failure: Exception | None = None
    for history in (list(case.history), list(case.history[1:])):
        found = _printed_after(renderer, case, history)
        if not isinstance(found, Exception):
            return found
        failure = failure or found
    assert failure is not None
    return failure


def _printed_after(renderer: Renderer, case: Case, history: Messages) -> Printed | Exception:
    wanted = [MARK, RESULT] if case.reply.get("tool_calls") else [MARK]
    messages = [*history, case.reply]
    rendered = renderer.printing([*messages, *case.appended], wanted, case.tools)
    if isinstance(rendered, Exception):
        return rendered
    whole, form = rendered
    asking = renderer.text(form[: len(history)], case.tools)
    if isinstance(asking, Exception):
        return asking  # the reply could never have been asked for
    alone = renderer.text(form[: len(messages)], case.tools, prompt=False)
    ends = isinstance(alone, str) and MARK in alone
    return Printed(
        messages=messages,
        appended=case.appended,
        whole=whole,
        followed=_behind(whole),
        alone=_behind(alone) if ends else None,
        repeats_text=_repeats_text(renderer, case, form, len(history)),
    )


def _behind(text: str) -> str:
    return text[text.rindex(MARK) + len(MARK) :]


def _repeats_text(renderer: Renderer, case: Case, form: Messages, position: int) -> bool:
    if not case.reply.get("tool_calls"):
        return False
    spoken = [*form[:position], {**form[position], "content": _SPOKEN}, *form[position + 1 :]]
    text = renderer.text(spoken, case.tools)
    return isinstance(text, str) and RESULT in text and text.rfind(_SPOKEN) > text.rindex(RESULT)


def printed_stops(found: Printed, known: Collection[str]) -> set[str]:
    """The control token that ends the reply in the template's own text; `known` are those of the vocabulary.

    It is the last one that is printed both ways, else the last one behind the reply alone; where the reply alone
    ends in nothing, the first that follows."""
    if found.alone is None:
        return set()
    own = shared_beginning(found.alone, found.followed)
    closing = [token for text in (own, found.alone) for token in CONTROL.findall(text)[-1:] if token in known]
    if closing:
        return {closing[0]}
    following = CONTROL.match(found.followed, len(own)) if not found.alone.strip() else None
    return {following.group()} & set(known) if following else set()


def judge(found: Printed, text: str, *, with_calls: bool, stops: Sequence[str]) -> str | None:
    """None if `text`, which stands behind the sampled reply and includes the token that closes it, is what the
    template prints there; else what is wrong. `stops` are the tokens at which the engine stops.

    Once its result is there a template may print a call's own end otherwise (Apriel adds the call's id), but not a
    control token or anything of the appended messages."""
    contents = [message["content"] for message in found.appended]
    if not found.followed.endswith(text):
        return f"{text!r} is not what the template prints: {found.followed!r}"
    gap = found.followed[: len(found.followed) - len(text)]
    passed = next((stop for stop in stops if stop in gap), None)
    if passed is not None:
        return f"{passed!r} closes the reply and is lost"
    closed = is_closed(found, text, stops)
    if not with_calls and not closed:
        return None if not gap else f"{gap!r} is lost"
    if found.alone is None:
        return None if closed else "the reply's end cannot be told"
    own = len(shared_beginning(found.alone, found.followed))
    if CONTROL.search(gap, own) or any(message in gap[own:] for message in contents):
        return f"{gap[own:]!r} of the appended messages is lost"
    if not closed and len(gap) != own:
        return f"{text[: own - len(gap)]!r} is the call's own and comes twice"
    return None


def shared_beginning(one: str, other: str) -> str:
    """What both texts begin with."""
    return "".join(a for a, b in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def is_closed(found: Printed, text: str, stops: Sequence[str]) -> bool:
    """Whether `text` begins with the token that closes the reply: a stop token, or the one that the template prints
    in the place of a stop token once another message follows (gpt-oss)."""
    if text.startswith(tuple(stops)):
        return True
    gap = found.followed[: len(found.followed) - len(text)]
    rewritten = found.alone is not None and found.alone.startswith(tuple(gap + stop for stop in stops))
    return rewritten and CONTROL.match(text) is not None
