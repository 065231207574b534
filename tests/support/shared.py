"""One sidecar per test module, for tests that use sessions of their own and so cannot disturb each other.

A module that uses `shared` runs in one event loop (`pytestmark = pytest.mark.asyncio(loop_scope="module")`) and may
name `SETTINGS` of its sidecar and `ENGINE` options of its engine. Import both fixtures into a `conftest.py`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.support.running import Running, engine_for, running_sidecar


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def module_sidecar(
    request: pytest.FixtureRequest, qwen3_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Running]:
    """The module's sidecar and engine."""
    settings = getattr(request.module, "SETTINGS", {})
    options = getattr(request.module, "ENGINE", {})
    async with (
        engine_for(qwen3_dir, **options) as engine,
        running_sidecar(engine, tmp_path_factory.mktemp("shared") / "state", **settings) as running,
    ):
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def shared(module_sidecar: Running) -> Running:
    """The module's sidecar; its engine has forgotten what the test before asked and scripted."""
    engine = module_sidecar.engine
    try:
        await engine.wait_idle(1)
    except TimeoutError:  # a test that failed left a reply at its hold, which a new process does not know
        await engine.down()
        await engine.up()
        await engine.wait_idle()
    engine.reset()
    return module_sidecar
