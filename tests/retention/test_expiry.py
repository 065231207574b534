"""Sessions that nobody uses expire, in a running sidecar: what agents and trainers are told, and what is logged."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from sidecar.config import Settings, SettingsError, load_settings
from sidecar.sessions.retention import Retention, RetentionRules
from sidecar.store.protocol import StoreError
from tests.fake_sglang import Reply
from tests.retention.conftest import Sweeper, at_rest
from tests.support.chat import Held, ask, completion
from tests.support.running import Running

RULES = RetentionRules(retention=86400, session_timeout=3600, tombstones=7 * 86400)


async def call(running: Running, session: str) -> None:
    running.engine.replies.append(Reply(text="Yes."))
    completion(await running.chat(session, ask()))
    await at_rest(running, session)


async def gone(running: Running, session: str) -> None:
    """Calls of the session are 409, and a client library is told not to try again."""
    response = await running.chat(session, ask())
    assert response.status_code == 409
    assert response.headers["x-should-retry"] == "false"
    assert response.json()["error"]["code"] == "session_expired"


async def test_an_unread_trajectory_expires_with_a_warning_that_names_it(
    sweeper: Sweeper, caplog: pytest.LogCaptureFixture
) -> None:
    running = sweeper.running
    await call(running, "unread")
    first = await running.finalize("unread", reward=1.0)
    await sweeper.pass_time(hours=23.9)
    assert (await running.post("/trajectory/read", {"session_id": "unread"}))["data"]
    with caplog.at_level(logging.INFO):
        await sweeper.pass_time(hours=0.2)
    [told] = [one for one in caplog.records if "retention dropped" in one.getMessage()]
    assert told.levelno == logging.WARNING
    assert "1 finalized trajectories that nobody had read: unread;" in told.getMessage()
    totals = sweeper.retention.totals
    assert (totals.expired, totals.expired_unread, totals.expired_open) == (1, 1, 0)
    await gone(running, "unread")
    refused = await running.post("/trajectory/read", {"session_id": "unread"}, status=409)
    assert refused["error"]["code"] == "session_expired"
    assert await running.finalize("unread") == first, "a repeat gets the first reply"
    assert (await running.post("/session/discard", {"session_id": "unread"}))["session_removed"] is False
    assert (await running.view("unread"))["state"] == "expired"
    assert (await sweeper.store.counts())["steps"] == 0


async def test_drained_data_stays_readable_until_retention_after_the_drain(
    sweeper: Sweeper, caplog: pytest.LogCaptureFixture
) -> None:
    running = sweeper.running
    await call(running, "s")
    await running.finalize("s")
    read = await running.post("/trajectory/read", {"session_id": "s", "drain": True})
    again = {"session_id": "s", "include_drained": True}
    await sweeper.pass_time(hours=23.9)
    assert (await running.post("/trajectory/read", again))["data"] == read["data"]
    with caplog.at_level(logging.INFO):
        await sweeper.pass_time(hours=0.2)
    assert [one.levelname for one in caplog.records if "retention dropped" in one.getMessage()] == ["INFO"]
    assert sweeper.retention.totals.expired_unread == 0
    await running.post("/trajectory/read", again, status=409)


async def test_an_open_session_expires_after_its_last_step(
    sweeper: Sweeper, caplog: pytest.LogCaptureFixture
) -> None:
    running = sweeper.running
    await call(running, "left")
    await call(running, "used")
    await sweeper.pass_time(hours=24.1)
    assert sweeper.retention.totals.expired_open == 2, "both were unloaded first"
    assert "2 sessions that nobody finalized: " in caplog.text
    await gone(running, "left")
    await gone(running, "used")
    assert (await running.post("/session/finalize", {"session_id": "left"}, status=409))["error"]["code"] == (
        "session_expired"
    )


async def test_a_session_in_which_a_step_runs_does_not_expire(sweeper: Sweeper) -> None:
    held = Held()
    sweeper.running.engine.replies.append(held.reply())
    running = asyncio.create_task(sweeper.running.chat("s", ask()))
    await held.reached(sweeper.running.engine)
    await sweeper.pass_time(hours=100)
    held.open.set()
    completion(await running)
    assert sweeper.retention.totals.expired == 0
    [segment] = await sweeper.running.segments("s")
    assert segment["extra_info"]["untrainable"] == []


async def test_a_call_that_comes_while_its_session_expires_waits_and_is_refused(
    sweeper: Sweeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    await call(sweeper.running, "s")
    await sweeper.pass_time(hours=2)
    began, go_on, transact = asyncio.Event(), asyncio.Event(), sweeper.store.transact

    async def slow(what: str, work: Any) -> Any:
        if what.startswith("expiry"):
            began.set()
            await go_on.wait()
        return await transact(what, work)

    monkeypatch.setattr(sweeper.store, "transact", slow)
    sweep = asyncio.create_task(sweeper.pass_time(hours=23))
    await began.wait()
    late = asyncio.create_task(sweeper.running.chat("s", ask()))
    done, _ = await asyncio.wait({late}, timeout=0.2)
    assert not done
    go_on.set()
    await sweep
    assert (await late).status_code == 409


async def test_the_id_is_free_again_after_its_tombstone(sweeper: Sweeper) -> None:
    running = sweeper.running
    for name, end in (("finalized", "finalize"), ("discarded", "discard")):
        await call(running, name)
        await running.post(f"/session/{end}", {"session_id": name})
    await sweeper.pass_time(hours=24.1)
    await sweeper.pass_time(hours=24 * 6.9 - 24)
    assert (await running.chat("finalized", ask())).status_code == 409
    assert (await running.chat("discarded", ask())).status_code == 409
    await sweeper.pass_time(hours=24 * 1.2)
    assert sweeper.retention.totals.tombstones_forgotten == 2
    for name in ("finalized", "discarded"):
        await call(running, name)
        assert len((await running.view(name))["steps"]) == 1


async def test_after_a_long_stop_readers_get_an_hour(sweeper: Sweeper, caplog: pytest.LogCaptureFixture) -> None:
    running = sweeper.running
    for name in ("unread", "read"):
        await call(running, name)
        await running.finalize(name)
    await call(running, "open")
    await running.post("/trajectory/read", {"session_id": "read", "drain": True})
    restarted = Sweeper(running, ahead=72 * 3600.0)
    for _ in range(2):
        await restarted.pass_time(hours=0.4)
    assert (restarted.retention.totals.expired, restarted.retention.totals.expired_unread) == (1, 0)
    assert (
        caplog.text.count("1 finalized trajectories are older than --retention and unread: they expire in 3600 s")
        == 1
    )
    assert (await running.post("/trajectory/read", {"session_id": "unread"}))["data"]
    await restarted.pass_time(hours=0.3)
    assert (restarted.retention.totals.expired_unread, restarted.retention.totals.expired_open) == (1, 1)


async def test_nothing_expires_with_retention_off(sweeper: Sweeper) -> None:
    await call(sweeper.running, "s")
    await sweeper.running.finalize("s")
    sweeper.rules["retention"] = None
    forever = Sweeper(sweeper.running, rules=sweeper.rules)
    await forever.pass_time(hours=24 * 365 * 10)
    assert (await sweeper.running.post("/trajectory/read", {"session_id": "s"}))["data"]


async def test_more_sessions_than_one_round_expire_in_one_sweep(sweeper: Sweeper) -> None:
    await asyncio.gather(*(sweeper.running.open(f"s{number}") for number in range(120)))
    await sweeper.pass_time(hours=25)
    assert sweeper.retention.totals.unloaded == sweeper.retention.totals.expired == 120


async def test_a_sweep_that_fails_is_tried_again(
    sweeper: Sweeper, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    outcomes = [StoreError("disk full"), ValueError("a bug"), None]
    done = asyncio.Event()

    async def sweep() -> None:
        outcome = outcomes.pop(0)
        if outcome is not None:
            raise outcome
        done.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(RetentionRules, "pause", 0.0)
    retention = Retention(sweeper.store, sweeper.registry, RULES)
    monkeypatch.setattr(retention, "sweep", sweep)
    retention.start()
    await done.wait()
    await retention.stop()
    assert "the next sweep tries again: disk full" in caplog.text
    assert "ValueError: a bug" in caplog.text


def test_sweeps_are_a_minute_apart_and_closer_where_times_are_short() -> None:
    assert RULES.pause == 60
    assert RetentionRules(None, 3600, 0).pause == 60
    assert RetentionRules(100, 3600, 86400).pause == 10
    assert RetentionRules(86400, 2, 86400).pause == 1
    assert RULES.unused_seconds == 3600
    assert RetentionRules(60, 3600, 0).unused_seconds == 60


def test_times_are_written_with_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TITO_RETENTION", raising=False)
    settings = load_settings({})
    assert (settings.retention, settings.session_timeout, settings.tombstones) == (86400, 3600, 604800)
    settings = load_settings({"retention": "90m", "session_timeout": "30", "tombstones": "1.5h"})
    assert (settings.retention, settings.session_timeout, settings.tombstones) == (5400, 30, 5400)
    assert load_settings({"retention": "off"}).retention is None
    assert Settings(retention=False).retention is None, "as YAML reads off"
    for wrong in ("1w", "-1h", "soon", "0"):
        with pytest.raises(SettingsError, match="--retention"):
            load_settings({"retention": wrong})
