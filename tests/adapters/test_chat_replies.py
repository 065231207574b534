"""Replies and chunks are what the official SDK's own models read."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from openai.types import Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from adapters.models.reply import Delta, Reply, ToolCall
from adapters.protocols.chat_replies import (
    Choice,
    Head,
    Usage,
    delta_json,
    error_body,
    message,
    model_entry,
    model_list,
)
from adapters.protocols.errors import RequestError

HEAD = Head("chatcmpl-1", "m", 1_700_000_000)
CALL = ToolCall("call_1", "look", '{"at": "Tür"}')


def completion(*choices: Choice) -> ChatCompletion:
    """Through JSON and the SDK's strict reading."""
    body = orjson.loads(orjson.dumps(HEAD.completion(choices, Usage(10, 4))))
    return ChatCompletion.model_validate(body, strict=True)


def chunk(body: dict[str, Any]) -> ChatCompletionChunk:
    return ChatCompletionChunk.model_validate(orjson.loads(orjson.dumps(body)), strict=True)


def piece(delta: Delta, call_index: int, head: Head = HEAD) -> ChatCompletionChunk:
    before, after = head.delta_frame(0)
    event = before + delta_json(delta, call_index) + after
    assert (event[:6], event[-2:]) == (b"data: ", b"\n\n")
    return chunk(orjson.loads(event[6:]))


class TestCompletion:
    def test_text_is_read(self) -> None:
        read = completion(Choice(0, Reply("Hi", "", ()), "stop", None))
        assert (read.id, read.model, read.created, read.object) == (
            "chatcmpl-1",
            "m",
            1_700_000_000,
            "chat.completion",
        )
        [choice] = read.choices
        assert (choice.index, choice.finish_reason, choice.logprobs) == (0, "stop", None)
        assert (choice.message.role, choice.message.content, choice.message.tool_calls) == ("assistant", "Hi", None)
        assert "reasoning_content" not in choice.message.model_extra

    def test_usage_counts_prompt_and_completion(self) -> None:
        usage = completion(Choice(0, Reply("", "", ()), "stop", None)).usage
        assert usage is not None
        assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (10, 4, 14)

    def test_calls_and_reasoning_are_read(self) -> None:
        read = completion(Choice(0, Reply("", "hm", (CALL,)), "tool_calls", None)).choices[0]
        assert read.finish_reason == "tool_calls"
        assert read.message.content is None
        assert read.message.model_extra == {"reasoning_content": "hm"}
        [call] = read.message.tool_calls or []
        assert call.type == "function"
        assert (call.id, call.function.name, call.function.arguments) == ("call_1", "look", '{"at": "Tür"}')

    def test_several_choices_keep_their_index(self) -> None:
        read = completion(*(Choice(n, Reply(str(n), "", ()), "length", None) for n in range(3)))
        assert [(choice.index, choice.message.content) for choice in read.choices] == [(0, "0"), (1, "1"), (2, "2")]

    def test_logprobs_are_of_the_sampled_tokens_with_their_bytes(self) -> None:
        read = completion(Choice(0, Reply("é", "", ()), "stop", [("é", -0.5), ("", 0.0)])).choices[0].logprobs
        assert read is not None
        entries = read.content or []
        assert [(e.token, e.logprob, e.bytes, e.top_logprobs) for e in entries] == [
            ("é", -0.5, [195, 169], []),
            ("", 0.0, [], []),
        ]

    def test_an_empty_list_of_logprobs_is_a_list(self) -> None:
        read = completion(Choice(0, Reply("", "", ()), "stop", [])).choices[0].logprobs
        assert read is not None
        assert read.content == []


