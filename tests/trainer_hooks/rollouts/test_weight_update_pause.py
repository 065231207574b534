"""The pause around a weight update: settings, errors, and that a resume always comes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from tests.trainer_hooks.rollouts.control_server import PAUSE, RESUME, TOKEN, ControlServer
from trainer_hooks.fan_out import FanOutError, PauseLostError
from trainer_hooks.slime.errors import SettingError
from trainer_hooks.slime.rollouts.weight_update_pause import PauseSettings, rollout_paused


@pytest.fixture
def servers() -> Iterator[list[ControlServer]]:
    with ExitStack() as stack:
        yield [stack.enter_context(ControlServer()) for _ in range(2)]


def args_for(servers: list[ControlServer], **changes: Any) -> SimpleNamespace:
    urls = ",".join(server.url for server in servers)
    return SimpleNamespace(**{"tito_control_url": urls, "tito_control_token": TOKEN} | changes)


def test_the_block_runs_inside_a_pause_of_every_sidecar(servers: list[ControlServer]) -> None:
    with rollout_paused(args_for(servers), reason="weight update 3"):
        assert [len(server.pauses) for server in servers] == [1, 1]
        assert all(server.calls[-1][1]["reason"] == "weight update 3" for server in servers)
    assert not any(server.pauses for server in servers)


def test_an_error_of_the_block_comes_through_and_all_are_resumed(servers: list[ControlServer]) -> None:
    with pytest.raises(ZeroDivisionError), rollout_paused(args_for(servers), reason="r"):
        raise ZeroDivisionError
    assert not any(server.pauses for server in servers)
    assert [server.count(RESUME) for server in servers] == [1, 1]


def test_an_error_of_the_block_is_not_hidden_by_one_of_the_resume(servers: list[ControlServer]) -> None:
    with pytest.raises(ZeroDivisionError), rollout_paused(args_for(servers), reason="r"):
        servers[0].lose_pauses()
        raise ZeroDivisionError
    assert not servers[1].pauses


def test_the_block_does_not_run_unless_all_have_quiesced(servers: list[ControlServer]) -> None:
    servers[0].quiesces = False
    with (
        pytest.raises(FanOutError, match=servers[0].url),
        rollout_paused(args_for(servers), reason="r"),
    ):
        pytest.fail("the weights changed while tokens were sampled")
    assert not any(server.pauses for server in servers)


def test_the_block_runs_all_the_same_where_the_pause_is_not_required(servers: list[ControlServer]) -> None:
    servers[0].quiesces = False
    ran = False
    with rollout_paused(args_for(servers, tito_pause_required=0), reason="r") as fleet:
        ran = True
        assert fleet is not None and list(fleet.failures) == [servers[0].url]
        servers[1].lose_pauses()
    assert ran
    assert not any(server.pauses for server in servers)


def test_a_lease_that_was_lost_is_an_error_after_the_update(servers: list[ControlServer]) -> None:
    with (
        pytest.raises(PauseLostError, match=rf"at 1 of 2 sidecars \({servers[1].url}"),
        rollout_paused(args_for(servers), reason="r", renew_seconds=0.01),
    ):
        servers[1].lose_pauses()
        calls = [server.count(PAUSE) for server in servers]
        for server, count in zip(servers, calls, strict=True):
            server.wait_calls(PAUSE, count + 2 if server is servers[0] else count + 1)
    assert not servers[0].pauses


def test_a_lease_lost_just_before_the_resume_is_an_error_too(servers: list[ControlServer]) -> None:
    with pytest.raises(FanOutError, match="pause_expired"), rollout_paused(args_for(servers), reason="r"):
        servers[0].lose_pauses()


def test_it_is_renewed_while_the_block_runs_and_while_the_resume_is_repeated(servers: list[ControlServer]) -> None:
    with rollout_paused(args_for(servers), reason="r", renew_seconds=0.01):
        servers[0].wait_calls(PAUSE, 3)
        servers[0].failures[RESUME] = [503, 503]
        before = servers[0].count(PAUSE)
    assert servers[0].count(RESUME) == 3
    assert servers[0].count(PAUSE) > before
    assert not servers[0].pauses


def test_switched_off_nothing_is_called(servers: list[ControlServer]) -> None:
    with rollout_paused(args_for(servers, tito_pause_around_weight_update=0), reason="r") as fleet:
        assert fleet is None
    assert not any(server.calls for server in servers)


def test_the_settings_have_defaults_that_hold_the_promise() -> None:
    assert PauseSettings.read(SimpleNamespace()) == PauseSettings(True, True, 300.0, "abort")


@pytest.mark.parametrize("prefix", ["TITO_PAUSE", "DRESSAGE_PROXY_PAUSE"])
def test_both_spellings_of_the_settings_are_read(monkeypatch: pytest.MonkeyPatch, prefix: str) -> None:
    monkeypatch.setenv(f"{prefix}_AROUND_WEIGHT_UPDATE", "0")
    monkeypatch.setenv(f"{prefix}_REQUIRED", "0")
    monkeypatch.setenv(f"{prefix}_TIMEOUT_SEC", "12.5")
    assert PauseSettings.read(None) == PauseSettings(False, False, 12.5, "abort")


def test_the_keys_of_slimes_yaml_are_read() -> None:
    args = SimpleNamespace(dressage_proxy_pause_timeout_sec=7, tito_pause_mode="drain", tito_pause_required=False)
    assert PauseSettings.read(args) == PauseSettings(True, False, 7.0, "drain")


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"TITO_PAUSE_TIMEOUT_SEC": "30", "DRESSAGE_PROXY_PAUSE_TIMEOUT_SEC": "40"}, "set one of them"),
        ({"TITO_PAUSE_MODE": "stop"}, "TITO_PAUSE_MODE"),
        ({"TITO_PAUSE_TIMEOUT_SEC": "0"}, "TITO_PAUSE_TIMEOUT_SEC"),
        ({"DRESSAGE_PROXY_PAUSE_REQUIRED": "maybe"}, "DRESSAGE_PROXY_PAUSE_REQUIRED"),
    ],
)
def test_wrong_settings_are_named(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], words: str) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SettingError, match=words):
        PauseSettings.read(None)


def test_the_same_value_in_both_spellings_is_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TITO_PAUSE_REQUIRED", "0")
    monkeypatch.setenv("DRESSAGE_PROXY_PAUSE_REQUIRED", "0")
    assert not PauseSettings.read(None).required


def test_a_missing_address_is_named() -> None:
    with (
        pytest.raises(SettingError, match="TITO_CONTROL_"),
        rollout_paused(SimpleNamespace(), reason="r"),
    ):
        pytest.fail("not reached")


def test_the_pause_reaches_replicas_that_only_the_shared_store_names(servers: list[ControlServer]) -> None:
    servers[0].registry = [{"sidecar_id": server.url, "control_url": server.url} for server in servers]
    with rollout_paused(args_for(servers[:1]), reason="r"):
        assert [len(server.pauses) for server in servers] == [1, 1]
    assert not any(server.pauses for server in servers)


def test_a_replica_that_is_gone_since_the_pause_needs_no_resume(servers: list[ControlServer]) -> None:
    """An agent's pod may end while the weights change: its sidecar stops, and gives up its lease."""
    entries = [{"sidecar_id": server.url, "control_url": server.url} for server in servers]
    servers[0].registry = entries
    with rollout_paused(args_for(servers[:1], tito_pause_timeout_sec=60), reason="r"):
        servers[1].close()
        servers[0].registry = entries[:1]
    assert not servers[0].pauses


def test_a_replica_that_is_gone_has_lost_no_pause_that_is_needed(servers: list[ControlServer]) -> None:
    entries = [{"sidecar_id": server.url, "control_url": server.url} for server in servers]
    servers[0].registry = entries
    with rollout_paused(args_for(servers[:1]), reason="r", renew_seconds=0.01):
        servers[1].lose_pauses()
        calls = servers[0].count(PAUSE)
        servers[0].wait_calls(PAUSE, calls + 3)
        servers[1].close()
        servers[0].registry = entries[:1]
    assert not servers[0].pauses


def test_a_list_that_cannot_be_had_makes_no_replica_gone(servers: list[ControlServer]) -> None:
    """The trainer's own network may be at fault: what was paused has to be resumed, or named."""
    servers[0].registry = [{"sidecar_id": server.url, "control_url": server.url} for server in servers]
    with (
        pytest.raises(FanOutError, match="2 of 2 sidecars did not resume"),
        rollout_paused(args_for(servers[:1], tito_pause_timeout_sec=1), reason="r"),
    ):
        for server in servers:
            server.close()
