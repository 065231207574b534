"""The engine under test: a stand-in or the real SGLang, behind a tap, with a trainer's hand on its controls.

Promise: tests that use nothing but a `Subject` cannot tell which it is, so whatever they prove of the sidecar in
front of the real engine also binds the stand-in. Concurrency: one event loop per test; a real server outlives tests
and is set back between them (`reset`).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.engine.tap import Tap
from tests.fake_sglang import FakeSGLang, RecordedRequest, Reply
from tests.support.running import engine_for
from tests.support.waiting import until

TOLERANCE = 1e-3
"""Largest difference of one logprob, sampled one by one or computed in a whole prompt: sums in another order.
Measured with float32: 2e-5 (with bf16: 0.05 and 0.18, which is why the server computes in float32)."""
CONTEXT = 4096
RUNNING = 8
"""Requests that run at a time; others wait in the scheduler's queue."""


@dataclass(frozen=True)
class Variant:
    """How a server is started. `keys` are its `--api-key` and `--admin-api-key`."""

    model: str
    incremental: bool
    keys: tuple[str, str] | None

    @property
    def arguments(self) -> list[str]:
        """SGLang's command line."""
        keys = ["--api-key", self.keys[0], "--admin-api-key", self.keys[1]] if self.keys else []
        return [*(["--incremental-streaming-output"] if self.incremental else []), *keys]


VARIANTS = {
    "cumulative": Variant("qwen3", incremental=False, keys=None),
    "incremental-keys": Variant("qwen3", incremental=True, keys=("user-key", "admin-key")),
    "smollm2": Variant("smollm2", incremental=True, keys=None),
}
"""All tests run on the first two; SmolLM2, whose every token costs 300 times as much, has a file of its own."""


def parameters(*names: str) -> list[Any]:
    """Parameters of the fixture `served`: a stand-in and a real server of each named variant."""
    stand_ins = [pytest.param((name, False), id=f"stand-in-{name}") for name in names]
    real = [pytest.param((name, True), id=f"sglang-{name}") for name in names]
    return [*stand_ins, *real]


@dataclass
class Subject:
    """`first` is what the engine serves at the start, as version "1"; `second` is what an update may load."""

    variant: Variant
    real: bool
    tap: Tap
    client: httpx.AsyncClient
    admin: httpx.AsyncClient
    first: str
    second: str

    @property
    def url(self) -> str:
        """Where the sidecar finds it."""
        return self.tap.url

    @property
    def settings(self) -> dict[str, Any]:
        """What a sidecar has to be told of this engine."""
        if self.variant.keys is None:
            return {}
        return {"engine_api_key": self.variant.keys[0], "engine_admin_key": self.variant.keys[1]}

    # The trainer's hand.

    async def post(self, path: str, body: dict[str, Any], status: int = 200) -> httpx.Response:
        """A control call straight to the engine; its status has to be `status`."""
        response = await self.admin.post(path, json=body)
        assert response.status_code == status, response.text
        return response

    async def pause(self, mode: str) -> None:
        """The engine's own pause: `abort`, `retract` or `in_place`."""
        await self.post("/pause_generation", {"mode": mode})

    async def resume(self) -> None:
        """End the engine's own pause."""
        await self.post("/continue_generation", {})

    async def update_weights(self, path: str, version: str, **fields: Any) -> None:
        """Load other weights, under a new version."""
        reply = await self.post(
            "/update_weights_from_disk", {"model_path": path, "weight_version": version, **fields}
        )
        assert reply.json()["success"], reply.text

    async def version(self) -> str:
        """The version that the engine names."""
        return str((await self.client.get("/model_info")).json()["weight_version"])

    async def idle(self) -> bool:
        """Nothing runs or waits in the engine: only then its cache can be flushed."""
        return (await self.admin.post("/flush_cache")).status_code == 200

    async def until_idle(self) -> None:
        """Until nothing runs in the engine."""
        await until(self.idle, "an idle engine")

    # Asking it directly.

    async def generate(self, input_ids: Sequence[int], **fields: Any) -> dict[str, Any]:
        """A direct `/generate`, not through the tap."""
        body = {"input_ids": list(input_ids), "return_logprob": True, **fields}
        response = await self.client.post("/generate", json=body)
        assert response.status_code == 200, response.text
        reply: dict[str, Any] = response.json()
        return reply

    async def score(self, ids: Sequence[int]) -> list[float]:
        """Logprob of every id but the first, given those before it, by the weights that are loaded."""
        reply = await self.generate(ids, sampling_params={"max_new_tokens": 0}, logprob_start_len=0)
        entries = reply["meta_info"]["input_token_logprobs"]
        assert [entry[1] for entry in entries] == list(ids), "the engine read other ids"
        await self.until_idle()  # its scheduler is a little behind its replies, and an update right now would fail
        return [entry[0] for entry in entries[1:]]

    async def reset(self) -> None:
        """As a test found it: not paused, idle, the first weights as version "1"."""
        await self.resume()
        await self.post("/abort_request", {"abort_all": True})
        await self.until_idle()
        reply = await self.generate([1], sampling_params={"max_new_tokens": 1})
        if await self.version() != "1" or reply["meta_info"]["weight_version"] != "1":
            await self.until_idle()
            await self.update_weights(self.first, "1")


def stand_in(variant: Variant, tokenizer: Path) -> FakeSGLang:
    """A stand-in started as the real server is; its replies are as long as one lets them be, and take time."""
    user, admin = variant.keys or (None, None)
    engine = engine_for(
        tokenizer,
        incremental=variant.incremental,
        api_key=user,
        admin_key=admin,
        weight_version="1",
        context_length=CONTEXT,
        model_path=str(tokenizer),
        abort_overrun=1,
        max_running_requests=RUNNING,
    )

    def long_reply(request: RecordedRequest) -> Reply:
        rng = random.Random(str(request.input_ids))
        ids = [engine.vocabulary.random_id(rng) for _ in range(CONTEXT)]
        return Reply(ids=ids, finish="length", delay=0.002)

    engine.script = long_reply
    return engine
