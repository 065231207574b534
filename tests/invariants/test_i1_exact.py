"""I1 exact, with I2 template: prompts grow, bit for bit, by what was sampled and what the template prints."""

import pytest
from hypothesis import given

from tests.invariants.examples import exact_example
from tests.invariants.moves import Program, programs
from tests.invariants.profile import LONGEST, PROPERTY
from tests.invariants.stage import Stage

pytestmark = pytest.mark.timeout(LONGEST)


@PROPERTY
@given(program=programs())
def test_each_step_begins_with_the_tokens_of_the_step_it_continues(stage: Stage, program: Program) -> None:
    stage.play(lambda world: exact_example(world, program))
