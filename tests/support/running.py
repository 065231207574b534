"""A sidecar in the test's own event loop, in front of the stand-in engine, with clients for both planes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import openai
from tokenizers import Tokenizer

from adapters.engines.base import EngineInfo
from sidecar.app import Sidecar
from sidecar.config import load_settings
from sidecar.model_files import read_model
from sidecar.tito.model import Model, build_model
from tests.fake_sglang import FakeSGLang

_MODELS: dict[tuple[object, ...], Model] = {}


class QuickSidecar(Sidecar):
    """Reads and tests each model once per test process: it is immutable, and takes seconds."""

    def _load_model(self, info: EngineInfo) -> Model:
        settings = self.settings
        key = (
            settings.tokenizer or info.tokenizer_path,
            settings.chat_template and settings.chat_template.read_bytes(),
            settings.model_family,
            settings.special_tokens_in_content,
            settings.on_unstable_template,
            settings.token_build_mode,
            settings.tool_call_parser,
            settings.reasoning_parser,
            info.tool_call_parser,
            info.reasoning_parser,
        )
        if key not in _MODELS:
            _MODELS[key] = super()._load_model(info)
        return _MODELS[key]


def model_of(directory: Path) -> Model:
    """The model that `QuickSidecar` serves with default settings, for tests of a part alone."""
    key = (str(directory), None, "auto", "text", "refuse", "tito", "auto", "auto", None, None)
    if key not in _MODELS:
        _MODELS[key] = build_model(read_model(str(directory)))
    return _MODELS[key]


@dataclass
class Running:
    """`control` speaks to the control plane with its token; `data` to the data plane without a key."""

    sidecar: Sidecar
    engine: FakeSGLang
    control: httpx.AsyncClient
    data: httpx.AsyncClient

    async def open(self, session_id: str | None = None, **fields: Any) -> dict[str, Any]:
        """`POST /session/open`; the reply."""
        body = {**fields, **({"session_id": session_id} if session_id is not None else {})}
        return await self.post("/session/open", body)

    async def post(self, path: str, body: dict[str, Any] | None = None, status: int = 200) -> dict[str, Any]:
        """A control-plane POST whose status has to be `status`."""
        response = await self.control.post(path, json=body or {})
        assert response.status_code == status, response.text
        parsed: dict[str, Any] = response.json()
        return parsed

    async def view(self, session_id: str) -> dict[str, Any]:
        """`GET /session/{id}`."""
        response = await self.control.get(f"/session/{session_id}")
        assert response.status_code == 200, response.text
        parsed: dict[str, Any] = response.json()
        return parsed

    async def finalize(self, session_id: str, **fields: Any) -> dict[str, Any]:
        """`POST /session/finalize`."""
        return await self.post("/session/finalize", {"session_id": session_id, **fields})

    async def segments(self, session_id: str) -> list[dict[str, Any]]:
        """The session's segments; it is finalized first if that was not done."""
        await self.finalize(session_id)
        read = await self.post("/trajectory/read", {"session_id": session_id, "include_drained": True})
        data: list[dict[str, Any]] = read["data"]
        return data

    def agent(self, session_id: str, *, max_retries: int = 0, **options: Any) -> openai.AsyncOpenAI:
        """The official SDK with nothing but its `base_url` swapped."""
        base_url = f"{self.sidecar.gateway.url}/sessions/{session_id}/v1"
        return openai.AsyncOpenAI(base_url=base_url, api_key="any", max_retries=max_retries, **options)

    async def chat(self, session_id: str, body: dict[str, Any], **headers: str) -> httpx.Response:
        """A raw chat completion of a session; underscores in header names are dashes."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.data.post(f"/sessions/{session_id}/v1/chat/completions", json=body, headers=named)


def settings_for(engine_url: str, state_dir: Path, **changes: Any) -> dict[str, Any]:
    """Flags of a sidecar on free loopback ports whose waits are short."""
    return {
        "engine_url": engine_url,
        "listen": "127.0.0.1:0",
        "control_listen": "127.0.0.1:0",
        "state_dir": state_dir,
        "drain_seconds": 2,
        **changes,
    }


@asynccontextmanager
async def running_sidecar(engine: FakeSGLang, state_dir: Path, **changes: Any) -> AsyncIterator[Running]:
    """Start a sidecar with its state in `state_dir` (given again: a restart). `changes` are settings."""
    settings = load_settings(settings_for(engine.url, state_dir, **changes))
    async with QuickSidecar(settings) as sidecar:
        token = {"Authorization": f"Bearer {sidecar.control_token}"}
        async with (
            # no TLS here, and reading the public roots takes longer than starting the sidecar
            httpx.AsyncClient(base_url=sidecar.control.url, headers=token, timeout=60, verify=False) as control,
            httpx.AsyncClient(base_url=sidecar.gateway.url, timeout=60, verify=False) as data,
        ):
            yield Running(sidecar, engine, control, data)


@cache
def _tokenizer(directory: Path) -> Tokenizer:
    return Tokenizer.from_file(str(directory / "tokenizer.json"))


def engine_for(directory: Path, **options: Any) -> FakeSGLang:
    """A stand-in engine that serves the model whose tokenizer is in `directory` (Qwen3's or SmolLM2's)."""
    tokenizer = _tokenizer(directory)
    stop = tokenizer.token_to_id("<|im_end|>")
    options.setdefault("vocab_size", tokenizer.get_vocab_size())
    return FakeSGLang(eos_token_ids=(stop,), tokenizer=tokenizer, tokenizer_path=str(directory), **options)
