"""The forest grows by whole steps, finds what a request continues, and knows the main lineage."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.tito.fingerprint import Chain
from sidecar.tito.trajectory import (
    Node,
    Trajectory,
    best_leaf,
    ids_to_json,
    main_lineage,
)
from tests.tito.builders import step
from tests.tito.forests import trajectories

SUB = b"sub agent......."


def forest(*steps: tuple[str, str | None] | tuple[str, str | None, dict[str, Any]]) -> Trajectory:
    """A trajectory of `(id, parent, changes)`, committed in that order."""
    trajectory = Trajectory()
    for number, (step_id, parent, *changes) in enumerate(steps):
        trajectory.add(step(step_id, parent, **{"sequence": number, **(changes[0] if changes else {})}))
    return trajectory


def ids(nodes: list[Node]) -> str:
    return " ".join(node.record.step_id for node in nodes)


class TestGrowing:
    def test_steps_link_to_their_parents_and_count_their_tokens(self) -> None:
        trajectory = forest(("a", None), ("b", "a", {"context_ids": [4], "output_ids": [5, 6, 7]}))
        a, b = trajectory
        assert (a.children, b.parent, trajectory.roots) == ([b], a, [a])
        assert (a.token_count, b.token_count, trajectory.token_count) == (5, 9, 9)
        assert b.token_ids().tolist() == [1, 2, 3, 7, 8, 4, 5, 6, 7]
        assert b.token_ids().dtype == np.int32
        assert len(trajectory) == 2
        assert trajectory.get("b") is b
        assert trajectory.get("c") is None

    def test_a_boundary_starts_a_new_segment_but_not_a_new_lineage(self) -> None:
        trajectory = forest(("a", None), ("b", "a", {"segment_reason": "tools_changed"}), ("c", "b"))
        c = trajectory.get("c")
        assert c is not None
        assert ids(c.segment_path()) == "b c"
        assert ids(c.lineage()) == "a b c"
        assert c.token_count == 10
        assert [node.starts_segment for node in trajectory] == [True, True, False]

    def test_a_step_is_added_once(self) -> None:
        trajectory = forest(("a", None))
        with pytest.raises(ValueError, match="step a is in the trajectory already"):
            trajectory.add(step("a"))
        assert len(trajectory) == 1

    def test_a_step_with_an_unknown_parent_changes_nothing(self) -> None:
        trajectory = forest(("a", None))
        with pytest.raises(ValueError, match="continues x, which is unknown"):
            trajectory.add(step("b", "x"))
        assert len(trajectory) == 1
        assert trajectory.get("b") is None
        assert trajectory.token_count == 5

    def test_a_step_that_was_continued_counts_as_delivered(self) -> None:
        trajectory = forest(("a", None, {"delivered": False}), ("b", "a", {"delivered": False}))
        assert [node.delivered for node in trajectory] == [True, False]


class TestIdsJson:
    @given(st.lists(st.integers(0, 2**31 - 1), max_size=20))
    def test_ids_are_written_as_json_without_brackets(self, values: list[int]) -> None:
        assert orjson.loads(b"[" + ids_to_json(np.asarray(values, dtype=np.int32)) + b"]") == values

    @settings(deadline=None)
    @given(trajectories(), st.data())
    def test_the_json_of_any_step_is_its_segments_ids_whoever_asked_before(
        self, trajectory: Trajectory, data: st.DataObject
    ) -> None:
        nodes = list(trajectory)
        for node in data.draw(st.lists(st.sampled_from(nodes), max_size=20)):
            assert orjson.loads(b"[" + b",".join(node.ids_json()) + b"]") == node.token_ids().tolist()

    def test_each_step_keeps_the_json_of_its_own_ids(self) -> None:
        trajectory = forest(("a", None))
        a = trajectory.get("a")
        assert a is not None
        [own] = a.ids_json()
        b = trajectory.add(step("b", "a", context_ids=[4], output_ids=[5]))
        c = trajectory.add(step("c", "a"))
        assert b.ids_json() == [b"1,2,3,7,8", b"4,5"]
        assert c.ids_json() == [b"1,2,3,7,8", b"1,2,3,7,8"]
        assert b.ids_json()[0] is c.ids_json()[0] is own

    def test_a_boundary_takes_nothing_over(self) -> None:
        trajectory = forest(("a", None))
        b = trajectory.add(step("b", "a", segment_reason="tools_changed", context_ids=[4], output_ids=[5]))
        assert b.ids_json() == [b"4,5"]

    def test_a_step_without_ids_leaves_no_run(self) -> None:
        trajectory = forest(("a", None))
        b = trajectory.add(step("b", "a", context_ids=[], output_ids=[]))
        assert b.ids_json() == [b"1,2,3,7,8"]


def chain(lenient: str, exact: str | None = None) -> Chain:
    return Chain(lenient.encode(), (exact or lenient).encode())


def told(lenient: str, exact: str | None = None, **changes: Any) -> dict[str, Any]:
    """A step whose history has these chains."""
    return {"chain": lenient.encode(), "exact_chain": (exact or lenient).encode(), **changes}


class TestMatching:
    def test_the_deepest_history_is_continued(self) -> None:
        trajectory = forest(("a", None, told("h2")), ("b", "a", told("h4")))
        match = trajectory.match(
            [chain("h0"), chain("h1"), chain("h2"), chain("h3"), chain("h4"), chain("h5")], None
        )
        assert match is not None
        assert (match.node.record.step_id, match.depth, match.exact) == ("b", 4, True)

    def test_without_a_common_history_there_is_no_match(self) -> None:
        trajectory = forest(("a", None, told("h2")))
        assert trajectory.match([chain("h0"), chain("other")], None) is None
        assert Trajectory().match([chain("h0")], None) is None

    def test_the_empty_history_is_nobodys(self) -> None:
        assert forest(("a", None, told("h0"))).match([chain("h0")], None) is None

    def test_an_exact_telling_is_preferred_to_a_newer_lenient_one(self) -> None:
        trajectory = forest(("a", None, told("h", "x")), ("b", None, told("h", "y")))
        match = trajectory.match([chain("h0"), chain("h", "x")], None)
        assert match is not None
        assert (match.node.record.step_id, match.exact) == ("a", True)

    def test_of_lenient_tellings_the_last_delivered_one_is_continued(self) -> None:
        trajectory = forest(
            ("a", None, told("h", "x")),
            ("b", None, told("h", "y")),
            ("c", None, told("h", "z", delivered=False)),
        )
        match = trajectory.match([chain("h0"), chain("h", "w")], None)
        assert match is not None
        assert (match.node.record.step_id, match.exact) == ("b", False)

    def test_equal_tools_are_preferred_to_delivery_and_age(self) -> None:
        trajectory = forest(
            ("a", None, told("h", tools_hash=b"t", delivered=False)), ("b", None, told("h", tools_hash=b"u"))
        )
        match = trajectory.match([chain("h0"), chain("h")], b"t")
        assert match is not None
        assert match.node.record.step_id == "a"

    def test_the_newest_of_equals_is_continued(self) -> None:
        trajectory = forest(("a", None, told("h")), ("b", None, told("h")))
        match = trajectory.match([chain("h0"), chain("h")], None)
        assert match is not None
        assert match.node.record.step_id == "b"

    def test_exact_mode_goes_back_to_the_last_exact_history(self) -> None:
        trajectory = forest(("a", None, told("h2")), ("b", "a", told("h4", "x")))
        chains = [chain("h0"), chain("h1"), chain("h2"), chain("h3"), chain("h4")]
        lenient = trajectory.match(chains, None)
        exact = trajectory.match(chains, None, exact_only=True)
        assert lenient is not None
        assert exact is not None
        assert (lenient.node.record.step_id, exact.node.record.step_id) == ("b", "a")

    def test_an_aborted_step_is_never_continued(self) -> None:
        trajectory = forest(("a", None, told("h", state="aborted", delivered=False)))
        assert trajectory.match([chain("h0"), chain("h")], None) is None


class TestMainLineage:
    def test_a_session_without_steps_has_none(self) -> None:
        assert main_lineage(Trajectory()) == []

    def test_it_starts_at_the_first_root_and_runs_to_its_last_step(self) -> None:
        assert ids(main_lineage(forest(("a", None), ("b", "a"), ("c", "b")))) == "a b c"

    def test_boundaries_do_not_end_it(self) -> None:
        trajectory = forest(("a", None), ("b", "a", {"segment_reason": "tools_changed"}), ("c", "b"))
        assert ids(main_lineage(trajectory)) == "a b c"

    def test_the_newest_delivered_branch_is_followed(self) -> None:
        trajectory = forest(("a", None), ("b", "a"), ("c", "a"), ("d", "b"), ("e", "c", {"delivered": False}))
        assert ids(main_lineage(trajectory)) == "a b d"

    def test_aborted_and_superseded_steps_are_passed_over(self) -> None:
        trajectory = forest(
            ("a", None),
            ("b", "a", {"superseded_by": "x"}),
            ("c", "a", {"state": "aborted", "delivered": False}),
        )
        assert ids(main_lineage(trajectory)) == "a"

    def test_without_a_delivered_step_the_newest_one_counts(self) -> None:
        trajectory = forest(("a", None, {"delivered": False}), ("b", "a", {"delivered": False}))
        assert best_leaf(trajectory.roots[0]).record.step_id == "a"  # continued, and so delivered
        lone = forest(("a", None, {"delivered": False}))
        assert ids(main_lineage(lone)) == "a"

    def test_an_aborted_first_root_is_not_the_main_agents(self) -> None:
        trajectory = forest(("a", None, {"state": "aborted", "delivered": False}), ("b", None), ("c", "b"))
        assert ids(main_lineage(trajectory)) == "b c"

    def test_a_session_of_aborted_steps_alone_still_has_one(self) -> None:
        aborted = {"state": "aborted", "delivered": False, "sequence": None}
        assert ids(main_lineage(forest(("a", None, aborted), ("b", None, aborted)))) == "a"

    def test_a_later_root_with_the_same_system_message_continues_it(self) -> None:
        trajectory = forest(("a", None), ("b", "a"), ("c", None), ("d", "c"))
        assert ids(main_lineage(trajectory)) == "a b c d"

    def test_several_compactions_are_followed(self) -> None:
        assert ids(main_lineage(forest(("a", None), ("b", None), ("c", None)))) == "a b c"

    def test_a_sub_agent_with_another_system_message_does_not(self) -> None:
        trajectory = forest(("a", None), ("b", None, {"system_hash": SUB}), ("c", "b"))
        assert ids(main_lineage(trajectory)) == "a"

    def test_a_side_call_that_began_before_the_main_lineage_ended_does_not(self) -> None:
        trajectory = forest(("a", None), ("title", None), ("b", "a"))
        assert ids(main_lineage(trajectory)) == "a b"

    def test_roots_without_a_system_message_tell_nothing(self) -> None:
        bare = {"system_hash": b""}
        assert ids(main_lineage(forest(("a", None, bare), ("b", None, bare)))) == "a"

    def test_an_aborted_root_continues_nothing(self) -> None:
        aborted = {"state": "aborted", "delivered": False}
        assert ids(main_lineage(forest(("a", None), ("b", None, aborted)))) == "a"

    @settings(deadline=None)
    @given(trajectories())
    def test_it_is_made_of_whole_lineages_and_of_steps_of_the_forest(self, trajectory: Trajectory) -> None:
        path = main_lineage(trajectory)
        assert path
        assert path[0].parent is None
        for before, after in pairwise(path):
            assert after.parent in (before, None)
        assert {node.record.system_hash for node in path if node.parent is None} == {path[0].record.system_hash}


class TestConcurrentRoots:
    """`begun` and `sequence` are ticks of one clock: an agent knows the steps that ended before its call began."""

    def test_a_title_call_that_ends_before_the_first_turn_is_not_the_main_agent(self) -> None:
        title = {"begun": 1, "sequence": 2, "system_hash": SUB}
        main = {"begun": 0, "sequence": 3}
        trajectory = forest(("title", None, title), ("a", None, main), ("b", "a", {"begun": 4, "sequence": 5}))
        assert ids(main_lineage(trajectory)) == "a b"

    def test_a_side_call_of_the_same_system_message_that_began_beside_the_last_step_is_no_compaction(self) -> None:
        trajectory = forest(("a", None, {"begun": 0, "sequence": 2}), ("side", None, {"begun": 1, "sequence": 3}))
        assert ids(main_lineage(trajectory)) == "a"
        after = forest(("a", None, {"begun": 0, "sequence": 1}), ("next", None, {"begun": 2, "sequence": 3}))
        assert ids(main_lineage(after)) == "a next"

    def test_aborted_roots_alone_are_ordered_by_their_beginning(self) -> None:
        aborted = {"state": "aborted", "delivered": False}
        trajectory = forest(
            ("b", None, {"begun": 1, "sequence": 2, **aborted}), ("a", None, {"begun": 0, "sequence": 3, **aborted})
        )
        assert ids(main_lineage(trajectory)) == "a"