class TestMessage:
    def test_content_is_null_only_beside_calls(self) -> None:
        assert message(Reply("", "", ())) == {"role": "assistant", "content": ""}
        assert message(Reply("", "", (CALL,)))["content"] is None
        assert message(Reply("a", "", (CALL,)))["content"] == "a"

    def test_a_replayed_message_is_the_reply(self) -> None:
        from sidecar.tito.messages import from_wire

        stored = from_wire(message(Reply("a", "r", (CALL,))), "reply")
        assert (stored.content, stored.reasoning) == ("a", "r")
        assert [(call.id, call.name, call.arguments) for call in stored.calls] == [
            ("call_1", "look", '{"at": "Tür"}')
        ]


class TestStream:
    def test_the_first_chunk_opens_the_message(self) -> None:
        """Public case 86: role and an empty string, not null."""
        body = HEAD.first_chunk(1)
        assert body["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        read = chunk(body)
        assert (read.choices[0].index, read.choices[0].finish_reason, read.usage) == (1, None, None)

    def test_content_and_reasoning_are_deltas_of_their_own(self) -> None:
        content = piece(Delta("content", "a"), 0).choices[0].delta
        assert (content.content, content.tool_calls, content.role) == ("a", None, None)
        reasoning = piece(Delta("reasoning", "r"), 0).choices[0].delta
        assert reasoning.model_extra == {"reasoning_content": "r"}
        assert reasoning.content is None

    def test_a_name_of_the_model_that_looks_like_a_delta_is_a_name(self) -> None:
        read = piece(Delta("content", "a"), 0, Head("chatcmpl-1", '"delta":{}', 1_700_000_000))
        assert (read.model, read.choices[0].delta.content) == ('"delta":{}', "a")

    def test_a_call_has_its_index_id_and_name_at_once(self) -> None:
        """Public case 44."""
        [call] = piece(Delta("tool_call", call=CALL), 2).choices[0].delta.tool_calls or []
        assert (call.index, call.id, call.type) == (2, "call_1", "function")
        assert call.function is not None
        assert (call.function.name, call.function.arguments) == ("look", '{"at": "Tür"}')

    @pytest.mark.parametrize("reason", ["stop", "length", "tool_calls"])
    def test_the_last_chunk_has_the_finish_reason_and_no_delta(self, reason: str) -> None:
        read = chunk(HEAD.last_chunk(0, reason, None)).choices[0]
        assert read.finish_reason == reason
        assert read.delta.model_dump(exclude_none=True) == {}
        assert read.logprobs is None

    def test_the_last_chunk_may_carry_the_logprobs(self) -> None:
        read = chunk(HEAD.last_chunk(0, "stop", [("a", -1.0)])).choices[0].logprobs
        assert read is not None
        assert [entry.logprob for entry in read.content or []] == [-1.0]

    def test_usage_comes_in_a_chunk_without_choices(self) -> None:
        """Public case 85."""
        read = chunk(HEAD.usage_chunk(Usage(3, 2)))
        assert read.choices == []
        assert read.usage is not None
        assert read.usage.total_tokens == 5
        assert "usage" not in HEAD.first_chunk(0)


class TestErrors:
    def test_an_error_has_the_protocols_envelope(self) -> None:
        error = RequestError(400, "too long", code="context_length_exceeded", param="messages")
        assert error_body(error) == {
            "error": {
                "message": "too long",
                "type": "invalid_request_error",
                "param": "messages",
                "code": "context_length_exceeded",
            }
        }


class TestModels:
    def test_an_entry_is_a_model(self) -> None:
        read = Model.model_validate(model_entry("qwen", 4096, 1), strict=True)
        assert (read.id, read.object, read.owned_by) == ("qwen", "model", "tito-sidecar")
        assert read.model_extra == {"max_model_len": 4096}

    def test_an_unknown_context_length_is_left_out(self) -> None:
        assert "max_model_len" not in model_entry("qwen", None, 1)

    def test_the_list_has_the_one_model(self) -> None:
        body = model_list("qwen", None, 1)
        assert body["object"] == "list"
        assert [Model.model_validate(entry).id for entry in body["data"]] == ["qwen"]
