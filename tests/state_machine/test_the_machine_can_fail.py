"""The state machine is no decoration: a sidecar that loses, doubles or leaves something is caught by it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis.stateful import run_state_machine_as_test

from sidecar.generation.active import ActiveCalls
from sidecar.generation.controller import Controller
from sidecar.generation.gate import Gate, Pause
from sidecar.generation.generation import Generation
from sidecar.generation.pauses import Pauses
from sidecar.sessions.admission import Admission
from sidecar.sessions.step_run import StepReader, StepRun
from tests.state_machine import settling
from tests.state_machine.calls import Shape
from tests.state_machine.machine import Machine
from tests.state_machine.profile import PLAIN
from tests.state_machine.world import Place, Quirks

_PREPARE = Controller._prepare_resume
_REMOVE = Gate._remove
_STAMP = Generation.stamp
_APPEND = Generation.append
_PAUSE = Pauses.pause
_LEAVE = StepRun.leave


@pytest.fixture
def place(qwen3_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """What hangs is to be caught, not waited for."""
    monkeypatch.setattr(settling, "PATIENCE", 2.0)
    return Place(qwen3_dir, tmp_path)


def play(place: Place) -> None:
    """One example that has a bit of everything, so that no defect has to be looked for at random."""
    machine = Machine(place)
    try:
        machine.begin(quirks=Quirks(), shape=Shape(stream=True, length=9))
        machine.pause("all", "abort", 3600.0, False)
        machine.update(False)
        machine.pause("session:s0", "drain", 3600.0, False)
        machine.turn("s0", Shape(), 3, False)
        machine.resume(0, False, False)
        machine.sample(1, 2, False)
        machine.run_out(0, False)
        machine.leave(0, False)
        machine.repeat(0, True, False)
        machine.hold_engine("in_place", False)
        machine.pause("all", "abort", 0.0, False)
        machine.renew(0, False)
    finally:
        machine.teardown()


def assert_caught(place: Place, words: str) -> None:
    """The example fails; the check's words have to be `words`."""
    with pytest.raises(AssertionError, match=words):
        play(place)


def assert_found(place: Place, words: str) -> None:
    """Random examples until one fails."""
    with pytest.raises(AssertionError, match=words):
        run_state_machine_as_test(lambda: Machine(place), settings=PLAIN)


@pytest.mark.parametrize("intercepted", [False, True], ids=["direct", "intercepted"])
def test_a_sidecar_that_nobody_sabotaged(place: Place, intercepted: bool) -> None:
    play(replace(place, intercepted=intercepted))


def test_a_resumed_reply_that_doubles_its_last_id(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def doubled(generation: Generation, fresh_text: Any) -> None:
        _PREPARE(generation, fresh_text)
        if generation.output_ids and generation.finish is None:
            generation.append(generation.output_ids[-1:], generation.logprobs[-1:])

    monkeypatch.setattr(Controller, "_prepare_resume", staticmethod(doubled))
    assert_found(place, "it is to go on from|lost or doubled")


def test_a_resumed_reply_that_loses_its_last_id(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def shortened(generation: Generation, fresh_text: Any) -> None:
        _PREPARE(generation, fresh_text)
        if generation.finish is None:
            del generation.output_ids[-1:], generation.logprobs[-1:]

    monkeypatch.setattr(Controller, "_prepare_resume", staticmethod(shortened))
    assert_found(place, "^lost: ")


def test_logprobs_of_the_wrong_ids(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def shifted(self: Generation, ids: Any, logprobs: Any) -> None:
        _APPEND(self, ids, [*self.logprobs[-1:], *logprobs][: len(logprobs)])

    monkeypatch.setattr(Generation, "append", shifted)
    assert_caught(place, "^aligned: ")


def test_a_resumed_reply_that_is_stamped_with_the_version_of_its_end(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def restamped(self: Generation, start: int, versions: Any, *, changed: bool = False) -> None:
        self.spans.clear()
        _STAMP(self, 0, type(versions)(single=versions.single), changed=changed)

    monkeypatch.setattr(Generation, "stamp", restamped)
    assert_caught(place, "^version: ")


def test_a_gate_that_forgets_a_waiter(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(self: Gate, pause_id: str) -> Pause | None:
        waiting = dict(self._waiting)
        for opened in list(waiting)[:1]:
            del self._waiting[opened]
        removed = _REMOVE(self, pause_id)
        self._waiting.update(waiting)
        return removed

    monkeypatch.setattr(Gate, "_remove", forgetful)
    assert_caught(place, "^gate: a call of .* waits")


def test_a_gate_that_stays_closed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gate, "_expire", lambda self, pause_id: self._on_expiry(self._pauses[pause_id]))
    assert_caught(place, "^gate: it holds the pauses")


def test_a_gate_that_lets_a_call_pass(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gate, "open_for", lambda self, scopes: "all" not in self._by_scope)
    assert_caught(place, "^paused: |^gate: |^quiesced: ")


def test_a_call_that_stays_among_those_in_flight(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ActiveCalls, "remove", lambda self, rid: self._ended.notify())
    assert_caught(place, "^never comes to rest: ")


def test_a_pause_that_says_it_is_quiet(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    async def boasting(self: Pauses, *arguments: Any) -> dict[str, Any]:
        return {**await _PAUSE(self, *arguments), "quiesced": True, "active": 0, "running_request_ids": []}

    monkeypatch.setattr(Pauses, "pause", boasting)
    assert_caught(place, "^quiesced: ")


def test_a_marked_retry_that_samples_anew(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Admission, "_retry", lambda self, session, call: None)
    assert_caught(place, "^retry: |^never comes to rest: ")


def test_a_step_that_is_not_left(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def staying(self: StepRun, reader: StepReader) -> None:
        if self.over or len(self._readers) > 1:
            _LEAVE(self, reader)
        else:
            self._readers.remove(reader)

    monkeypatch.setattr(StepRun, "leave", staying)
    assert_caught(place, "^detached: ")
