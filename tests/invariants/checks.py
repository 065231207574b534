"""I1 and I2 over one played session: what the engine was asked, against what the agent's history says.

Every message of an `AssertionError` begins with the invariant's name, so that a test can tell what caught what.
Pure functions over a journal and the session's view.
"""

from itertools import pairwise
from typing import Any

from tests.fake_sglang import RecordedRequest
from tests.fake_sglang.exactness import common_prefix
from tests.invariants.journal import Exchange, Journal
from tests.invariants.oracle import Expectation
from tests.invariants.policy import END_OF_TEXT, IM_END

View = dict[str, Any]


def committed(view: View) -> dict[str, dict[str, Any]]:
    """The committed steps of `GET /session/{id}` by id."""
    return {step["step_id"]: step for step in view["steps"] if step["state"] == "committed"}


def reason(step: dict[str, Any]) -> str | None:
    """Why a step starts a segment; None if it appends to its parent's."""
    found: str | None = step["segment_reason"]
    return found


def check_exact(journal: Journal, view: View) -> None:
    """I1: each step continues the step that its messages name, and its prompt begins with that one's tokens."""
    steps = committed(view)
    begun = {step_id: one for step_id, one in journal.steps().items() if step_id in steps}
    for step_id, exchange in begun.items():
        _check_place(journal, steps, step_id, exchange.expectation)
        parent = steps[step_id]["parent"]
        if parent is not None and reason(steps[step_id]) is None:
            _check_begins(f"step {step_id}", journal.tokens(parent), journal.prompt(step_id))
        _check_own_requests(step_id, journal.requests(step_id))
    journal.world.engine.assert_i1(journal.session_id, expected_roots=_expected_roots(journal, steps))


def _check_place(journal: Journal, steps: dict[str, Any], step_id: str, expected: Expectation) -> None:
    parent, boundary = steps[step_id]["parent"], reason(steps[step_id])
    if not expected.parents:
        assert (parent, boundary) == (None, "root"), f"I1: {step_id} is a new root, not {parent} {boundary}"
        return
    assert parent in expected.parents, f"I1: {step_id} continues one of {set(expected.parents)}, not {parent}"
    wanted = _boundary(journal, journal.steps()[step_id], parent)
    assert boundary == wanted, f"I1: {step_id} continues {parent} with boundary {boundary}, not {wanted}"


def _boundary(journal: Journal, exchange: Exchange, parent: str) -> str | None:
    """Why a call that continues `parent` may not append to its tokens, if so."""
    if journal.steps()[parent].body.get("tools") != exchange.body.get("tools"):
        return "tools_changed"
    ends_in = journal.tokens(parent)[-1]
    return "stop_trimmed" if ends_in == journal.world.template.tokenizer.token_to_id(END_OF_TEXT) else None


def _expected_roots(journal: Journal, steps: dict[str, Any]) -> int:
    """How many engine requests may start a sequence: steps that start a segment, and calls that came to nothing
    and would have."""
    roots = sum(reason(step) is not None for step in steps.values())
    for exchange in journal.exchanges:
        if not steps.keys() & set(exchange.step_ids):
            parents = exchange.expectation.parents
            starts = not parents or any(_boundary(journal, exchange, parent) for parent in parents)
            roots += exchange.body["n"] if starts else 0
    return roots


def _check_begins(what: str, before: list[int], after: list[int]) -> None:
    at = common_prefix(before, after)
    assert at == len(before), (
        f"I1: {what} does not begin with the {len(before)} ids before it: at {at} "
        f"{before[at : at + 8]} became {after[at : at + 8]}"
    )


def _check_own_requests(step_id: str, requests: list[RecordedRequest]) -> None:
    """A step's later requests carry its prompt and what it had sampled."""
    for before, after in pairwise(requests):
        sampled = after.input_ids[len(before.input_ids) :]
        _check_begins(f"the resumed step {step_id}", before.input_ids, after.input_ids)
        _check_begins(f"what step {step_id} had sampled", sampled, before.output_ids)


def check_template(journal: Journal, view: View) -> None:
    """I2: what stands between sampled spans, and before the first, is what the template prints there."""
    steps = committed(view)
    for step_id, exchange in journal.steps().items():
        if step_id in steps:
            _check_context(journal, steps[step_id], exchange)


def _check_context(journal: Journal, step: dict[str, Any], exchange: Exchange) -> None:
    template, expected = journal.world.template, exchange.expectation
    tools, kwargs = exchange.body.get("tools"), journal.oracle.kwargs
    prompt, boundary = journal.prompt(step["step_id"]), reason(step)
    start = 0
    if boundary in (None, "stop_trimmed"):
        before = journal.tokens(step["parent"])
        close = template.tokenizer.token_to_id(IM_END)
        start = len(before) - (before[-1] == close or boundary == "stop_trimmed")

    def printed(messages: list[dict[str, Any]]) -> str:
        if start:
            return template.after_reply(messages, expected.depth, tools, kwargs)
        return template.prompt(messages, tools, kwargs)

    context, text = prompt[start:], printed(expected.messages)
    found = template.text(context)
    assert template.same_text(found, text), f"I2: the template prints\n{text!r}, the engine got\n{found!r}"
    harmless = printed([_without_content(message) for message in expected.messages])
    control = [token for token in template.ids(harmless) if token in template.control]
    sent = [token for token in context if token in template.control]
    assert sent == control, f"I2: contents became control tokens: {sent} instead of {control} in {found!r}"
    if [token for token in template.ids(text) if token in template.control] == control:
        assert context == template.ids(text), f"I2: {text!r} is encoded as {context}, not {template.ids(text)}"


def _without_content(message: dict[str, Any]) -> dict[str, Any]:
    return {**message, "content": "x"} if message["role"] in ("user", "tool") else message
