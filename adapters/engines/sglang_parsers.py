"""SGLang's parse endpoints: a parser's name and a text in, what that parser makes of it out. Pure.

`POST /parse_function_call` and `POST /separate_reasoning` run in the server's HTTP process, so they answer while
generation is paused. Both are there from 0.5.9 to 0.5.23, on servers only: routers have neither. A name that the
server does not know is a 500 without words.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from adapters.engines.base import ContractError
from adapters.models.engine_parser import Answer, EngineParser, Question
from adapters.models.formats.base import Call

_TOOL = {"type": "function", "function": {"name": "probe", "description": "", "parameters": {"type": "object"}}}


def endpoint_of(parser: EngineParser) -> str:
    """The path at which the parser is asked."""
    return "/parse_function_call" if parser.reads == "calls" else "/separate_reasoning"


def parse_body(question: Question) -> dict[str, Any]:
    """The JSON body. Of a tool only the fields that SGLang reads are sent."""
    if question.parser.reads == "reasoning":
        return {"text": question.text, "reasoning_parser": question.parser.name}
    tools = [{"type": "function", "function": _function(tool["function"])} for tool in question.tools]
    return {"text": question.text, "tools": tools, "tool_call_parser": question.parser.name}


def _function(function: Mapping[str, Any]) -> dict[str, Any]:
    return {name: function[name] for name in ("name", "description", "parameters") if name in function}


def probe(parser: EngineParser) -> Question:
    """A harmless question whose answer shows that the parser can be asked. With a tool, since some of SGLang's
    parsers fail here only then (`glm47`, `beam` and `iquest_q1` of 0.5.23: a tool has fewer fields here than in
    chat)."""
    return Question(parser, "Hello.", (_TOOL,))


def read_answer(question: Question, reply: Any) -> Answer:
    """The answer in a 200's JSON. Raises `ContractError` if it is none: then nothing of it may be used.

    `tool_index` is left alone: for most parsers it is the tool's place among the tools, not the call's."""
    if question.parser.reads == "reasoning":
        return Answer(_text(reply, "text"), reasoning=_text(reply, "reasoning_text"))
    found = reply.get("calls") if isinstance(reply, dict) else None
    if not isinstance(found, list):
        raise ContractError(f"the engine's parser answers without a list of calls: {_shown(reply)}")
    return Answer(_text(reply, "normal_text"), calls=tuple(map(_call, found)))


def _text(reply: Any, name: str) -> str:
    value = reply.get(name, "") if isinstance(reply, dict) else None
    if value is None and isinstance(reply, dict):
        return ""  # a parser that found no such part
    if not isinstance(value, str) or name not in reply:
        raise ContractError(f"the engine's parser answers without the text {name!r}: {_shown(reply)}")
    return value


def _call(found: Any) -> Call:
    name, arguments = (found.get("name"), found.get("parameters")) if isinstance(found, dict) else (None, None)
    if not isinstance(name, str) or not name or not isinstance(arguments, str):
        raise ContractError(f"the engine's parser answers with a call that is none: {_shown(found)}")
    try:
        parsed = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        parsed = None
    if not isinstance(parsed, dict):
        raise ContractError(
            f"the engine's parser gives {name!r} arguments that are no JSON object: {arguments[:200]}"
        )
    return Call(name, arguments)


def _shown(value: Any) -> str:
    return repr(value)[:200]
