"""An agent that goes away stops its generation at once; what it never got is recorded and never trains."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import sidecar.app
from sidecar.store.protocol import Store
from sidecar.tito.records import StepRecord
from tests.fake_sglang import FakeSGLang, Reply
from tests.support.chat import LIVENESS, Held, ask, completion, follow, until_states
from tests.support.raw_agent import LONG, agent_of, read_until, small_buffers
from tests.support.running import Running, engine_for, running_sidecar

BOTH_WAYS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
RETRY = {"x_stainless_retry_count": "1"}


@BOTH_WAYS
async def test_leaving_aborts_the_engines_call_within_a_second_and_detaches_the_step(
    sidecar: Running, stream: bool
) -> None:
    held = Held()
    sidecar.engine.replies.append(held.reply())
    async with agent_of(sidecar, "left", ask(stream=stream)):
        request = await held.reached(sidecar.engine)
        left_at = time.monotonic()
    await sidecar.engine.wait_until(lambda: request.done)
    assert time.monotonic() - left_at < 1
    assert request.outcome == "disconnected"
    [step] = (await until_states(sidecar, "left", "detached"))["steps"]
    assert step["delivered"] is False
    assert step["output_tokens"] == held.after


@BOTH_WAYS
async def test_leaving_before_the_first_token_aborts_too(sidecar: Running, stream: bool) -> None:
    sidecar.engine.replies.append(Reply(text="never", queue=asyncio.Event()))
    async with agent_of(sidecar, "early", ask(stream=stream)):
        [request] = await sidecar.engine.wait_requests(1)
    await sidecar.engine.wait_until(lambda: request.done)
    await until_states(sidecar, "early", "detached")


async def test_leaving_while_paused_sends_nothing_after_the_resume(sidecar: Running) -> None:
    await sidecar.post("/v1/rollout/pause")
    async with agent_of(sidecar, "paused", ask()):
        await until_states(sidecar, "paused", "running")
    await until_states(sidecar, "paused", "detached")
    resumed = await sidecar.post("/v1/rollout/resume")
    assert resumed["suspended"] == 0
    assert not sidecar.engine.requests


@BOTH_WAYS
async def test_without_a_retry_the_step_ends_as_aborted_and_does_not_train(
    engine: FakeSGLang, tmp_path: Path, stream: bool
) -> None:
    async with running_sidecar(engine, tmp_path / "state", retry_window=0.05) as running:
        engine.replies.append(Reply(text="Hello."))
        body = ask()
        answer = completion(await running.chat("s", body)).choices[0].message.model_dump(exclude_none=True)
        held = Held()
        engine.replies.append(held.reply())
        engine.continue_aborted = False
        second = {**follow(body, answer, "More"), "stream": stream}
        async with agent_of(running, "s", second):
            request = await held.reached(engine, 1)
        view = await until_states(running, "s", "committed", "aborted")
        aborted = view["steps"][1]
        assert aborted["delivered"] is False
        assert aborted["finish_reason"] == "aborted"
        # a retry that comes too late is a call of its own
        engine.replies.append(Reply(text="Fresh."))
        late = await running.chat("s", {**second, "stream": False}, **RETRY)
        assert completion(late).choices[0].message.content == "Fresh."
        assert engine.requests[-1].input_ids == request.input_ids
        segments = await running.segments("s")
        assert all(aborted["step_id"] not in segment["extra_info"]["step_ids"] for segment in segments)
        [anchor] = [segment for segment in segments if segment["extra_info"]["is_anchor"]]
        assert {"step_id": aborted["step_id"], "reason": "aborted"} in anchor["extra_info"]["untrainable"]


async def test_an_aborted_step_that_its_retry_replaced_is_overtaken(engine: FakeSGLang, tmp_path: Path) -> None:
    async with running_sidecar(engine, tmp_path / "state", retry_window=0) as running:
        held = Held()
        engine.replies.extend([held.reply(), Reply(text="Fresh.")])
        engine.continue_aborted = False
        async with agent_of(running, "s", ask()):
            await held.reached(engine)
        [aborted] = (await until_states(running, "s", "aborted"))["steps"]
        body = json.dumps(ask()).encode()
        url = "/sessions/s/v1/chat/completions"
        got = await running.data.post(url, content=body, headers={"x-stainless-retry-count": "1"})
        assert completion(got).choices[0].message.content == "Fresh."
        [segment] = await running.segments("s")
        assert segment["extra_info"]["untrainable"] == [{"step_id": aborted["step_id"], "reason": "overtaken"}]


class HeldStore:
    """A store whose writes of steps in `state` wait until `open` is set; `asked` says that one waits."""

    def __init__(self, store: Store, state: str) -> None:
        self._store = store
        self._state = state
        self.asked = asyncio.Event()
        self.open = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def save_step(self, step: StepRecord, blobs: Mapping[bytes, bytes], *fence: Any) -> None:
        if step.state == self._state:
            self.asked.set()
            await self.open.wait()
        await self._store.save_step(step, blobs, *fence)


def hold_store(monkeypatch: pytest.MonkeyPatch, state: str) -> list[HeldStore]:
    """Let sidecars that start from now on have a `HeldStore`; the list of them."""
    stores: list[HeldStore] = []
    open_store = sidecar.app.open_store

    def open_held(url: str, **options: Any) -> HeldStore:
        stores.append(HeldStore(open_store(url, **options), state))
        return stores[-1]

    monkeypatch.setattr(sidecar.app, "open_store", open_held)
    return stores


@BOTH_WAYS
async def test_a_reply_whose_agent_left_just_before_it_is_recorded_as_undelivered(
    engine: FakeSGLang, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    stores = hold_store(monkeypatch, "committed")
    async with running_sidecar(engine, tmp_path / "state") as running:
        engine.replies.append(Reply(text="Done."))
        [store] = stores
        async with agent_of(running, "s", ask(stream=stream)):
            await asyncio.wait_for(store.asked.wait(), LIVENESS)
        await until_states(running, "s", "detached")
        store.open.set()
        [step] = (await until_states(running, "s", "committed"))["steps"]
        assert step["delivered"] is False
        [segment] = await running.segments("s")
        assert not any(segment["full_loss_mask"])
        assert segment["extra_info"]["untrainable"] == [{"step_id": step["step_id"], "reason": "undelivered"}]


async def test_a_reply_that_was_not_delivered_is_replayed_to_the_retry_and_then_trains(
    engine: FakeSGLang, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = hold_store(monkeypatch, "committed")
    async with running_sidecar(engine, tmp_path / "state") as running:
        engine.replies.append(Reply(text="Done."))
        async with agent_of(running, "s", ask()):
            await asyncio.wait_for(stores[0].asked.wait(), LIVENESS)
        await until_states(running, "s", "detached")
        stores[0].open.set()
        await until_states(running, "s", "committed")
        body = json.dumps(ask()).encode()
        url = "/sessions/s/v1/chat/completions"
        got = await running.data.post(url, content=body, headers={"x-stainless-retry-count": "1"})
        assert completion(got).choices[0].message.content == "Done."
        assert len(engine.requests) == 1
        [segment] = await running.segments("s")
        assert sum(segment["full_loss_mask"]) == len(engine.requests[0].output_ids)


async def test_a_retry_that_comes_while_the_step_ends_as_aborted_is_a_call_of_its_own(
    engine: FakeSGLang, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = hold_store(monkeypatch, "aborted")
    async with running_sidecar(engine, tmp_path / "state", retry_window=0) as running:
        held = Held()
        engine.replies.extend([held.reply(), Reply(text="Fresh.")])
        engine.continue_aborted = False
        async with agent_of(running, "s", ask()):
            await held.reached(engine)
        await asyncio.wait_for(stores[0].asked.wait(), LIVENESS)
        body = json.dumps(ask()).encode()
        url = "/sessions/s/v1/chat/completions"
        got = await running.data.post(url, content=body, headers={"x-stainless-retry-count": "1"})
        assert completion(got).choices[0].message.content == "Fresh."
        stores[0].open.set()
        await until_states(running, "s", "committed", "aborted")


async def test_an_agent_that_takes_no_bytes_counts_as_gone(qwen3_dir: Path, tmp_path: Path) -> None:
    async with (
        engine_for(qwen3_dir, incremental=True) as engine,
        running_sidecar(engine, tmp_path / "state", slow_reader=0.3) as running,
    ):
        small_buffers(running)
        engine.replies.append(Reply(text=LONG, chunk_tokens=1, delay=0.0001))
        async with agent_of(running, "s", ask(stream=True)):
            [request] = await engine.wait_requests(1)
            await engine.wait_until(lambda: request.done)
            assert len(request.output_ids) < 4000
            assert request.outcome == "disconnected"
            [step] = (await until_states(running, "s", "detached"))["steps"]
            assert step["delivered"] is False


async def test_a_slow_agent_delays_neither_a_pause_nor_a_finalize(qwen3_dir: Path, tmp_path: Path) -> None:
    async with (
        engine_for(qwen3_dir, incremental=True) as engine,
        running_sidecar(engine, tmp_path / "state") as running,
    ):
        small_buffers(running)
        engine.replies.append(Reply(text=LONG, chunk_tokens=1, delay=0.0001))
        async with agent_of(running, "s", ask(stream=True)):
            [request] = await engine.wait_requests(1)
            await engine.wait_tokens(request, 10)
            paused = await running.post("/v1/rollout/pause", {"timeout_seconds": 10})
            assert paused["quiesced"]
            await running.post("/v1/rollout/resume")
            finalized = await running.finalize("s", timeout_seconds=0.1)
            assert len(finalized["aborted_step_ids"]) == 1


async def test_a_reply_on_its_way_when_the_session_is_finalized_counts_as_delivered(
    qwen3_dir: Path, tmp_path: Path
) -> None:
    async with (
        engine_for(qwen3_dir, incremental=True) as engine,
        running_sidecar(engine, tmp_path / "state") as running,
    ):
        small_buffers(running)
        engine.replies.append(Reply(text="-" * 64 * 1000, chunk_tokens=1))
        async with agent_of(running, "s", ask(stream=True)) as agent:
            [step] = (await until_states(running, "s", "committed"))["steps"]
            assert step["delivered"] is False
            finalizing = asyncio.ensure_future(running.finalize("s"))
            await read_until(agent, b"[DONE]")
            assert (await finalizing)["num_turns"] == 1
        [segment] = await running.segments("s")
        assert segment["extra_info"]["untrainable"] == []
