"""What tests that speak to the data plane over HTTP share: bodies, event streams, held replies, refusals."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import openai
from openai.types.chat import ChatCompletion

from tests.fake_sglang import FakeSGLang, RecordedRequest, Reply
from tests.support.running import Running
from tests.support.waiting import LIVENESS, until


def user(text: str) -> dict[str, Any]:
    """A user message."""
    return {"role": "user", "content": text}


def ask(text: str = "Hi", **fields: Any) -> dict[str, Any]:
    """A request body with one user message; `fields` are added or replace."""
    return {"model": "m", "messages": [user(text)], **fields}


def follow(body: dict[str, Any], answer: dict[str, Any], text: str) -> dict[str, Any]:
    """The body of the next turn: the history with the answer, and a user message."""
    return {**body, "messages": [*body["messages"], answer, user(text)]}


def tool(name: str = "look") -> dict[str, Any]:
    """A function tool."""
    return {"type": "function", "function": {"name": name, "description": "d", "parameters": {"type": "object"}}}


def call_text(name: str = "look", **arguments: Any) -> str:
    """A tool call as Qwen3 writes it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@dataclass
class Held:
    """A reply that the engine stops at after `after` ids until `open` is set."""

    text: str = "one two three four five six seven eight nine ten"
    after: int = 3
    open: asyncio.Event = field(default_factory=asyncio.Event)

    def reply(self, **options: Any) -> Reply:
        """The script."""
        return Reply(text=self.text, hold=self.open, hold_after=self.after, chunk_tokens=1, **options)

    async def reached(self, engine: FakeSGLang, index: int = -1) -> RecordedRequest:
        """Until the request at `index` has generated up to the hold; returns it."""
        await engine.wait_until(lambda: len(engine.requests) > max(index, 0))
        request = engine.requests[index]
        await engine.wait_tokens(request, self.after)
        return request


def payloads(text: str) -> list[Any]:
    """The data of an event stream in order: JSON as objects, `[DONE]` as it is; comments are left out."""
    found = []
    for event in text.split("\n\n"):
        if event.startswith("data: "):
            data = event.removeprefix("data: ")
            found.append(data if data == "[DONE]" else json.loads(data))
    return found


def joined(chunks: list[Any], name: str = "content", index: int = 0) -> str:
    """A delta's field over all chunks of one choice."""
    return "".join(
        choice["delta"].get(name) or ""
        for chunk in chunks
        if isinstance(chunk, dict)
        for choice in chunk.get("choices", ())
        if choice["index"] == index
    )


@asynccontextmanager
async def streaming(running: Running, session: str, body: dict[str, Any], **headers: str) -> AsyncIterator[Stream]:
    """An open event stream of a session's call; underscores in header names are dashes."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    url = f"/sessions/{session}/v1/chat/completions"
    async with running.data.stream("POST", url, json={**body, "stream": True}, headers=named) as response:
        yield Stream(response)


class Stream:
    """Reads events one by one."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self._events = self._read()

    async def _read(self) -> AsyncIterator[str]:
        buffer = ""
        async for text in self.response.aiter_text():
            buffer += text
            while "\n\n" in buffer:
                event, buffer = buffer.split("\n\n", 1)
                yield event

    async def event(self) -> str:
        """The next event or comment as it stands. Raises `StopAsyncIteration` at the end."""
        async with asyncio.timeout(LIVENESS):
            return await anext(self._events)

    async def chunk(self) -> dict[str, Any]:
        """The next event's JSON; comments are passed over."""
        while True:
            event = await self.event()
            if event.startswith("data: {"):
                parsed: dict[str, Any] = json.loads(event.removeprefix("data: "))
                return parsed

    async def until_text(self) -> str:
        """The first text of the reply."""
        while True:
            chunk = await self.chunk()
            for choice in chunk["choices"]:
                if choice["delta"].get("content"):
                    return str(choice["delta"]["content"])

    async def rest(self) -> list[Any]:
        """All that comes, `[DONE]` included."""
        async with asyncio.timeout(LIVENESS):
            return payloads("".join([event + "\n\n" async for event in self._events]))


def completion(response: httpx.Response) -> ChatCompletion:
    """A successful reply, read by the SDK's own model, every field that it requires checked."""
    assert response.status_code == 200, response.text
    return ChatCompletion.model_validate(response.json(), strict=True)


def text_of(response: httpx.Response) -> str:
    """The text of a reply, streamed or not."""
    assert response.status_code == 200, response.text
    if response.headers["content-type"].startswith("text/event-stream"):
        return joined(payloads(response.text))
    return completion(response).choices[0].message.content or ""


async def turns(running: Running, session: str, *texts: str) -> dict[str, Any]:
    """A conversation with one turn per text; the body of the next turn."""
    body = ask()
    for text in texts:
        running.engine.replies.append(Reply(text=text))
        answer = completion(await running.chat(session, body)).choices[0].message.model_dump(exclude_none=True)
        body = follow(body, answer, "And then?")
    return body


async def refusal(
    client: openai.AsyncOpenAI, body: Any = None, *, content: bytes | None = None, **headers: str
) -> openai.APIStatusError:
    """The exception that the official SDK raises for a body it would not make itself."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    sent: dict[str, Any] = {"content": content} if content is not None else {"body": body}
    try:
        got = await client.post("/chat/completions", cast_to=ChatCompletion, options={"headers": named}, **sent)
    except openai.APIStatusError as error:
        return error
    raise AssertionError(f"not refused: {got}")


async def until_states(running: Running, session: str, *states: str) -> dict[str, Any]:
    """Until a session's steps have these states; the view."""

    async def reached() -> bool:
        response = await running.control.get(f"/session/{session}")
        found = response.json()["steps"] if response.status_code == 200 else []
        return [step["state"] for step in found] == list(states)

    await until(reached, f"steps of {session} in states {states}")
    return await running.view(session)
