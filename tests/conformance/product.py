"""The product's side of the matrix: what the sidecar would send behind a reply, by its path from request to ids."""

from __future__ import annotations

from dataclasses import dataclass

from sidecar.tito.errors import TemplateError
from sidecar.tito.fingerprint import extend_chain
from sidecar.tito.messages import from_wire
from sidecar.tito.model import Model
from tests.conformance.conversations import MARK, Case
from tests.conformance.renderer import Messages
from tests.tito.talk import Talk


@dataclass(frozen=True, slots=True)
class Sent:
    """What follows the reply's own ids in the next prompt, the stop token included unless it was left out.

    `boundary` is the reason of the segment that starts there, None if the tokens go on."""

    ids: list[int]
    text: str
    boundary: str | None


def sent(model: Model, messages: Messages, case: Case, stop_id: int | None) -> Sent | TemplateError:
    """Ask with `case`'s history, answer with its reply and `stop_id` at the end, go on with what is appended.

    `messages` are history and reply as the template takes them."""
    *history, reply = messages
    talk = Talk(model)
    try:
        talk.ask(*history, tools=case.tools)
        stored = from_wire(reply, "reply")
        chain = extend_chain(talk.placement.chain, stored)
        words = model.codec.encode(f"It is the {MARK}").tolist()
        node = talk.answer(
            [*words, *([] if stop_id is None else [stop_id])],
            reply=stored.to_json(),
            chain=chain.lenient,
            exact_chain=chain.exact,
            stop_id=stop_id,
        )
        talk.wire[-1] = reply
        prompt = talk.ask(*case.appended, tools=case.tools)
    except TemplateError as error:
        return error
    assert talk.placement.parent is node
    if prompt.segment_reason not in (None, "stop_trimmed"):
        return Sent([], "", prompt.segment_reason)
    whole = talk.sent_ids()
    before = len(node.token_ids()) - (stop_id is not None)
    assert whole[:before] == node.token_ids().tolist()[:before]
    ids = whole[before:]
    return Sent(ids, model.codec.decode(ids), prompt.segment_reason)
