"""Pauses, aborts, restarts, disconnects, retries, lease ends, in any order: nothing is lost, doubled or left."""

from pathlib import Path

import pytest
from hypothesis.stateful import run_state_machine_as_test

from tests.state_machine.machine import Machine
from tests.state_machine.profile import EXAMPLES, machine
from tests.state_machine.world import Place

pytestmark = pytest.mark.timeout(600 + 10 * EXAMPLES)


def test_whatever_happens_no_id_is_lost_and_nothing_is_left(qwen3_dir: Path, tmp_path: Path) -> None:
    place = Place(qwen3_dir, tmp_path)
    run_state_machine_as_test(lambda: Machine(place), settings=machine(80))


def test_the_same_through_the_interceptor(qwen3_dir: Path, tmp_path: Path) -> None:
    place = Place(qwen3_dir, tmp_path, intercepted=True)
    run_state_machine_as_test(lambda: Machine(place), settings=machine(20))
