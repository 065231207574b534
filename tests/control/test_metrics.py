"""`GET /metrics`, read by prometheus_client's own parsers, against what was done to the sidecar."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text
from sqlalchemy.exc import OperationalError

from tests.fake_sglang import Reply
from tests.support.chat import Held, ask, completion, streaming, turns
from tests.support.rollout import pause, resume
from tests.support.running import Running, engine_for, running_sidecar
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]


@pytest.fixture
async def running(qwen3_dir: Path, tmp_path: Path) -> AsyncIterator[Running]:
    """A sidecar whose counters begin at nothing."""
    engine = engine_for(qwen3_dir, context_length=4096, weight_version="3")
    async with engine, running_sidecar(engine, tmp_path / "state") as running:
        yield running


class Scrape:
    """One exposition."""

    def __init__(self, text: str) -> None:
        self.families = list(read_text(text))
        self._samples = {
            (one.name, frozenset(one.labels.items())): one.value for f in self.families for one in f.samples
        }

    def __call__(self, name: str, **labels: str) -> float:
        """The sample's value. Raises `KeyError`."""
        return self._samples[name, frozenset(labels.items())]


async def scrape(running: Running) -> Scrape:
    response = await running.control.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain; version=")
    return Scrape(response.text)


async def test_a_fresh_sidecar_is_ready_and_has_counted_nothing(running: Running) -> None:
    seen = await scrape(running)
    assert seen("tito_ready") == seen("tito_store_writable") == 1
    assert (seen("tito_engine_state", state="up"), seen("tito_engine_state", state="down")) == (1, 0)
    assert seen("tito_sessions") == seen("tito_paused") == seen("tito_output_tokens_total") == 0
    assert seen("process_resident_memory_bytes") > 1 << 20
    [info] = [sample.labels for family in seen.families if family.name == "tito_info" for sample in family.samples]
    assert (info["engine_version"], info["weight_version"]) == ("0.5.23", "3")


async def test_steps_tokens_and_segments_are_those_that_were_stored(running: Running) -> None:
    await turns(running, "s", "One.", "Two.")
    running.engine.replies.append(Reply(text="Three."))
    completion(await running.chat("s", ask("Another beginning")))
    seen = await scrape(running)
    assert seen("tito_steps_total", state="committed", finish_reason="stop") == 3
    assert seen("tito_segments_total", reason="root") == 2
    assert seen("tito_requests_answered_total", status="200") == 3
    assert seen("tito_sessions") == 1
    assert seen("tito_session_bytes") > 0
    segments = await running.segments("s")
    trained = sum(sum(one["full_loss_mask"]) for one in segments)
    assert seen("tito_output_tokens_total") == trained
    assert seen("tito_context_tokens_total") == sum(len(one["tokens"]) for one in segments) - trained
    assert seen("tito_store_writes_total") >= 4  # the session and three steps
    assert seen("tito_store_commit_seconds_count") >= 3
    assert seen("tito_store_commit_seconds_sum") > 0
    assert (await scrape(running))("tito_sessions") == 0  # finalized ones leave memory


async def test_a_restart_counts_from_nothing_and_not_what_it_loads(qwen3_dir: Path, tmp_path: Path) -> None:
    async with engine_for(qwen3_dir, context_length=4096) as engine:
        async with running_sidecar(engine, tmp_path / "state") as running:
            body = await turns(running, "s", "One.")
        async with running_sidecar(engine, tmp_path / "state") as running:
            engine.replies.append(Reply(text="Two."))
            completion(await running.chat("s", body))
            assert (await scrape(running))("tito_steps_total", state="committed", finish_reason="stop") == 1


async def test_a_pause_shows_what_it_holds_and_what_it_interrupted(running: Running) -> None:
    held = Held()
    running.engine.replies.append(held.reply())
    call = asyncio.create_task(running.chat("s", ask()))
    await held.reached(running.engine)
    seen = await scrape(running)
    assert (seen("tito_engine_calls"), seen("tito_requests"), seen("tito_steps_under_way")) == (1, 1, 1)
    await pause(running)
    seen = await scrape(running)
    assert (seen("tito_paused"), seen("tito_pauses"), seen("tito_calls_held")) == (1, 1, 1)
    assert (seen("tito_engine_calls"), seen("tito_ready")) == (0, 1)
    await resume(running)
    held.open.set()
    completion(await call)
    seen = await scrape(running)
    assert (seen("tito_paused"), seen("tito_calls_held"), seen("tito_requests")) == (0, 0, 0)
    assert seen("tito_interruptions_total") == 1


