"""A store that cannot write: the trainer is told 503, and nothing is half done."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from sidecar.store.protocol import StoreError
from tests.fake_sglang import Reply
from tests.support.chat import ask, completion, follow
from tests.support.running import Running

pytestmark = pytest.mark.asyncio(loop_scope="module")


@contextmanager
def failing(running: Running, method: str) -> Iterator[None]:
    """The store's `method` raises inside the block."""

    async def fail(*_: object) -> None:
        raise StoreError("the disk is full")

    setattr(running.sidecar._store, method, fail)
    try:
        yield
    finally:
        delattr(running.sidecar._store, method)


async def refused(running: Running, path: str, **body: Any) -> None:
    """A 503 that says why, and to try again."""
    response = await running.control.post(path, json=body)
    assert response.status_code == 503, response.text
    assert response.headers["retry-after"] == "1"
    assert response.json()["error"]["code"] == "store_unavailable"
    assert "the disk is full" in response.json()["error"]["message"]


async def turn(running: Running, session: str) -> dict[str, Any]:
    """One turn; the body of the next."""
    running.engine.replies.append(Reply(text="One."))
    answer = completion(await running.chat(session, ask())).choices[0].message.model_dump(exclude_none=True)
    return follow(ask(), answer, "More")


async def test_a_session_that_cannot_be_stored_is_not_opened(shared: Running) -> None:
    with failing(shared, "create_session"):
        await refused(shared, "/session/open", session_id="unstored")
        response = await shared.chat("unstored", ask())
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "store_unavailable"
    assert (await shared.control.get("/session/unstored")).status_code == 404
    assert not shared.engine.requests


@pytest.mark.parametrize("stream", [False, True])
async def test_a_step_that_cannot_be_stored_is_not_given_to_the_agent(shared: Running, stream: bool) -> None:
    session = f"step-{stream}"
    body = await turn(shared, session)
    before = await shared.view(session)
    shared.engine.replies.append(Reply(text="Two."))
    with failing(shared, "save_step"):
        response = await shared.chat(session, {**body, "stream": stream})
    assert "store_unavailable" in response.text
    assert 'finish_reason":"' not in response.text
    assert await shared.view(session) == before
    shared.engine.replies.append(Reply(text="Two."))
    completion(await shared.chat(session, body))
    shared.engine.assert_i1(session=session)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_store_that_is_known_to_fail_costs_the_engine_nothing(
    shared: Running, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    session = f"known-{stream}"
    body = await turn(shared, session)
    before, asked = await shared.view(session), len(shared.engine.requests)
    with monkeypatch.context() as patch:
        patch.setattr(shared.sidecar._store, "failure", lambda: "the disk is full")
        response = await shared.chat(session, {**body, "stream": stream})
    assert response.status_code == 503
    assert response.headers["retry-after"] == "1"
    assert response.json()["error"]["code"] == "store_unavailable"
    assert len(shared.engine.requests) == asked
    assert await shared.view(session) == before


async def test_a_finalize_that_cannot_be_stored_leaves_the_session_open(shared: Running) -> None:
    body = await turn(shared, "finalize")
    with failing(shared, "save_session"):
        await refused(shared, "/session/finalize", session_id="finalize", reward=1.0)
    assert (await shared.view("finalize"))["state"] == "open"
    shared.engine.replies.append(Reply(text="Two."))
    completion(await shared.chat("finalize", body))
    assert (await shared.finalize("finalize", reward=2.0))["num_steps"] == 2
    assert (await shared.segments("finalize"))[0]["reward"] == 2.0


async def test_a_discard_that_cannot_be_stored_discards_nothing(shared: Running) -> None:
    body = await turn(shared, "discard")
    with failing(shared, "discard_session"):
        await refused(shared, "/session/discard", session_id="discard")
    assert (await shared.view("discard"))["state"] == "open"
    shared.engine.replies.append(Reply(text="Two."))
    completion(await shared.chat("discard", body))
    assert (await shared.post("/session/discard", {"session_id": "discard"}))["session_removed"] is True


async def test_a_pause_that_cannot_be_stored_is_none(shared: Running) -> None:
    with failing(shared, "save_pause"):
        await refused(shared, "/v1/rollout/pause")
    assert not (await shared.control.get("/v1/rollout/pause_state")).json()["paused"]
    await turn(shared, "not-paused")


async def test_a_resume_that_cannot_be_stored_stays_paused(shared: Running) -> None:
    paused = await shared.post("/v1/rollout/pause")
    with failing(shared, "delete_pauses"):
        await refused(shared, "/v1/rollout/resume", pause_id=paused["pause_id"])
    assert (await shared.control.get("/v1/rollout/pause_state")).json()["paused"]
    resumed = await shared.post("/v1/rollout/resume", {"pause_id": paused["pause_id"]})
    assert resumed["status"] == "resumed"
