"""The stand-in of slime's process, and a thread for a call that has to wait."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.trainer_hooks.rollouts.generators import Stage
from tests.trainer_hooks.rollouts.slime_process import SlimeProcess


@pytest.fixture
def slime() -> Iterator[SlimeProcess]:
    """slime's modules and event loop."""
    with SlimeProcess() as process:
        yield process


@pytest.fixture
def stage(slime: SlimeProcess) -> Stage:
    """Runs that wait."""
    return Stage(slime.loop.loop)


@pytest.fixture
def aside() -> Iterator[ThreadPoolExecutor]:
    """Calls that block while the test goes on."""
    with ThreadPoolExecutor(2) as pool:
        yield pool
