"""A session with one good turn, which bad calls must not change."""

from __future__ import annotations

from collections.abc import AsyncIterator

import openai
import pytest_asyncio

from tests.fake_sglang import Reply
from tests.support.chat import ask, completion
from tests.support.running import Running

SESSION = "one-good-turn"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def agent(module_sidecar: Running) -> AsyncIterator[openai.AsyncOpenAI]:
    """The official SDK in that session."""
    module_sidecar.engine.replies.append(Reply(text="Hello."))
    completion(await module_sidecar.chat(SESSION, ask()))
    async with module_sidecar.agent(SESSION) as client:
        yield client