async def test_a_pause_of_one_session_is_no_pause_of_everything(running: Running) -> None:
    await running.open("s")
    await pause(running, session_id="s")
    seen = await scrape(running)
    assert (seen("tito_paused"), seen("tito_pauses")) == (0, 1)


async def test_refused_requests_and_agents_that_leave_are_counted(running: Running) -> None:
    assert (await running.chat("s", {"model": "m"})).status_code == 400
    assert (await running.data.get("/nowhere")).status_code == 404
    seen = await scrape(running)
    assert seen("tito_requests_answered_total", status="400") == 1
    assert seen("tito_requests_answered_total", status="404") == 1
    held = Held()
    running.engine.replies.append(held.reply())
    async with streaming(running, "s", ask()) as stream:
        await stream.until_text()
        assert (await scrape(running))("tito_requests") == 1
    await running.engine.wait_idle()
    seen = await scrape(running)
    assert seen("tito_requests_answered_total", status="200") == 1  # it had its headers
    assert seen("tito_steps_under_way") == 1  # it waits for a retry


async def test_an_agent_that_leaves_before_its_answer_has_no_status(running: Running) -> None:
    await pause(running)
    call = asyncio.create_task(running.chat("s", ask()))
    await until(lambda: running.sidecar.pauses.gate.suspended, "the call at the gate")
    call.cancel()

    async def counted() -> bool:
        seen = await scrape(running)
        return seen("tito_requests") == 0 and seen("tito_requests_answered_total", status="0") == 1

    await until(counted, "a request without an answer")


async def test_a_store_that_cannot_write_shows(running: Running) -> None:
    writer = running.sidecar._store._writer

    async def fail(_: object) -> None:
        raise OperationalError("COMMIT", {}, sqlite3.OperationalError("database or disk is full"))

    commit, probe = writer._commit, writer._probe
    writer._commit = writer._probe = fail
    running.engine.replies.append(Reply(text="One."))
    assert (await running.chat("s", ask())).status_code == 503
    seen = await scrape(running)
    assert (seen("tito_store_writable"), seen("tito_ready")) == (0, 0)
    assert seen("tito_store_failures_total") >= 1
    assert seen("tito_store_commit_seconds_count") == seen("tito_store_writes_total") == 0
    writer._commit, writer._probe = commit, probe

    async def writable() -> bool:
        return (await scrape(running))("tito_store_writable") == 1

    await until(writable, "a store that writes again")


async def test_an_engine_that_is_down_shows_and_does_not_hold_up_the_scrape(running: Running) -> None:
    await running.engine.down()
    await pause(running)
    await resume(running, status=503)  # asks the engine at once
    seen = await scrape(running)
    assert (seen("tito_engine_state", state="up"), seen("tito_engine_state", state="down")) == (0, 1)
    assert seen("tito_ready") == 1


async def test_it_needs_the_token(running: Running) -> None:
    response = await running.control.get("/metrics", headers={"authorization": "Bearer wrong"})
    assert response.status_code == 401


async def test_a_scraper_that_asks_for_openmetrics_gets_it(running: Running) -> None:
    await turns(running, "s", "One.")
    accept = "application/openmetrics-text; version=1.0.0"
    response = await running.control.get("/metrics", headers={"accept": accept})
    assert response.headers["content-type"].startswith("application/openmetrics-text")
    assert "tito_steps" in {family.name for family in read_openmetrics(response.text)}


async def test_the_manual_names_every_metric_and_no_other(running: Running) -> None:
    await turns(running, "s", "One.")
    text = (await running.control.get("/metrics")).text
    told = set(re.findall(r"^# TYPE (tito_\w+) ", text, re.M))
    manual = set(re.findall(r"`(tito_\w+)(?:\{[\w, ]*\})?`", (ROOT / "docs/metrics.md").read_text()))
    assert manual == told
