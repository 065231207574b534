"""I5 under load: a sidecar that is killed again and again at random moments loses nothing that an agent has, and
every conversation stays one segment, token-exact. `TITO_KILLS=200` is the long form."""

import asyncio
import os
import random
import time
from pathlib import Path

import pytest

from tests.recovery.endurance import endure
from tests.recovery.mortal import Mortal

KILLS = int(os.environ.get("TITO_KILLS", "20"))
AGENTS = 6
_ROUNDS = 5
"""Deaths that one cast of agents lives through before its sessions are finalized and checked."""


@pytest.mark.timeout(60 + 20 * KILLS)
def test_a_sidecar_that_is_killed_again_and_again_loses_nothing(
    qwen3_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = int(os.environ.get("TITO_KILLS_SEED", "0")) or random.randrange(1, 2**32)
    with capsys.disabled():
        print(f" TITO_KILLS_SEED={seed} ", end="", flush=True)
    asyncio.run(_kill(qwen3_dir, tmp_path, random.Random(seed), capsys))


async def _kill(model_dir: Path, state_dir: Path, rng: random.Random, capsys: pytest.CaptureFixture[str]) -> None:
    house = Mortal(model_dir, state_dir, drain_seconds=0.05)
    await house.open()
    totals = dict.fromkeys(("turns", "hung up", "repeats", "resumed", "polite", "false starts"), 0)
    began = time.monotonic()
    try:
        left = KILLS
        while left > 0:
            rounds = min(_ROUNDS, left)
            cast, reaper = await endure(house, rng, AGENTS, rounds)
            left -= rounds
            for agent in cast:
                totals["turns"] += agent.turns
                totals["hung up"] += agent.hung_up
                totals["repeats"] += agent.repeats
                totals["resumed"] += agent.resumed
            totals["polite"] += reaper.polite
            totals["false starts"] += reaper.false_starts
    finally:
        await house.close()
    with capsys.disabled():
        print(f"{KILLS} deaths, {totals}, {time.monotonic() - began:.0f} s ", end="", flush=True)
