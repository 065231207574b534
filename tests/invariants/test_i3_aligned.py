"""I3 aligned, with I4 once: every token of a segment carries what the engine sent, and trains in one place."""

import pytest
from hypothesis import given

from tests.invariants.examples import aligned_example
from tests.invariants.moves import Program, programs
from tests.invariants.profile import LONGEST, PROPERTY
from tests.invariants.stage import Stage

pytestmark = pytest.mark.timeout(LONGEST)


@PROPERTY
@given(program=programs())
def test_segments_carry_what_the_engine_sent_and_nothing_else(stage: Stage, program: Program) -> None:
    stage.play(lambda world: aligned_example(world, program))
