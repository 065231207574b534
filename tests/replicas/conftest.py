"""The store that a test's replicas share, and the replicas that the tests of one module share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.replicas.pair import Pair, pair
from tests.support.postgres import postgres, postgres_url
from tests.support.running import engine_for

__all__ = ["postgres", "postgres_url"]


@pytest.fixture
def store_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'shared.db'}"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def module_pair(
    request: pytest.FixtureRequest, qwen3_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Pair]:
    """Two replicas with the module's `SETTINGS`."""
    state = tmp_path_factory.mktemp("pair")
    settings = getattr(request.module, "SETTINGS", {})
    async with (
        engine_for(qwen3_dir) as engine,
        pair(engine, state, f"sqlite:///{state / 'shared.db'}", **settings) as replicas,
    ):
        yield Pair(replicas, engine)


@pytest_asyncio.fixture(loop_scope="module")
async def both(module_pair: Pair) -> Pair:
    """The module's replicas; their engine has forgotten what the test before asked and scripted."""
    await module_pair.engine.wait_idle()
    module_pair.engine.reset()
    return module_pair
