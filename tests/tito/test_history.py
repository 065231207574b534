"""The history after a step as it is stored: each message in its first telling."""

from __future__ import annotations

from sidecar.tito.fingerprint import digest
from sidecar.tito.history import history_of
from sidecar.tito.trajectory import Trajectory
from tests.tito.builders import assistant, step, user

KEYS = [digest(message.to_json()) for message in (user("a"), user("b"), user("c"))]
REPLIES = [assistant(text).to_json() for text in ("x", "y")]


def test_messages_of_the_lineage_and_its_replies_in_order() -> None:
    trajectory = Trajectory()
    trajectory.add(step("r", sequence=0, message_hashes=KEYS[:2], reply=REPLIES[0], message_count=3))
    node = trajectory.add(step("s", "r", sequence=1, message_hashes=KEYS[2:], reply=REPLIES[1], message_count=5))
    stored = history_of(node)
    assert [one.key for one in stored] == [*KEYS[:2], digest(REPLIES[0]), KEYS[2], digest(REPLIES[1])]
    assert [one.data for one in stored] == [None, None, REPLIES[0], None, REPLIES[1]]
    assert [one.key for one in history_of(node, 1)][:3] == [*KEYS[:2], digest(REPLIES[0])]
    assert len(history_of(node, 1)) == 3


def test_an_aborted_step_ends_with_its_request() -> None:
    trajectory = Trajectory()
    aborted = step("r", message_hashes=KEYS[:1], reply=b"", message_count=1, state="aborted", delivered=False)
    assert [one.key for one in history_of(trajectory.add(aborted))] == KEYS[:1]
