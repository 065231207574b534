"""I7 independent: calls of one session never wait for each other's generation."""

import pytest
from hypothesis import given

from tests.invariants.independent import Crowd, Held, crowds, independent_example
from tests.invariants.profile import LONGEST, PROPERTY
from tests.invariants.stage import Stage

pytestmark = pytest.mark.timeout(LONGEST)


@PROPERTY
@given(crowd=crowds())
def test_each_call_is_answered_when_its_own_reply_is_complete(stage: Stage, crowd: Crowd) -> None:
    stage.play(lambda world: independent_example(world, crowd))


def test_siblings_children_and_roots_in_the_reverse_of_their_order(stage: Stage) -> None:
    places = ("first turn", "root", "same", "same", "first turn", "same")
    calls = tuple(Held(place, index % 3, index % 2 == 0, False) for index, place in enumerate(places))
    stage.play(lambda world: independent_example(world, Crowd(calls, (5, 4, 3, 2, 1, 0))))
