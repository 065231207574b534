"""The stand-in's parse endpoints answer as SGLang 0.5.23 does: shapes, what is lost, and how errors look."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.fake_sglang import FakeSGLang

TOOLS = [{"function": {"name": name, "parameters": {}, "strict": True}} for name in ("a", "b")]


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with FakeSGLang(vocab_size=10) as engine, httpx.AsyncClient(base_url=engine.url) as client:
        yield client


async def parsed(client: httpx.AsyncClient, text: str, tools: Any = TOOLS) -> Any:
    body = {"text": text, "tools": tools, "tool_call_parser": "okapi"}
    response = await client.post("/parse_function_call", json=body)
    assert response.status_code == 200, response.text
    return response.json()


async def test_calls_carry_the_place_of_their_tool_and_text_behind_them_is_gone(client: httpx.AsyncClient) -> None:
    assert await parsed(client, 'Hi.<<b {"x":"ü"}>><<c {}>><<b {}>> bye') == {
        "normal_text": "Hi.",
        "calls": [
            {"tool_index": 1, "name": "b", "parameters": '{"x": "ü"}'},
            {"tool_index": 1, "name": "b", "parameters": "{}"},
        ],
    }


async def test_of_a_malformed_call_nothing_is_left_and_without_tools_nothing_is_looked_for(
    client: httpx.AsyncClient,
) -> None:
    assert await parsed(client, "Hi.<<b {oops>>") == {"normal_text": "", "calls": []}
    assert await parsed(client, "Hi.<<b {}>>", []) == {"normal_text": "Hi.<<b {}>>", "calls": []}


async def test_reasoning_needs_its_opener(client: httpx.AsyncClient) -> None:
    for text, found in (
        ("<think>a</think>b", ("a", "b")),
        ("<think>a", ("a", "")),
        ("a</think>b", ("", "a</think>b")),
    ):
        response = await client.post("/separate_reasoning", json={"text": text, "reasoning_parser": "okapi"})
        assert response.json() == {"reasoning_text": found[0], "text": found[1]}


async def test_an_unknown_name_is_a_500_in_plain_text_and_a_wrong_body_a_400(client: httpx.AsyncClient) -> None:
    for path, body in (
        ("/parse_function_call", {"text": "x", "tool_call_parser": "nope"}),
        ("/parse_function_call", {"text": "x"}),
        ("/separate_reasoning", {"text": "x", "reasoning_parser": "nope"}),
    ):
        response = await client.post(path, json=body)
        assert (response.status_code, response.text) == (500, "Internal Server Error")
    for path, body in (
        ("/parse_function_call", {"tool_call_parser": "okapi"}),
        ("/parse_function_call", {"text": "x", "tools": [{"function": {"name": 1}}]}),
        ("/separate_reasoning", {"text": "x"}),
    ):
        response = await client.post(path, json=body)
        assert (response.status_code, response.json()["object"]) == (400, "error")
