"""Bodies of OpenAI's Chat Completions are read, and what is wrong is named with its value and remedy."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.protocols.chat_completions import parse
from adapters.protocols.errors import RequestError, bad_field
from adapters.protocols.request import ChatRequest, Sampling

USER = {"role": "user", "content": "q"}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


def read(**fields: Any) -> ChatRequest:
    return parse(orjson.dumps({"model": "m", "messages": [USER], **fields}))


def refused(**fields: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        read(**fields)
    error = caught.value
    assert error.status == 400
    assert error.kind == "invalid_request_error"
    return error


def test_the_least_body_has_neutral_values() -> None:
    assert parse(orjson.dumps({"messages": [USER]})) == ChatRequest(
        model="",
        messages=[USER],
        tools=None,
        use_tools=False,
        stream=False,
        include_usage=False,
        max_tokens=None,
        sampling=Sampling(),
    )


def test_null_is_absent() -> None:
    # fmt: off
    names = (
        "tools", "tool_choice", "stream", "stream_options", "max_tokens", "max_completion_tokens", "temperature",
        "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty", "seed", "stop",
        "logit_bias", "n", "logprobs", "top_logprobs", "response_format", "session_id", "metadata",
        "chat_template_kwargs", "reasoning_effort",
    )
    # fmt: on
    assert read(**dict.fromkeys(names)) == read()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[1]", "no JSON object"),
        (b"null", "no JSON"),
    ],
)
def test_a_body_that_is_no_object_is_refused(body: bytes, words: str) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        parse(body)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    "name",
    ["input_ids", "logprob_start_len", "skip_special_tokens", "ignore_eos", "stop_token_ids", "rid", "regex"],
)
def test_fields_that_would_break_token_exactness_are_refused(name: str) -> None:
    """Public case 98."""
    error = refused(**{name: [1]})
    assert error.param == name
    assert "it would break token exactness" in error.message


def test_unknown_fields_are_ignored_by_name() -> None:
    assert read(zeta=1, alpha=None, user="u", store=True).ignored == ("alpha", "zeta")


class TestMessages:
    @pytest.mark.parametrize("value", [None, [], "q", {"role": "user"}])
    def test_there_has_to_be_one(self, value: Any) -> None:
        assert refused(messages=value).param == "messages"

    @pytest.mark.parametrize(
        ("message", "param"),
        [
            ("q", "messages[0]"),
            ({"content": "q"}, "messages[0].role"),
            ({"role": 1}, "messages[0].role"),
            ({"role": "user", "content": 1}, "messages[0].content"),
            ({"role": "user", "content": {"a": 1}}, "messages[0].content"),
            ({"role": "user", "content": ["q"]}, "messages[0].content[0]"),
            ({"role": "user", "content": [{"text": "q"}]}, "messages[0].content[0].type"),
            ({"role": "user", "content": [{"type": "image_url"}]}, "messages[0].content[0].type"),
            ({"role": "user", "content": [{"type": "text", "text": None}]}, "messages[0].content[0].text"),
            ({"role": "tool", "tool_call_id": 1}, "messages[0].tool_call_id"),
            ({"role": "user", "name": 1}, "messages[0].name"),
            ({"role": "user", "reasoning_content": ["r"]}, "messages[0].reasoning_content"),
            ({"role": "user", "reasoning": {}}, "messages[0].reasoning"),
            ({"role": "user", "tool_calls": {}}, "messages[0].tool_calls"),
            ({"role": "user", "tool_calls": ["c"]}, "messages[0].tool_calls[0].function"),
            ({"role": "user", "tool_calls": [{}]}, "messages[0].tool_calls[0].function"),
            ({"role": "user", "tool_calls": [{"function": {}}]}, "messages[0].tool_calls[0].function"),
            (
                {"role": "user", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]},
                "messages[0].tool_calls[0].function.arguments",
            ),
            (
                {"role": "user", "tool_calls": [{"id": 1, "function": {"name": "f"}}]},
                "messages[0].tool_calls[0].id",
            ),
        ],
    )
    def test_what_is_wrong_with_one_is_named(self, message: Any, param: str) -> None:
        assert refused(messages=[message]).param == param
        later = refused(messages=[USER, message])
        assert later.param == param.replace("messages[0]", "messages[1]")

    def test_an_assistant_message_cannot_be_the_last(self) -> None:
        error = refused(messages=[USER, {"role": "assistant", "content": "a"}])
        assert error.param == "messages[1].role"
        assert "has to come from a user or a tool" in error.message

    def test_all_shapes_that_agents_send_are_accepted(self) -> None:
        messages = [
            {"role": "developer", "content": [{"type": "text", "text": "d", "cache_control": {}}]},
            USER,
            {
                "role": "assistant",
                "content": None,
                "reasoning_content": "r",
                "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
            },
            {"role": "tool", "tool_call_id": "c", "content": "", "name": "f"},
            {"role": "assistant", "tool_calls": [{"function": {"name": "f"}}], "refusal": None},
            {"role": "tool", "content": "x"},
        ]
        assert read(messages=messages).messages == messages


class TestTools:
    def test_tools_are_passed_on_and_used(self) -> None:
        request = read(tools=[TOOL])
        assert (request.tools, request.use_tools) == ([TOOL], True)

    def test_none_means_that_they_are_printed_but_not_read(self) -> None:
        request = read(tools=[TOOL], tool_choice="none")
        assert (request.tools, request.use_tools) == ([TOOL], False)

    def test_an_empty_list_is_no_tools(self) -> None:
        request = read(tools=[], tool_choice="auto")
        assert (request.tools, request.use_tools) == (None, False)

    @pytest.mark.parametrize(
        ("tools", "param"),
        [
            ({}, "tools"),
            (["look"], "tools[0]"),
            ([{"type": "web_search"}], "tools[0]"),
            ([TOOL, {"type": "function"}], "tools[1].function"),
            ([{"type": "function", "function": {}}], "tools[0].function"),
            ([{"type": "function", "function": {"name": ""}}], "tools[0].function"),
        ],
    )
    def test_what_is_no_function_is_named(self, tools: Any, param: str) -> None:
        assert refused(tools=tools).param == param

    @pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "look"}}])
    def test_a_forced_call_needs_a_grammar_that_the_family_lacks(self, choice: Any) -> None:
        error = refused(tools=[TOOL], tool_choice=choice)
        assert error.param == "tool_choice"
        assert "no call grammar" in error.message


class TestSampling:
    def test_everything_that_is_asked_is_read(self) -> None:
        request = read(
            temperature=0.7,
            top_p=0.9,
            top_k=40,
            min_p=0.1,
            frequency_penalty=-1,
            presence_penalty=1.5,
            repetition_penalty=1.1,
            seed=-3,
            stop=["a", "b"],
            logit_bias={"7": -100, "8": 0.5},
        )
        assert request.sampling == Sampling(
            temperature=0.7,
            top_p=0.9,
            top_k=40,
            min_p=0.1,
            frequency_penalty=-1.0,
            presence_penalty=1.5,
            repetition_penalty=1.1,
            seed=-3,
            stop=("a", "b"),
            logit_bias={"7": -100, "8": 0.5},
        )

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("temperature", -0.1),
            ("temperature", "hot"),
            ("temperature", True),
            ("top_p", 1.1),
            ("top_k", 1.5),
            ("top_k", -2),
            ("min_p", 2),
            ("frequency_penalty", 2.1),
            ("presence_penalty", -3),
            ("repetition_penalty", [1]),
            ("seed", "7"),
            ("seed", False),
            ("n", 0),
            ("n", 129),
            ("max_tokens", 0),
            ("max_completion_tokens", -1),
            ("stream", "yes"),
            ("stream", 1),
            ("logprobs", 3),
            ("model", 7),
            ("session_id", 7),
            ("reasoning_effort", 1),
            ("stream_options", []),
            ("logit_bias", []),
            ("response_format", "json"),
            ("chat_template_kwargs", "x"),
            ("stop", 1),
            ("stop", ""),
            ("stop", ["a", ""]),
            ("stop", ["a", 1]),
        ],
    )
    def test_a_value_out_of_bounds_is_named_with_a_remedy(self, name: str, value: Any) -> None:
        error = refused(**{name: value})
        assert error.param == name
        assert f"{name} is {value!r}; " in error.message
        assert len(error.message.split("; ", 1)[1]) > 8

    @pytest.mark.parametrize("bias", [{"hello": 1}, {"7": "a lot"}, {"7": True}, {"-7": 1}])
    def test_a_bias_that_is_no_number_for_an_id_is_refused(self, bias: dict[str, Any]) -> None:
        assert refused(logit_bias=bias).param == f"logit_bias.{next(iter(bias))}"

    def test_one_stop_string_is_a_list_of_one(self) -> None:
        assert read(stop="a").sampling.stop == ("a",)
        assert read(stop=[]).sampling.stop == ()

    def test_an_empty_bias_is_none(self) -> None:
        assert read(logit_bias={}).sampling.logit_bias is None

    def test_the_newer_name_of_the_limit_wins(self) -> None:
        assert read(max_tokens=5).max_tokens == 5
        assert read(max_tokens=5, max_completion_tokens=6).max_tokens == 6

    def test_several_replies_may_be_asked_for(self) -> None:
        assert read(n=3).n == 3


class TestGrammar:
    def test_text_is_no_grammar(self) -> None:
        assert read(response_format={"type": "text"}).sampling.json_schema is None

    def test_an_object_is_any_object(self) -> None:
        schema = read(response_format={"type": "json_object"}).sampling.json_schema
        assert orjson.loads(schema or "") == {"type": "object"}

    def test_a_schema_is_passed_on_as_text(self) -> None:
        schema = {"type": "object", "properties": {"ä": {"type": "string"}}}
        asked = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
        assert orjson.loads(read(response_format=asked).sampling.json_schema or "") == schema

    @pytest.mark.parametrize("schema", [None, {}, {"schema": "x"}])
    def test_a_missing_schema_is_named(self, schema: Any) -> None:
        error = refused(response_format={"type": "json_schema", "json_schema": schema})
        assert error.param == "response_format.json_schema"

    def test_an_unknown_format_is_named(self) -> None:
        assert refused(response_format={"type": "grammar"}).param == "response_format.type"


class TestStreaming:
    def test_usage_is_sent_only_in_a_stream_that_asks_for_it(self) -> None:
        usage = {"include_usage": True}
        assert read(stream=True, stream_options=usage).include_usage
        assert not read(stream=True).include_usage
        assert not read(stream=False, stream_options=usage).include_usage

    def test_a_wrong_option_is_refused(self) -> None:
        for stream in (True, False):
            error = refused(stream=stream, stream_options={"include_usage": "yes"})
            assert error.param == "stream_options.include_usage"


class TestLogprobs:
    def test_the_sampled_tokens_logprob_may_be_asked_for(self) -> None:
        assert read(logprobs=True).logprobs
        assert read(logprobs=True, top_logprobs=0).logprobs
        assert not read().logprobs

    @pytest.mark.parametrize("top", [1, 20])
    def test_those_of_other_tokens_may_not(self, top: int) -> None:
        assert "only the sampled token's logprob" in refused(logprobs=True, top_logprobs=top).message

    def test_a_number_beyond_the_protocol_is_refused_too(self) -> None:
        assert refused(top_logprobs=21).param == "top_logprobs"


class TestSession:
    def test_the_body_or_its_metadata_may_name_it(self) -> None:
        assert read(session_id="a", metadata={"session_id": "b"}).session_id == "a"
        assert read(metadata={"session_id": "b"}).session_id == "b"
        assert read(metadata={"other": 1}).session_id is None

    def test_an_empty_id_is_no_absent_one(self) -> None:
        assert read(session_id="", metadata={"session_id": "b"}).session_id == ""

    @pytest.mark.parametrize(
        ("metadata", "param"), [({"session_id": 7}, "metadata.session_id"), ("text", "metadata"), ([1], "metadata")]
    )
    def test_metadata_that_name_no_session_rightly_are_refused(self, metadata: Any, param: str) -> None:
        assert refused(metadata=metadata).param == param


class TestTemplateArguments:
    def test_they_are_passed_on(self) -> None:
        assert read(chat_template_kwargs={"enable_thinking": False}).template_kwargs == {"enable_thinking": False}

    def test_the_reasoning_effort_is_one_unless_it_is_named_there(self) -> None:
        assert read(reasoning_effort="low").template_kwargs == {"reasoning_effort": "low"}
        both = read(reasoning_effort="low", chat_template_kwargs={"reasoning_effort": "high"})
        assert both.template_kwargs == {"reasoning_effort": "high"}

    @pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt", "strftime_now", "documents"])
    def test_what_the_sidecar_sets_cannot_be_set(self, name: str) -> None:
        assert refused(chat_template_kwargs={name: 1}).param == f"chat_template_kwargs.{name}"


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.floats(-5, 5), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=9), inner, max_size=3)),
    max_leaves=6,
)
known_fields = st.sampled_from(
    [
        "messages",
        "tools",
        "stop",
        "stream",
        "stream_options",
        "logit_bias",
        "response_format",
        "metadata",
        "n",
        "seed",
    ]
)


@given(st.dictionaries(known_fields, json_values, max_size=4))
def test_any_json_is_read_or_refused_but_never_breaks(fields: dict[str, Any]) -> None:
    try:
        read(**fields)
    except RequestError as error:
        assert error.status == 400
        assert error.param is not None


def test_a_long_value_is_shortened_in_the_message() -> None:
    error = bad_field("stop", "x" * 500, "send less")
    assert len(error.message) < 160
    assert "..." in error.message
    assert error.message.endswith("; send less")
