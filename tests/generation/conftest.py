"""Fixtures: the generation controller alone in front of the stand-in engine, in all shapes of its stream."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.generation.driver import Driver, driving
from tests.support.shared import module_sidecar, shared

__all__ = ["any_driver", "driver", "module_sidecar", "shared"]


@pytest.fixture
async def driver(qwen3_dir: Path) -> AsyncIterator[Driver]:
    """A controller in front of an engine with cumulative streams, SGLang's default."""
    async with driving(qwen3_dir) as one:
        yield one


@pytest.fixture(params=["cumulative", "incremental", "incremental, not known", "coalescing"])
async def any_driver(request: pytest.FixtureRequest, qwen3_dir: Path) -> AsyncIterator[Driver]:
    """The same for every shape of stream."""
    async with driving(qwen3_dir, incremental=request.param.startswith("incremental")) as one:
        one.coalesce = request.param == "coalescing"
        if request.param == "incremental":
            one.controller.incremental = True
        yield one
