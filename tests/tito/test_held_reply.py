"""A reply that the engine's parser reads gives nothing while its ids come, and all at once when it is released."""

from __future__ import annotations

from dataclasses import replace

from adapters.models.engine_parser import Answer, EngineParser
from adapters.models.formats.base import Call
from adapters.models.parsers import Parsers, ReplyFormats
from adapters.models.reply import join
from sidecar.tito.model import Model
from sidecar.tito.reply_text import ReplyText

TEXT = "Let me.\n<<look {}>>"


def reply_text(qwen3: Model, *, stop: tuple[str, ...] = ()) -> ReplyText:
    formats = ReplyFormats(engine=EngineParser("calls", "okapi"))
    model = replace(qwen3, parsers=Parsers(qwen3.marks, formats))
    return model.reply_text("", True, stop, lambda n: f"call_{n}")


def push(qwen3: Model, reply: ReplyText, text: str) -> None:
    for index in [*qwen3.codec.encode(text), *sorted(qwen3.stop_ids)[:1]]:
        reply.push([index])
        assert reply.deltas == []
    reply.finish()
    assert reply.deltas == []


def test_a_held_reply_is_shown_when_it_is_released(qwen3: Model) -> None:
    reply = reply_text(qwen3)
    push(qwen3, reply, TEXT)
    assert reply.held is not None
    question = reply.held.question(cut=False)
    assert question is not None
    assert question.text == TEXT  # without the stop token
    settled = reply.held.settle(Answer("Let me.", calls=(Call("look", "{}"),)))
    reply.release(settled)
    assert [delta.kind for delta in reply.deltas] == ["content", "tool_call"]
    assert join(reply.deltas) == settled


def test_a_stop_string_ends_a_held_reply_too(qwen3: Model) -> None:
    reply = reply_text(qwen3, stop=(".\n",))
    push(qwen3, reply, TEXT)
    assert reply.held is not None
    question = reply.held.question(cut=False)
    assert question is not None
    assert question.text == "Let me"
    assert reply.stopped_at is not None


def test_a_reply_that_is_read_here_is_not_held(qwen3: Model) -> None:
    assert qwen3.reply_text("", True, (), str).held is None
