"""I5 durable: `kill -9` at any moment loses no reply that an agent has; sessions go on token-exact afterwards."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given

from tests.invariants.examples import durable_example
from tests.invariants.house import House
from tests.invariants.killing import Fuse, casts, fuses
from tests.invariants.moves import Program
from tests.invariants.profile import DEAR, LONGEST

pytestmark = pytest.mark.timeout(LONGEST)


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    """The loop of engine and agents."""
    with asyncio.Runner() as running:
        yield running


@pytest.fixture(scope="module")
def house(runner: asyncio.Runner, qwen3_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """A sidecar process; each example kills it once and leaves the next one running."""
    standing = House(qwen3_dir, tmp_path_factory.mktemp("durable"))
    runner.run(standing.open())
    yield standing
    runner.run(standing.close())


@DEAR
@given(programs=casts, fuse=fuses)
def test_a_killed_sidecar_has_every_reply_that_left_it(
    runner: asyncio.Runner, house: House, programs: list[Program], fuse: Fuse
) -> None:
    runner.run(durable_example(house, programs, fuse))
