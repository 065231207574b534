"""Agents: a plain HTTP client and the official SDK, each following one reply; direct or through the interceptor.

Both write down what they get as it comes, since bytes that an agent has seen are binding. One event loop; a call
is cancelled to hang up.
"""

import json
from typing import Any

import httpx
import openai

from tests.state_machine.calls import Follower
from tests.support.intercepted import HOST, behind_proxy
from tests.support.running import Running

RETRY = "x-stainless-retry-count"


class Agents:
    """The clients of one sidecar. `intercepted`: they know OpenAI's address and a proxy, and nothing else."""

    def __init__(self, running: Running, intercepted: bool) -> None:
        self._base = HOST if intercepted else running.sidecar.gateway.url
        self._http = behind_proxy(running, timeout=None) if intercepted else _plain()
        self._sdk = openai.AsyncOpenAI(
            api_key="sk-x", base_url=f"{self._base}/v1", max_retries=0, http_client=self._http, timeout=None
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def follow(self, follower: Follower) -> None:
        """Make the call and read its answer into `follower`."""
        headers = {"x-session-id": follower.call.session} | ({RETRY: "1"} if follower.marked else {})
        try:
            await (self._by_sdk if follower.call.shape.sdk else self._by_hand)(follower, headers)
        except (httpx.TransportError, openai.APIConnectionError):
            follower.broken = True

    async def _by_hand(self, follower: Follower, headers: dict[str, str]) -> None:
        url = f"{self._base}/v1/chat/completions"
        body = json.dumps(follower.call.body).encode()
        sent = {**headers, "content-type": "application/json"}
        async with self._http.stream("POST", url, content=body, headers=sent) as response:
            _begun(follower, response.status_code, response.headers)
            if not response.headers.get("content-type", "").startswith("text/event-stream"):
                answer = json.loads(await response.aread())
                _failed(follower, answer["error"]) if "error" in answer else _whole(follower, answer)
                return
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    event = json.loads(line.removeprefix("data: "))
                    _failed(follower, event["error"]) if "error" in event else _part(follower, event)
        follower.broken = not follower.complete and follower.code is None

    async def _by_sdk(self, follower: Follower, headers: dict[str, str]) -> None:
        create: Any = self._sdk.chat.completions.with_raw_response.create
        try:
            raw = await create(**follower.call.body, extra_headers=headers)
            _begun(follower, raw.status_code, raw.headers)
            if not follower.call.shape.stream:
                _whole(follower, raw.parse().model_dump())
                return
            async for chunk in raw.parse():
                _part(follower, chunk.model_dump())
        except openai.APIConnectionError:
            raise
        except openai.APIStatusError as error:
            _begun(follower, error.status_code, error.response.headers)
            _failed(follower, error.body)
        except openai.APIError as error:  # an event inside a stream
            _failed(follower, error.body)
        else:
            follower.broken = not follower.complete


def _plain() -> httpx.AsyncClient:
    return httpx.AsyncClient(timeout=None, verify=False)  # no TLS here, and reading the public roots takes long


def _begun(follower: Follower, status: int, headers: Any) -> None:
    follower.status = status
    follower.step_id = headers.get("x-step-id", follower.step_id)


def _failed(follower: Follower, error: Any) -> None:
    follower.code = (
        str(error.get("code") or error.get("message") or error) if isinstance(error, dict) else str(error)
    )


def _whole(follower: Follower, answer: dict[str, Any]) -> None:
    [choice] = answer["choices"]
    follower.text, follower.finish_reason = choice["message"]["content"] or "", choice["finish_reason"]


def _part(follower: Follower, event: dict[str, Any]) -> None:
    for choice in event["choices"]:
        assert follower.finish_reason is None, f"{follower}: an event after the last one"
        follower.text += choice["delta"].get("content") or ""
        follower.finish_reason = choice["finish_reason"] or follower.finish_reason
