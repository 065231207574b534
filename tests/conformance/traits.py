"""How a template treats reasoning and ends a reply, found by rendering; and the parsers that the product picks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sidecar.tito.model import Model
from tests.conformance.conversations import TOOLS, cases
from tests.conformance.oracle import Printed
from tests.conformance.renderer import CONTROL, Renderer

_THOUGHT = "okapi thoughts"
_OPENERS = ("<think>", "<thinking>", "[THINK]", "◁think▷", "<|START_THINKING|>", "<seed:think>", "<longcat_think>")
_CLOSERS = ("</think>", "</thinking>", "[/THINK]", "◁/think▷", "<|END_THINKING|>", "</seed:think>")
_MORE = {"role": "user", "content": "Tell me more."}


@dataclass(frozen=True, slots=True)
class Traits:
    """`thinking`: what becomes of earlier reasoning. `prompt`: the generation prompt "opens" a reasoning block or
    "closes" one at once. `ends`: kind of reply -> the token that closes it, "" if none does; `openers`: whether it
    begins the next message. `parsers`: of calls and of reasoning. `repeats_text`: a turn's text is printed once
    more behind the results of its calls."""

    thinking: str
    prompt: str
    ends: dict[str, str]
    openers: dict[str, bool]
    parsers: tuple[str, str]
    repeats_text: bool


def traits_of(renderer: Renderer, model: Model, expected: dict[str, Printed | Exception]) -> Traits:
    """All traits of one template."""
    formats = model.parsers.formats
    return Traits(
        thinking=_thinking(renderer),
        prompt=_prompt(expected["user"]),
        ends=_ends(model),
        openers={"text": _opens_next(expected["user"]), "calls": _opens_next(expected["tool"])},
        parsers=(
            formats.tools.name if formats.tools is not None else "",
            formats.reasoning.name if formats.reasoning is not None else "",
        ),
        repeats_text=any(isinstance(found, Printed) and found.repeats_text for found in expected.values()),
    )


def _thinking(renderer: Renderer) -> str:
    """By reasoning in its own field; a template that prints none of that may treat a block in the content."""
    question, looping = _histories()
    answer = {"role": "assistant", "content": "Yes.", "reasoning_content": _THOUGHT, "reasoning": _THOUGHT}
    answered = _prints(renderer, [*question, answer, _MORE], None)
    in_loop = _prints(renderer, looping, TOOLS)
    if in_loop:
        return "kept" if answered else "dropped after the next user message"
    if answered:
        return "dropped in tool loops" if in_loop is not None else "kept"
    block = {"role": "assistant", "content": f"<think>\n{_THOUGHT}\n</think>\n\nYes."}
    as_text = _prints(renderer, [*question, block, _MORE], None)
    if not as_text:
        return "not printed"
    return "kept in the content" if "think" in renderer.source else "none"


def _histories() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    by_name = {case.name: case for case in cases()}
    *before, turn, result = by_name["user_after_tools"].history
    return list(by_name["user"].history), [
        *before,
        {**turn, "reasoning": _THOUGHT, "reasoning_content": _THOUGHT},
        result,
    ]


def _prints(renderer: Renderer, messages: list[dict[str, Any]], tools: Any) -> bool | None:
    """Whether the thought is printed; None if the template takes no such conversation."""
    taken = None
    for start in (messages, messages[1:]):
        found = renderer.printing(start, [_THOUGHT], tools)
        if not isinstance(found, Exception):
            return True
        if isinstance(found, LookupError):
            taken = False
    return taken


def _prompt(user: Printed | Exception) -> str:
    end = user.followed.rstrip() if isinstance(user, Printed) else ""
    if end.endswith(_OPENERS):
        return "opens"
    return "closes" if end.endswith(_CLOSERS) else ""


def _opens_next(found: Printed | Exception) -> bool:
    """Whether a reply that is the last message ends in nothing, so that what closes it belongs to the next one."""
    return isinstance(found, Printed) and found.alone is not None and not CONTROL.search(found.alone)


def _ends(model: Model) -> dict[str, str]:
    """From the self-test's deltas."""
    found = {}
    for kind, names in {"text": ("user", "user_without_system"), "calls": ("tool", "parallel_tools")}.items():
        deltas = [r.delta for r in model.verdict.results if r.event.name in names and r.delta is not None]
        if deltas:
            close = deltas[0].close_id
            found[kind] = "" if close is None else model.codec.decode([close])
    return found
