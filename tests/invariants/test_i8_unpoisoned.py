"""I8 unpoisoned: whatever goes wrong with a call, its session is as it was, and goes on as if nothing had been."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.invariants.examples import unpoisoned_example
from tests.invariants.failures import BROKEN, DOWN, REFUSED, Failure, failures
from tests.invariants.moves import Ask, Program, Quirks, Turn, programs
from tests.invariants.policy import Call, Sample
from tests.invariants.profile import LONGEST, PROPERTY
from tests.invariants.stage import Stage

pytestmark = pytest.mark.timeout(LONGEST)


@PROPERTY
@given(program=programs(6), wrong=st.lists(failures, min_size=2, max_size=5).map(tuple))
def test_a_call_that_fails_leaves_its_session_as_it_was(
    stage: Stage, program: Program, wrong: tuple[Failure, ...]
) -> None:
    stage.play(lambda world: unpoisoned_example(world, program, wrong))


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("kind", [*REFUSED, *BROKEN, DOWN])
def test_each_kind_of_failure_is_told_and_forgotten(stage: Stage, kind: str, stream: bool) -> None:
    calling = Sample("I look.", calls=(Call("look", '{"at": 1}'),))
    old = Quirks(version_spans=False)  # fewer numbers in a reply, so fewer that could contradict each other
    program = Program("Be brief.", True, (Turn(Ask(sample=calling)), Turn(Ask()), Turn(Ask())), quirks=old)
    wrong: Any = Failure(kind, Ask(sample=Sample("never heard"), stream=stream), retried=True)
    stage.play(lambda world: unpoisoned_example(world, program, (wrong, wrong)))
