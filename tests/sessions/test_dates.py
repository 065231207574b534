"""What a template takes from the clock is taken once per session, whoever serves it and whenever."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fake_sglang import FakeSGLang
from tests.sessions.agent import Agent, prompt_text, reasons
from tests.support.chat import tool
from tests.support.running import Running, running_sidecar


@pytest.fixture
def dated(tmp_path: Path, qwen3_dir: Path) -> Path:
    """Qwen3's template behind a line with the time to the microsecond, so that no two calls print the same."""
    config = json.loads((qwen3_dir / "tokenizer_config.json").read_text())
    path = tmp_path / "dated.jinja"
    path.write_text("{{- '[' + strftime_now('%Y-%m-%d %H:%M:%S.%f %Z') + ']' -}}\n" + config["chat_template"])
    return path


@pytest.fixture
def timezone(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Lets a test move the machine to another zone."""
    yield monkeypatch
    monkeypatch.undo()
    time.tzset()


def date(engine: FakeSGLang) -> str:
    """What the last prompt says of the time."""
    found = re.match(r"\[(.+?) ?\]", prompt_text(engine, engine.requests[-1]))
    assert found, prompt_text(engine, engine.requests[-1])
    return found[1]


async def test_a_session_prints_one_date_through_boundaries_restarts_and_zones(
    engine: FakeSGLang, tmp_path: Path, dated: Path, timezone: pytest.MonkeyPatch
) -> None:
    agent, dates = Agent(), []

    async def turn(running: Running) -> None:
        await agent.turn(running, "And?", "More.")
        dates.append(date(engine))

    for zone in ("UTC", "Asia/Tokyo", "America/Los_Angeles"):
        timezone.setenv("TZ", zone)
        time.tzset()
        async with running_sidecar(engine, tmp_path / "state", chat_template=dated) as running:
            await turn(running)
            agent.fields["tools"] = [tool(f"look_{len(dates)}")]  # the whole prompt is rendered again
            await turn(running)
    async with running_sidecar(engine, tmp_path / "state", chat_template=dated) as running:
        created = time.time()
        segments = await running.segments("s")
        await Agent("other").turn(running, "Hi", "Hello.")
        other = date(engine)
    assert len(set(dates)) == 1
    assert reasons(segments) == ["root", "tools_changed", "tools_changed", "tools_changed"]
    assert other != dates[0]
    assert other >= time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(created))


async def test_each_attempt_of_a_group_has_its_own_date_and_a_retry_none(
    engine: FakeSGLang, tmp_path: Path, dated: Path
) -> None:
    async with running_sidecar(engine, tmp_path / "state", chat_template=dated) as running:
        await Agent("a").turn(running, "Hi", "Hello.")
        first = date(engine)
        await Agent("b").turn(running, "Hi", "Hello.")
        assert date(engine) > first
        await Agent("a").turn(running, "Hi", "Hello again.")
        assert date(engine) == first
