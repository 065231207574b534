"""`POST /parse_function_call` and `POST /separate_reasoning`: the server's own parsers, asked about a whole text.

Promise: bodies, replies and errors as SGLang 0.5.23 has them (its source, and its parsers run alone): a body that
does not fit is a 400 of FastAPI's validation, a name that it does not know an exception that nobody catches, so a
500 in plain text. What the parsers make of a text is scripted; the ones given here read a format that no model has,
with SGLang's habits: a malformed call leaves nothing of its text, text behind the calls is gone, a call to an
unknown tool is dropped, and `tool_index` is the tool's place among the tools. Concurrency: one event loop.
"""

import json
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.fake_sglang.faults import DropConnection, Fault, HtmlBody, HttpError, SlowStart
from tests.fake_sglang.wire import RefusalError

Tools = Sequence[Mapping[str, Any]]
ToolParser = Callable[[str, Tools], tuple[str, list[dict[str, Any]]]]
ReasoningParser = Callable[[str], tuple[str, str]]

_CALL = re.compile(r"<<(\w+) (.*?)>>", re.DOTALL)


def okapi_calls(text: str, tools: Tools) -> tuple[str, list[dict[str, Any]]]:
    """Calls written as `<<name {...}>>`: the text before them, and what SGLang's `ToolCallItem` has of each."""
    if "<<" not in text:
        return text, []
    names = [tool["function"]["name"] for tool in tools]
    calls = []
    for name, arguments in _CALL.findall(text):
        try:
            parameters = json.dumps(json.loads(arguments), ensure_ascii=False)
        except ValueError:
            return "", []
        if name in names:
            calls.append({"tool_index": names.index(name), "name": name, "parameters": parameters})
    return text.split("<<", 1)[0], calls


def okapi_reasoning(text: str) -> tuple[str, str]:
    """Reasoning between `<think>` and `</think>`, as SGLang's base class reads it: it has to see the opener."""
    if "<think>" not in text:
        return "", text
    reasoning, _, rest = text.removeprefix("<think>").partition("</think>")
    return reasoning, rest


@dataclass
class Parsing:
    """The parsers by name, and faults for the next calls to either endpoint: `HttpError` (whose body may be any
    JSON, with status 200 too), `HtmlBody`, `SlowStart` and `DropConnection`."""

    tool_parsers: dict[str, ToolParser] = field(default_factory=lambda: {"okapi": okapi_calls})
    reasoning_parsers: dict[str, ReasoningParser] = field(default_factory=lambda: {"okapi": okapi_reasoning})
    faults: deque[Fault] = field(default_factory=deque)

    async def parse_function_call(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        """`{text, tools?, tool_call_parser}` -> `{normal_text, calls: [{tool_index, name, parameters}]}`."""
        tools = body.get("tools", [])
        _check(body, "text", str)
        for tool in tools:
            _check_tool(tool)
        failed = await self._fault(request)
        if failed is not None:
            return failed
        parser = self.tool_parsers.get(body.get("tool_call_parser") or "")
        if parser is None:
            return _uncaught()
        # without tools SGLang looks for no calls
        text, calls = parser(body["text"], tools) if tools else (body["text"], [])
        return web.json_response({"normal_text": text, "calls": calls})

    async def separate_reasoning(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        """`{text, reasoning_parser}` -> `{reasoning_text, text}`."""
        _check(body, "text", str)
        _check(body, "reasoning_parser", str)
        failed = await self._fault(request)
        if failed is not None:
            return failed
        parser = self.reasoning_parsers.get(body["reasoning_parser"])
        if parser is None:
            return _uncaught()
        reasoning, text = parser(body["text"])
        return web.json_response({"reasoning_text": reasoning, "text": text})

    async def _fault(self, request: web.Request) -> web.StreamResponse | None:
        fault = self.faults.popleft() if self.faults else None
        if isinstance(fault, SlowStart) and fault.until is not None:
            await fault.until.wait()
        elif isinstance(fault, HttpError):
            return web.json_response(fault.body, status=fault.status)
        elif isinstance(fault, HtmlBody):
            return web.Response(status=fault.status, text=fault.html, content_type="text/html")
        elif isinstance(fault, DropConnection) and request.transport is not None:
            request.transport.abort()
            return web.Response()
        return None


def _uncaught() -> web.Response:
    return web.Response(status=500, text="Internal Server Error")


def _check(body: Mapping[str, Any], name: str, kind: type) -> None:
    if not isinstance(body.get(name), kind):
        raise RefusalError.validation(f"1 validation error:\n  {name}: got {body.get(name)!r}")


def _check_tool(tool: Any) -> None:
    """A tool here has `type` and a `function` of `name`, `description` and `parameters`, each of which may be
    missing or null; other fields are ignored."""
    if not isinstance(tool, dict) or not isinstance(tool.get("function"), dict):
        raise RefusalError.validation(f"1 validation error:\n  tools: got {tool!r}")
    for name, kind in (("name", str), ("description", str), ("parameters", dict)):
        if tool["function"].get(name) is not None:
            _check(tool["function"], name, kind)
