"""OpenAI Chat Completions: wire body to `ChatRequest`. Pure; replies are in `chat_replies.py`."""

from __future__ import annotations

from typing import Any

import orjson

from adapters.protocols import fields
from adapters.protocols.errors import RequestError, bad_field
from adapters.protocols.messages import check_message
from adapters.protocols.request import ChatRequest, Sampling

_BREAKS_EXACTNESS = (
    "input_ids",
    "prompt_token_ids",
    "input_embeds",
    "logprob_start_len",
    "return_logprob",
    "skip_special_tokens",
    "no_stop_trim",
    "ignore_eos",
    "stop_token_ids",
    "stop_regex",
    "regex",
    "ebnf",
    "rid",
)
# fmt: off
_KNOWN = frozenset((
    "model", "messages", "tools", "tool_choice", "stream", "stream_options", "max_tokens",
    "max_completion_tokens", "temperature", "top_p", "top_k", "min_p", "frequency_penalty",
    "presence_penalty", "repetition_penalty", "seed", "stop", "logit_bias", "n", "logprobs", "top_logprobs",
    "response_format", "session_id", "metadata", "chat_template_kwargs", "reasoning_effort", "user", "store",
    "continue_final_message", "add_generation_prompt",
))
# fmt: on


def parse(data: bytes) -> ChatRequest:
    """A request body. Raises `RequestError` (400) that names field, value and remedy."""
    try:
        body = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise RequestError(400, f"the body is not JSON: {error}; send a JSON object") from error
    if not isinstance(body, dict):
        raise RequestError(400, "the body is no JSON object; send an object with model and messages")
    return read_fields(body)


def read_fields(body: dict[str, Any], first: int = 0) -> ChatRequest:
    """A request from a body's fields, of whose messages the `first` were left out. Raises `RequestError` (400)."""
    for name in _BREAKS_EXACTNESS:
        if body.get(name) is not None:
            raise bad_field(name, body[name], "leave it out: it would break token exactness")
    tools, use_tools = _tools(body)
    continues = _continues(body)
    stream = fields.boolean(body, "stream", False)
    return ChatRequest(
        model=fields.text(body, "model") or "",
        messages=_messages(body.get("messages"), continues, first),
        tools=tools,
        use_tools=use_tools,
        stream=stream,
        include_usage=_include_usage(body) and stream,
        max_tokens=_max_tokens(body),
        sampling=_sampling(body),
        n=fields.integer(body, "n", 1, 128) or 1,
        logprobs=_logprobs(body),
        session_id=_session_id(body),
        template_kwargs=_template_kwargs(body),
        continues=continues,
        ignored=tuple(sorted(set(body) - _KNOWN)),
    )


def _include_usage(body: dict[str, Any]) -> bool:
    name = "stream_options.include_usage"
    return fields.boolean({name: fields.mapping(body, "stream_options").get("include_usage")}, name, False)


def _session_id(body: dict[str, Any]) -> str | None:
    """An empty id is no absent one: it is refused later, and never replaced by the process's session."""
    name = "metadata.session_id"
    in_metadata = fields.text({name: fields.mapping(body, "metadata").get("session_id")}, name)
    own = fields.text(body, "session_id")
    return own if own is not None else in_metadata


def _max_tokens(body: dict[str, Any]) -> int | None:
    older, newer = (fields.integer(body, name, 1) for name in ("max_tokens", "max_completion_tokens"))
    return newer if newer is not None else older


def _logprobs(body: dict[str, Any]) -> bool:
    top = fields.integer(body, "top_logprobs", 0, 20)
    if top:
        raise bad_field("top_logprobs", top, "only the sampled token's logprob is given; send 0 or leave it out")
    return fields.boolean(body, "logprobs", False)


def _template_kwargs(body: dict[str, Any]) -> dict[str, Any]:
    kwargs = dict(fields.mapping(body, "chat_template_kwargs"))
    for name in ("messages", "tools", "add_generation_prompt", "strftime_now", "documents"):
        if name in kwargs:
            raise bad_field(f"chat_template_kwargs.{name}", kwargs[name], "leave it out: the sidecar sets it")
    effort = fields.text(body, "reasoning_effort")
    if effort is not None:
        kwargs.setdefault("reasoning_effort", effort)
    return kwargs


