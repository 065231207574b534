"""One sidecar and one engine for all examples of these tests; each example has a session of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.invariants.stage import Stage


@pytest.fixture(scope="package")
def stage(qwen3_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """The running sidecar and its engine."""
    running = Stage(qwen3_dir, tmp_path_factory.mktemp("invariants"))
    yield running
    running.close()
