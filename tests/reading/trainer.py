"""What a trainer does, for the tests of this folder."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.fake_sglang import Reply
from tests.support.chat import ask, completion, follow
from tests.support.running import Running
from trainer_hooks.client import AsyncControlClient


async def conversation(running: Running, session: str, *texts: str, **fields: Any) -> None:
    """A finalized session with one turn per text."""
    await running.open(session, **fields)
    body = ask()
    for text in texts:
        running.engine.replies.append(Reply(text=text))
        answer = completion(await running.chat(session, body)).choices[0].message.model_dump(exclude_none=True)
        body = follow(body, answer, "And then?")
    await running.finalize(session, reward=1.0)


@asynccontextmanager
async def client_of(running: Running) -> AsyncIterator[AsyncControlClient]:
    async with AsyncControlClient(running.sidecar.control.url, running.sidecar.control_token) as client:
        yield client


async def raw(running: Running, body: dict[str, Any]) -> bytes:
    response = await running.control.post("/trajectory/read", json=body)
    assert response.status_code == 200, response.text
    return response.content