def _sampling(body: dict[str, Any]) -> Sampling:
    bias = fields.mapping(body, "logit_bias")
    for token, value in bias.items():
        if not token.isdecimal() or isinstance(value, bool) or not isinstance(value, int | float):
            raise bad_field(f"logit_bias.{token}", value, "send token ids as keys and numbers as values")
    return Sampling(
        temperature=fields.number(body, "temperature", 0, 100),
        top_p=fields.number(body, "top_p", 0, 1),
        top_k=fields.integer(body, "top_k", -1),
        min_p=fields.number(body, "min_p", 0, 1),
        frequency_penalty=fields.number(body, "frequency_penalty", -2, 2),
        presence_penalty=fields.number(body, "presence_penalty", -2, 2),
        repetition_penalty=fields.number(body, "repetition_penalty", 0, 2),
        seed=fields.integer(body, "seed", -(2**63)),
        stop=_stop(body.get("stop")),
        logit_bias=bias or None,
        json_schema=_json_schema(fields.mapping(body, "response_format")),
    )


def _stop(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) and stop for stop in stops):
        raise bad_field("stop", value, "send a string or a list of strings, none of them empty")
    return tuple(stops)


def _json_schema(response_format: dict[str, Any]) -> str | None:
    kind = response_format.get("type", "text")
    if kind == "text":
        return None
    if kind == "json_object":
        return '{"type": "object"}'
    if kind == "json_schema":
        schema = response_format.get("json_schema")
        if isinstance(schema, dict) and isinstance(schema.get("schema"), dict):
            return orjson.dumps(schema["schema"]).decode()
        raise bad_field("response_format.json_schema", schema, "send an object with a schema object")
    raise bad_field("response_format.type", kind, "send text, json_object or json_schema")


def _tools(body: dict[str, Any]) -> tuple[list[dict[str, Any]] | None, bool]:
    tools = body.get("tools")
    if tools is not None and not isinstance(tools, list):
        raise bad_field("tools", tools, "send a list of tools")
    for index, tool in enumerate(tools or ()):
        where = f"tools[{index}]"
        if not isinstance(tool, dict) or tool.get("type") != "function":
            raise bad_field(where, tool, "send tools of type function")
        function = tool.get("function")
        if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
            raise bad_field(f"{where}.function", function, "send an object with a name")
    choice = body.get("tool_choice")
    if choice not in (None, "auto", "none"):
        raise bad_field(
            "tool_choice", choice, "only auto and none are supported for this model family: it has no call grammar"
        )
    return (tools or None), bool(tools) and choice != "none"


def _continues(body: dict[str, Any]) -> bool:
    """Whether the reply goes on with the last message. Clients that ask for it also say that they want no
    generation prompt (vLLM insists on it), which goes without saying."""
    continues = fields.boolean(body, "continue_final_message", False)
    if fields.boolean(body, "add_generation_prompt", not continues) == continues:
        remedy = "leave it out: it would break token exactness"
        raise bad_field("add_generation_prompt", body["add_generation_prompt"], remedy)
    return continues


def _messages(value: Any, continues: bool, first: int) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not value:
        raise bad_field("messages", value, "send a list of at least one message")
    last, where = value[-1], f"messages[{first + len(value) - 1}]"
    check_message(last, where)
    if last["role"] == "assistant" and not continues:
        remedy = "the last message has to come from a user or a tool, unless continue_final_message is true"
        raise bad_field(f"{where}.role", "assistant", remedy)
    if continues and last["role"] != "assistant":
        raise bad_field(
            f"{where}.role", last["role"], "continue_final_message needs an assistant message at the end"
        )
    if continues and last.get("tool_calls"):
        raise bad_field(f"{where}.tool_calls", last["tool_calls"], "only text can be continued; send its result")
    return value
