"""Agents that reach the sidecar through its interceptor: the official SDK, OpenAI's own address, a proxy."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import openai

from tests.support.running import Running

HOST = "https://api.openai.com"
INTERCEPTED = {"intercept": ["regular@0"]}
"""Settings of a sidecar that has an interceptor."""


def behind_proxy(running: Running, **options: Any) -> httpx.AsyncClient:
    """A client that is told the proxy and its certificate, and nothing else."""
    interception = running.sidecar.interception
    assert interception is not None, "start the sidecar with INTERCEPTED"
    [(host, port)] = interception.addresses
    context = ssl.create_default_context(cafile=str(interception.bundle))
    return httpx.AsyncClient(proxy=f"http://{host}:{port}", verify=context, trust_env=False, **options)


@asynccontextmanager
async def agent_by(way: str, running: Running, session: str, **options: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    """The SDK, `direct` with its base URL swapped or `intercepted` with nothing changed but its environment."""
    options.setdefault("max_retries", 0)
    if way == "direct":
        async with running.agent(session, **options) as agent:
            yield agent
        return
    client = behind_proxy(running, timeout=options.get("timeout", 60))
    headers = {"X-Session-Id": session}
    async with openai.AsyncOpenAI(api_key="sk-x", http_client=client, default_headers=headers, **options) as agent:
        yield agent
