"""A pause of many sidecars: all have quiesced or none stays paused, and who has not is named."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.fake_sglang import FakeSGLang
from tests.support.running import running_sidecar
from tests.trainer_hooks.rollouts.control_server import PAUSE, RESUME, SIDECARS, TOKEN, ControlServer
from trainer_hooks.client import ControlClient
from trainer_hooks.control_errors import ControlError
from trainer_hooks.fan_out import FanOutError, HeldPause, pause_all, resume_all
from trainer_hooks.pause_lease import LeaseKeeper
from trainer_hooks.sidecar_list import connect, find_sidecars


@pytest.fixture
def servers() -> Iterator[list[ControlServer]]:
    with ExitStack() as stack:
        yield [stack.enter_context(ControlServer()) for _ in range(3)]


@pytest.fixture
def clients(servers: list[ControlServer]) -> Iterator[list[ControlClient]]:
    with ExitStack() as stack:
        yield [stack.enter_context(client) for client in connect([server.url for server in servers], TOKEN)]


def no_rest(seconds: float) -> None:
    """In place of `time.sleep`."""


def test_all_are_paused_and_each_is_resumed_by_its_own_id(
    servers: list[ControlServer], clients: list[ControlClient]
) -> None:
    fleet = pause_all(clients, timeout_seconds=30, mode="drain", reason="update 1", lease_seconds=50)
    assert [len(server.pauses) for server in servers] == [1, 1, 1]
    assert all(server.calls[-1][1]["mode"] == "drain" for server in servers)
    assert all(server.calls[-1][1]["lease_seconds"] == 50 for server in servers)
    others = [server._new_pause() for server in servers]
    resume_all(fleet.held, timeout_seconds=30)
    assert [server.pauses for server in servers] == [{other} for other in others]


def test_one_that_does_not_quiesce_is_named_and_the_others_go_on(
    servers: list[ControlServer], clients: list[ControlClient]
) -> None:
    servers[1].quiesces = False
    with pytest.raises(FanOutError, match=r"1 of 3 sidecars did not quiesce.*rid-1") as caught:
        pause_all(clients, timeout_seconds=30)
    assert list(caught.value.failures) == [servers[1].url]
    assert not any(server.pauses for server in servers)


def test_one_that_does_not_answer_is_named_and_the_others_go_on(
    servers: list[ControlServer], clients: list[ControlClient]
) -> None:
    servers[2].failures[PAUSE] = [503] * 100
    with pytest.raises(FanOutError) as caught:
        pause_all(clients, timeout_seconds=1, sleep=no_rest)
    assert list(caught.value.failures) == [servers[2].url]
    assert servers[2].count(PAUSE) > 1
    assert not servers[0].pauses and not servers[1].pauses


def test_without_need_those_that_could_be_had_stay_paused(
    servers: list[ControlServer], clients: list[ControlClient]
) -> None:
    servers[0].quiesces = False
    servers[1].failures[PAUSE] = [400]
    fleet = pause_all(clients, timeout_seconds=30, required=False)
    assert set(fleet.failures) == {servers[0].url, servers[1].url}
    assert [len(server.pauses) for server in servers] == [1, 0, 1]
    assert [one.quiesced for one in fleet.held] == [False, True]


def test_a_sidecar_that_restarts_is_waited_for(servers: list[ControlServer], clients: list[ControlClient]) -> None:
    servers[0].failures[PAUSE] = [503, 503]
    servers[1].failures[PAUSE] = [0]  # it paused, and the reply was lost
    fleet = pause_all(clients, timeout_seconds=30, sleep=no_rest)
    assert len(fleet.held) == 3
    assert len(servers[1].pauses) == 1


def test_a_refusal_is_not_repeated(servers: list[ControlServer], clients: list[ControlClient]) -> None:
    servers[0].failures[PAUSE] = [409, 200]
    with pytest.raises(FanOutError, match="scripted 409"):
        pause_all(clients, timeout_seconds=30)
    assert servers[0].count(PAUSE) == 1


def test_no_sidecar_at_all_is_an_error() -> None:
    with pytest.raises(FanOutError, match="TITO_CONTROL_URL"):
        pause_all([], timeout_seconds=1)


def test_a_resume_is_repeated_until_the_engine_is_ready(
    servers: list[ControlServer], clients: list[ControlClient]
) -> None:
    fleet = pause_all(clients, timeout_seconds=30)
    servers[0].failures[RESUME] = [503, 503, 503]
    resume_all(fleet.held, timeout_seconds=30, sleep=no_rest)
    assert not any(server.pauses for server in servers)
    assert servers[0].count(RESUME) == 4


def test_a_resume_whose_reply_was_lost_is_no_lost_lease(
    servers: list[ControlServer], clients: list[ControlClient]
) -> None:
    fleet = pause_all(clients, timeout_seconds=30)
    servers[0].failures[RESUME] = [0]
    resume_all(fleet.held, timeout_seconds=30, sleep=no_rest)


def test_a_pause_that_is_not_in_force_any_more_is_named_at_the_resume(
    servers: list[ControlServer], clients: list[ControlClient]
) -> None:
    fleet = pause_all(clients, timeout_seconds=30)
    servers[1].lose_pauses()
    with pytest.raises(FanOutError, match="pause_expired") as caught:
        resume_all(fleet.held, timeout_seconds=30)
    assert list(caught.value.failures) == [servers[1].url]
    assert not any(server.pauses for server in servers)


def test_replicas_that_share_a_pause_are_resumed_by_one_of_them(servers: list[ControlServer]) -> None:
    servers[1].pauses = servers[0].pauses  # one store
    with ExitStack() as stack:
        clients = [stack.enter_context(client) for client in connect([s.url for s in servers[:2]], TOKEN)]
        first = pause_all(clients[:1], timeout_seconds=30)
        second = pause_all(clients[1:], timeout_seconds=30)
        assert first.held[0].pause_id == second.held[0].pause_id
        resume_all([*first.held, *second.held], timeout_seconds=30)


def test_a_keeper_renews_each_pause_by_its_id(servers: list[ControlServer], clients: list[ControlClient]) -> None:
    fleet = pause_all(clients, timeout_seconds=30)
    with LeaseKeeper(fleet.held, every=0.01, lease_seconds=40) as keeper:
        for server in servers:
            server.wait_calls(PAUSE, 3)
    assert not keeper.lost
    for server, held in zip(servers, fleet.held, strict=True):
        renewals = [body for path, body in server.calls if path == PAUSE][1:]
        assert all(body["pause_id"] == held.pause_id for body in renewals)
        assert all(body["lease_seconds"] == 40 and body["timeout_seconds"] == 0 for body in renewals)
    resume_all(fleet.held, timeout_seconds=30)


def test_a_keeper_tells_which_lease_was_lost(servers: list[ControlServer], clients: list[ControlClient]) -> None:
    fleet = pause_all(clients, timeout_seconds=30)
    with LeaseKeeper(fleet.held, every=0.01) as keeper:
        servers[1].lose_pauses()
        calls = servers[0].count(PAUSE)
        servers[0].wait_calls(PAUSE, calls + 3)
    assert list(keeper.lost) == [servers[1].url]
    resume_all([fleet.held[0], fleet.held[2]], timeout_seconds=30)


def test_a_pause_that_could_not_be_renewed_for_its_whole_life_is_lost(
    servers: list[ControlServer], clients: list[ControlClient]
) -> None:
    fleet = pause_all(clients, timeout_seconds=30)
    servers[0].failures[PAUSE] = [500] * 1000
    now = iter([0.0, 0.0, 0.0, *range(10, 10_000, 10)])
    with LeaseKeeper(fleet.held[:1], every=0.001, lease_seconds=100, clock=lambda: float(next(now))) as keeper:
        _wait(lambda: bool(keeper.lost))
    assert "its lease is 100 s" in keeper.lost[servers[0].url]
    resume_all(fleet.held, timeout_seconds=30)


def _wait(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_a_pause_that_was_lifted_is_not_renewed(servers: list[ControlServer], clients: list[ControlClient]) -> None:
    fleet = pause_all(clients, timeout_seconds=30)
    resume_all(fleet.held, timeout_seconds=30)
    calls = [server.count(PAUSE) for server in servers]
    for held in fleet.held:
        held.renew()
    assert [server.count(PAUSE) for server in servers] == calls


def entry(server: ControlServer, *, expires_in: float = 10.0, **changes: object) -> dict[str, object]:
    expires_at = time.time() + expires_in
    return {"sidecar_id": "s", "url": "x", "control_url": server.url, "expires_at": expires_at} | changes


def test_without_a_list_each_named_sidecar_stands_for_itself(
    servers: list[ControlServer], clients: list[ControlClient]
) -> None:
    servers[1].registry = []
    assert find_sidecars(clients).urls == tuple(sorted(server.url for server in servers))


def test_the_list_of_a_shared_store_is_the_truth_by_the_clock_of_the_store(servers: list[ControlServer]) -> None:
    # by this machine's clock the second lease is over
    servers[0].registry = [entry(servers[1]), entry(servers[2], expires_in=-100)]
    [seed] = connect([servers[0].url], TOKEN)
    with seed:
        assert find_sidecars([seed]).urls == tuple(sorted([servers[1].url, servers[2].url]))


def test_one_that_is_alone_in_its_list_is_called_by_the_name_that_is_known_to_work(
    servers: list[ControlServer],
) -> None:
    servers[0].registry = [entry(servers[0], control_url="http://behind-a-tunnel:8801")]
    [seed] = connect([servers[0].url], TOKEN)
    with seed:
        assert find_sidecars([seed]).urls == (servers[0].url,)


def test_a_named_sidecar_that_is_gone_is_not_needed_where_another_has_a_list(servers: list[ControlServer]) -> None:
    servers[1].registry = [entry(servers[1]), entry(servers[2])]
    gone = "http://127.0.0.1:9"
    with ExitStack() as stack:
        seeds = [stack.enter_context(c) for c in connect([gone, servers[1].url], TOKEN)]
        for seed in seeds:
            seed._sleep = no_rest
        found = find_sidecars(seeds)
    assert found.urls == tuple(sorted([servers[1].url, servers[2].url]))
    assert "cannot connect" in found.failures[gone]


@pytest.mark.parametrize("status", [401, 503])
def test_a_named_sidecar_that_refuses_to_say_is_needed_whatever_list_another_has(
    servers: list[ControlServer], clients: list[ControlClient], status: int
) -> None:
    """It lives: passed over, it would go on sampling while the weights change."""
    servers[1].registry = [entry(servers[1]), entry(servers[2])]
    servers[0].failures[SIDECARS] = [status]
    assert find_sidecars(clients).urls == tuple(sorted(server.url for server in servers))


def test_a_replica_whose_lease_runs_out_while_it_is_called_needs_no_pause(
    servers: list[ControlServer], clients: list[ControlClient]
) -> None:
    servers[2].close()
    asked: list[str] = []

    def still_lives(url: str) -> bool:
        asked.append(url)
        return len(asked) < 3

    for client in clients:
        client._sleep = no_rest
    fleet = pause_all(clients, timeout_seconds=30, still_lives=still_lives, sleep=no_rest)
    assert asked == [servers[2].url] * 3
    assert [one.url for one in fleet.held] == [servers[0].url, servers[1].url]
    assert not fleet.failures
    resume_all(fleet.held, timeout_seconds=30)


def test_a_named_sidecar_that_is_gone_stays_named_where_nobody_has_a_list(servers: list[ControlServer]) -> None:
    gone = "http://127.0.0.1:9"
    with ExitStack() as stack:
        seeds = [stack.enter_context(c) for c in connect([gone, servers[1].url], TOKEN)]
        for seed in seeds:
            seed._sleep = no_rest
        assert set(find_sidecars(seeds).urls) == {gone, servers[1].url}


@pytest.mark.parametrize("url", [None, ""])
def test_a_listed_sidecar_without_an_address_is_named(servers: list[ControlServer], url: str | None) -> None:
    servers[0].registry = [entry(servers[0]), entry(servers[1], sidecar_id="lost", control_url=url)]
    [seed] = connect([servers[0].url], TOKEN)
    with seed, pytest.raises(ControlError, match=r"'lost' .* no control_url"):
        find_sidecars([seed])


def test_a_loopback_address_in_the_list_of_another_machine_is_refused() -> None:
    def reply(request: httpx.Request) -> httpx.Response:
        urls = ["http://10.0.0.1:8801", "http://127.0.0.1:8801"]
        return httpx.Response(200, json={"sidecars": [{"sidecar_id": url, "control_url": url} for url in urls]})

    with (
        ControlClient("http://10.0.0.1:8801", TOKEN, transport=httpx.MockTransport(reply)) as seed,
        pytest.raises(ControlError, match="this machine's own"),
    ):
        find_sidecars([seed])


async def test_two_real_sidecars_are_paused_and_resumed_together(engine: FakeSGLang, tmp_path: Path) -> None:
    async with running_sidecar(engine, tmp_path / "a") as one, running_sidecar(engine, tmp_path / "b") as two:
        clients = [ControlClient(r.sidecar.control.url, r.sidecar.control_token) for r in (one, two)]

        def work() -> list[HeldPause]:
            found = find_sidecars(clients)
            assert len(found.urls) == 2
            fleet = pause_all(clients, timeout_seconds=30, reason="test")
            with LeaseKeeper(fleet.held, every=0.05) as keeper:
                _wait(lambda: keeper.renewals >= 2)
            assert not keeper.lost
            return list(fleet.held)

        held = await asyncio.to_thread(work)
        for running in (one, two):
            assert (await running.control.get("/v1/rollout/pause_state")).json()["paused"]
        await asyncio.to_thread(resume_all, held, timeout_seconds=30)
        for running in (one, two):
            assert not (await running.control.get("/v1/rollout/pause_state")).json()["paused"]
        for client in clients:
            client.close()
