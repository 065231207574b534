"""A step whose agent left waits for its retry across restarts, and goes on token-exact from what is stored."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sidecar.sessions import waiting
from sidecar.store.protocol import StoreError
from sidecar.tito.records import StepRecord
from tests.fake_sglang import FakeSGLang, Reply, faults
from tests.recovery.leaving import RETRY, detach, leave
from tests.routing_replay.rows import ENGINE, SETTINGS, assert_rows
from tests.support.chat import Held, ask, completion, follow, joined, payloads, until_states
from tests.support.running import Running, engine_for, running_sidecar
from tests.support.waiting import until

BOTH_WAYS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
WHOLE = Held().text


def text_of(response: Any) -> str:
    """The text of a reply, streamed or not."""
    assert response.status_code == 200, response.text
    if response.headers["content-type"].startswith("text/event-stream"):
        return joined(payloads(response.text))
    return completion(response).choices[0].message.content or ""


async def one_turn(running: Running, body: dict[str, Any], said: str = "One.") -> dict[str, Any]:
    """A turn in which the engine says `said`; the body of the next."""
    running.engine.replies.append(Reply(text=said))
    answer = completion(await running.chat("s", body)).choices[0].message.model_dump(exclude_none=True)
    return follow(body, answer, "Go on.")


async def states(running: Running) -> list[str]:
    return [step["state"] for step in (await running.view("s"))["steps"]]


def trained(segment: dict[str, Any], name: str) -> list[Any]:
    return [value for value, mask in zip(segment[name], segment["full_loss_mask"], strict=True) if mask]


@BOTH_WAYS
async def test_a_marked_retry_goes_on_from_what_was_stored(
    engine: FakeSGLang, tmp_path: Path, stream: bool
) -> None:
    engine.set_weight_version("1")
    async with running_sidecar(engine, tmp_path / "state") as running:
        body = {**await one_turn(running, ask()), "stream": stream}
        left = await detach(running, "s", body)
        [_, before] = (await until_states(running, "s", "committed", "detached"))["steps"]
    engine.set_weight_version("2")
    async with running_sidecar(engine, tmp_path / "state") as running:
        [_, step] = (await running.view("s"))["steps"]
        assert {**step, "sampling": None} == {**before, "sampling": None}
        response = await running.chat("s", body, **RETRY)
        assert text_of(response) == WHOLE
        assert response.headers["x-step-id"] == before["step_id"]
        first, second, third = engine.requests
        assert second is left
        assert third.input_ids == second.input_ids + second.output_ids
        engine.assert_i1(session="s")
        [_, step] = (await running.view("s"))["steps"]
        assert (step["state"], step["delivered"], step["versions"]) == ("committed", True, ["1", "2"])
        [segment] = await running.segments("s")
        assert segment["tokens"] == third.input_ids + third.output_ids
        asked = (first, second, third)
        assert trained(segment, "tokens") == [token for request in asked for token in request.output_ids]
        assert trained(segment, "full_logprobs") == [value for one in asked for value in one.output_logprobs]
        versions = ["1"] * len(first.output_ids + second.output_ids) + ["2"] * len(third.output_ids)
        assert trained(segment, "full_versions") == versions
        assert segment["extra_info"]["untrainable"] == []


@BOTH_WAYS
async def test_a_step_goes_on_through_any_number_of_restarts(
    engine: FakeSGLang, tmp_path: Path, stream: bool
) -> None:
    body = ask(stream=stream)
    async with running_sidecar(engine, tmp_path / "state") as running:
        await detach(running, "s", body)
    async with running_sidecar(engine, tmp_path / "state") as running:
        assert await states(running) == ["detached"]  # in memory, and nobody comes
    held = Held(text=" 4 5 6 7", after=2)
    engine.replies.append(held.reply())
    engine.continue_aborted = False
    async with running_sidecar(engine, tmp_path / "state") as running:
        await leave(running, "s", body, held, 1, **RETRY)
        engine.continue_aborted = True
        [step] = (await running.view("s"))["steps"]
        assert (step["state"], step["output_tokens"]) == ("detached", 5)
    async with running_sidecar(engine, tmp_path / "state") as running:
        assert text_of(await running.chat("s", body, x_stainless_retry_count="2")) == "one two three 4 5 6 7"
        first, second, third = engine.requests
        assert second.input_ids == first.input_ids + first.output_ids
        assert third.input_ids == second.input_ids + second.output_ids
        assert await states(running) == ["committed"]
        [segment] = await running.segments("s")
        assert segment["tokens"] == third.input_ids + third.output_ids


async def test_the_conversation_goes_on_from_the_resumed_step(engine: FakeSGLang, tmp_path: Path) -> None:
    async with running_sidecar(engine, tmp_path / "state") as running:
        await detach(running, "s", ask())
    async with running_sidecar(engine, tmp_path / "state") as running:
        answer = completion(await running.chat("s", ask(), **RETRY)).choices[0].message
        body = await one_turn(running, follow(ask(), answer.model_dump(exclude_none=True), "Go on."))
    async with running_sidecar(engine, tmp_path / "state") as running:
        await one_turn(running, body)
        engine.assert_i1(session="s")
        [segment] = await running.segments("s")
        last = engine.requests[-1]
        assert segment["tokens"] == last.input_ids + last.output_ids


@pytest.mark.parametrize(
    ("body", "headers"),
    [(ask("Another"), RETRY), (ask(temperature=0.5), RETRY), (ask(), {}), (ask(stream=True), RETRY)],
    ids=["other text", "other sampling", "no mark", "other way"],
)
async def test_another_call_is_a_step_of_its_own_and_the_retry_still_resumes(
    engine: FakeSGLang, tmp_path: Path, body: dict[str, Any], headers: dict[str, str]
) -> None:
    async with running_sidecar(engine, tmp_path / "state") as running:
        left = await detach(running, "s", ask())
    engine.continue_aborted = False
    async with running_sidecar(engine, tmp_path / "state") as running:
        engine.replies.append(Reply(text="Another."))
        assert text_of(await running.chat("s", body, **headers)) == "Another."
        assert engine.requests[1].input_ids[: len(left.input_ids)] != left.input_ids + left.output_ids
        assert await states(running) == ["committed", "detached"]
        engine.continue_aborted = True
        assert text_of(await running.chat("s", ask(), **RETRY)) == (WHOLE if headers else "Another.")


async def test_without_a_retry_it_ends_when_its_window_does(engine: FakeSGLang, tmp_path: Path) -> None:
    async with running_sidecar(engine, tmp_path / "state") as running:
        body = await one_turn(running, ask())
        left = await detach(running, "s", body)
        [_, step] = (await running.view("s"))["steps"]
        [_, record] = (await running.sidecar._store.load_session("s")).steps  # type: ignore[union-attr]
    engine.continue_aborted = False
    window = time.time() - record.created_at + 1.0
    async with running_sidecar(engine, tmp_path / "state", retry_window=window) as running:
        assert await states(running) == ["committed", "detached"]
        [_, aborted] = (await until_states(running, "s", "committed", "aborted"))["steps"]
        assert time.time() >= record.created_at + window
        assert (aborted["step_id"], aborted["delivered"]) == (step["step_id"], False)
        assert aborted["output_tokens"] == len(left.output_ids)
        assert not running.sidecar.registry._sessions["s"].waiting
        engine.replies.append(Reply(text="Fresh."))
        assert text_of(await running.chat("s", body, **RETRY)) == "Fresh."
        assert engine.requests[-1].input_ids == left.input_ids
        segments = await running.segments("s")
        reasons = [entry for segment in segments for entry in segment["extra_info"]["untrainable"]]
        assert reasons == [{"step_id": step["step_id"], "reason": "overtaken"}]


async def test_a_window_that_ended_while_no_sidecar_ran_is_over(engine: FakeSGLang, tmp_path: Path) -> None:
    async with running_sidecar(engine, tmp_path / "state") as running:
        await detach(running, "s", ask())
    engine.continue_aborted = False
    async with running_sidecar(engine, tmp_path / "state", retry_window=0) as running:
        engine.replies.append(Reply(text="Fresh."))
        assert text_of(await running.chat("s", ask(), **RETRY)) == "Fresh."
        assert await states(running) == ["aborted", "committed"]
    async with running_sidecar(engine, tmp_path / "state") as running:
        assert await states(running) == ["aborted", "committed"]


async def test_finalizing_ends_what_waits_and_lists_it(engine: FakeSGLang, tmp_path: Path) -> None:
    async with running_sidecar(engine, tmp_path / "state") as running:
        body = await one_turn(running, ask())
        await detach(running, "s", body)
    async with running_sidecar(engine, tmp_path / "state") as running:
        [_, step] = (await running.view("s"))["steps"]
        live = running.sidecar.registry._sessions["s"]
        finalized = await running.finalize("s")
        assert finalized["aborted_step_ids"] == [step["step_id"]]
        assert not live.waiting
        assert (await running.chat("s", body, **RETRY)).status_code == 409
        assert await states(running) == ["committed", "aborted"]
        [segment] = (await running.post("/trajectory/read", {"session_id": "s"}))["data"]
        assert segment["extra_info"]["untrainable"] == [{"step_id": step["step_id"], "reason": "aborted"}]
        assert trained(segment, "tokens") == engine.requests[0].output_ids


async def test_a_session_of_nothing_but_a_waiting_step_is_finalized(engine: FakeSGLang, tmp_path: Path) -> None:
    async with running_sidecar(engine, tmp_path / "state") as running:
        await detach(running, "s", ask())
    async with running_sidecar(engine, tmp_path / "state") as running:
        assert (await running.finalize("s"))["num_steps"] == 0
        [segment] = (await running.post("/trajectory/read", {"session_id": "s"}))["data"]
        assert not any(segment["full_loss_mask"])


async def test_discarding_forgets_what_waits(engine: FakeSGLang, tmp_path: Path) -> None:
    async with running_sidecar(engine, tmp_path / "state") as running:
        await detach(running, "s", ask())
    async with running_sidecar(engine, tmp_path / "state") as running:
        await running.view("s")
        live = running.sidecar.registry._sessions["s"]
        assert (await running.post("/session/discard", {"session_id": "s"}))["session_removed"]
        assert not live.waiting
    async with running_sidecar(engine, tmp_path / "state") as running:
        assert await states(running) == []


@BOTH_WAYS
async def test_two_choices_both_go_on(engine: FakeSGLang, tmp_path: Path, stream: bool) -> None:
    body = ask(n=2, stream=stream, seed=7)
    one, two = Held(), Held(text="ten nine eight seven six five four three two one")
    async with running_sidecar(engine, tmp_path / "state") as running:
        engine.replies.extend([one.reply(), two.reply()])
        call = asyncio.ensure_future(running.chat("s", body))
        await one.reached(engine, 0)
        await two.reached(engine, 1)
        seeds = [request.sampling_params["sampling_seed"] for request in engine.requests]
        given = dict(zip(seeds, (one.text, two.text), strict=True))  # whichever call came first
        call.cancel()
        before = (await until_states(running, "s", "detached", "detached"))["steps"]
    async with running_sidecar(engine, tmp_path / "state") as running:
        again = await running.chat("s", body, **RETRY)
        assert again.headers["x-step-id"].split(",") == [step["step_id"] for step in before]
        if stream:
            texts = [joined(payloads(again.text), index=index) for index in (0, 1)]
        else:
            texts = [choice.message.content or "" for choice in completion(again).choices]
        assert texts == [given[7], given[8]]
        seeds = [request.sampling_params["sampling_seed"] for request in engine.requests]
        assert sorted(seeds[:2]) == sorted(seeds[2:]) == [7, 8]
        assert len(engine.requests) == 4


async def test_of_two_choices_the_finished_one_is_replayed(engine: FakeSGLang, tmp_path: Path) -> None:
    body, held = ask(n=2), Held()
    async with running_sidecar(engine, tmp_path / "state") as running:
        engine.replies.extend([Reply(text="quick"), held.reply()])
        call = asyncio.ensure_future(running.chat("s", body))
        await held.reached(engine, 1)
        await until_states(running, "s", "committed", "running")
        call.cancel()
        before = (await until_states(running, "s", "committed", "detached"))["steps"]
    async with running_sidecar(engine, tmp_path / "state") as running:
        again = await running.chat("s", body, **RETRY)
        assert sorted(again.headers["x-step-id"].split(",")) == sorted(step["step_id"] for step in before)
        texts = [choice.message.content for choice in completion(again).choices]
        assert sorted(map(str, texts)) == sorted(["quick", WHOLE])
        assert len(engine.requests) == 3


@pytest.mark.parametrize(
    "changes",
    [{"sampling_pin": {"temperature": 0.7}}, {"max_output_tokens": 50}, {"token_build_mode": "snapshot"}],
    ids=["pin", "limit", "mode"],
)
async def test_what_would_be_sampled_otherwise_now_is_not_gone_on_with(
    engine: FakeSGLang, tmp_path: Path, changes: dict[str, Any]
) -> None:
    async with running_sidecar(engine, tmp_path / "state") as running:
        body = await one_turn(running, ask())
        await detach(running, "s", body)
        [_, left] = (await running.view("s"))["steps"]
    engine.continue_aborted = False
    async with running_sidecar(engine, tmp_path / "state", **changes) as running:
        engine.replies.append(Reply(text="Fresh."))
        response = await running.chat("s", body, **RETRY)
        assert text_of(response) == "Fresh."
        assert response.headers["x-step-id"] != left["step_id"]
        assert await states(running) == ["committed", "aborted", "committed"]
        segments = await running.segments("s")
        reasons = [entry for segment in segments for entry in segment["extra_info"]["untrainable"]]
        assert reasons == [{"step_id": left["step_id"], "reason": "overtaken"}]


async def test_two_retries_at_once_follow_one_step(engine: FakeSGLang, tmp_path: Path) -> None:
    async with running_sidecar(engine, tmp_path / "state") as running:
        await detach(running, "s", ask())
    async with running_sidecar(engine, tmp_path / "state") as running:
        both = await asyncio.gather(*(running.chat("s", ask(), x_stainless_retry_count=str(n)) for n in (1, 2)))
        assert [text_of(response) for response in both] == [WHOLE, WHOLE]
        assert len({response.headers["x-step-id"] for response in both}) == 1
        assert len(engine.requests) == 2
        assert await states(running) == ["committed"]


async def test_a_resumed_step_that_fails_ends_in_the_store_too(engine: FakeSGLang, tmp_path: Path) -> None:
    async with running_sidecar(engine, tmp_path / "state") as running:
        await detach(running, "s", ask())
    async with running_sidecar(engine, tmp_path / "state") as running:
        engine.fail_next(faults.HttpError(500))
        assert (await running.chat("s", ask(), **RETRY)).status_code == 503
        assert await states(running) == ["aborted"]
    async with running_sidecar(engine, tmp_path / "state") as running:
        assert await states(running) == ["aborted"]


async def test_a_retry_that_is_refused_leaves_the_step_waiting(engine: FakeSGLang, tmp_path: Path) -> None:
    async with running_sidecar(engine, tmp_path / "state") as running:
        await detach(running, "s", ask())
    async with running_sidecar(engine, tmp_path / "state", context_window=5) as running:
        assert (await running.chat("s", ask(), **RETRY)).status_code == 400
        assert await states(running) == ["detached"]
    async with running_sidecar(engine, tmp_path / "state") as running:
        assert text_of(await running.chat("s", ask(), **RETRY)) == WHOLE


@pytest.mark.parametrize("changes", [{"frequency_penalty": 0.5}, {}], ids=["penalty", "one version"])
async def test_what_cannot_go_on_from_ids_starts_over_as_the_same_step(
    engine: FakeSGLang, tmp_path: Path, changes: dict[str, Any]
) -> None:
    settings = {} if changes else {"partial_rollout": False}
    async with running_sidecar(engine, tmp_path / "state", **settings) as running:
        left = await detach(running, "s", ask(**changes))
        [before] = (await running.view("s"))["steps"]
    async with running_sidecar(engine, tmp_path / "state", **settings) as running:
        assert text_of(await running.chat("s", ask(**changes), **RETRY)) == WHOLE
        assert left.output_ids
        assert engine.requests[-1].input_ids == left.input_ids
        [step] = (await running.view("s"))["steps"]
        assert (step["step_id"], step["state"]) == (before["step_id"], "committed")
        assert step["output_tokens"] == len(engine.requests[-1].output_ids)


async def test_a_stop_string_is_found_across_the_seam(engine: FakeSGLang, tmp_path: Path) -> None:
    body = ask(stop=["two three four"])
    async with running_sidecar(engine, tmp_path / "state") as running:
        await detach(running, "s", body)
    async with running_sidecar(engine, tmp_path / "state") as running:
        assert text_of(await running.chat("s", body, **RETRY)) == "one "


async def test_a_step_cut_off_by_the_shutdown_goes_on_after_it(engine: FakeSGLang, tmp_path: Path) -> None:
    held = Held()
    engine.replies.append(held.reply())
    async with running_sidecar(engine, tmp_path / "state", drain_seconds=0) as running:
        call = asyncio.ensure_future(running.chat("s", ask()))
        first = await held.reached(engine)
        [before] = (await running.view("s"))["steps"]
        await running.sidecar.registry.stop(0)
        assert (await call).status_code == 503
    async with running_sidecar(engine, tmp_path / "state") as running:
        response = await running.chat("s", ask(), **RETRY)
        assert text_of(response) == held.text
        assert response.headers["x-step-id"] == before["step_id"]
        assert engine.requests[1].input_ids == first.input_ids + first.output_ids


async def test_a_waiting_step_keeps_its_session_in_its_run(engine: FakeSGLang, tmp_path: Path) -> None:
    async with running_sidecar(engine, tmp_path / "state") as running:
        await running.open("s", run_id="a")
        await detach(running, "s", ask())
    async with running_sidecar(engine, tmp_path / "state") as running:
        await running.post("/session/open", {"session_id": "s", "run_id": "b"}, status=409)


@pytest.mark.parametrize("update", [False, True], ids=["same weights", "other weights"])
async def test_rows_of_routing_replay_are_asked_for_again(qwen3_dir: Path, tmp_path: Path, update: bool) -> None:
    """They are not stored with a partial reply: the engine makes them anew when it goes on, if it can."""
    async with engine_for(qwen3_dir, **ENGINE) as engine:
        engine.set_weight_version("1")
        async with running_sidecar(engine, tmp_path / "state", **SETTINGS) as running:
            body = await one_turn(running, ask())
            await detach(running, "s", body)
            [_, step] = (await running.view("s"))["steps"]
        if update:
            engine.set_weight_version("2")
        async with running_sidecar(engine, tmp_path / "state", **SETTINGS) as running:
            assert text_of(await running.chat("s", body, **RETRY)) == WHOLE
            segments = await running.segments("s")
            lost = {"step_id": step["step_id"], "reason": "replay_rows"}
            assert [one for each in segments for one in each["extra_info"]["untrainable"]] == [lost] * update
            if not update:
                assert_rows(segments[0])


class Broken:
    """A store that cannot store how a step ended, until it is mended."""

    def __init__(self, running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tries = 0
        self.mended = False
        self._save_step = running.sidecar._store.save_step
        monkeypatch.setattr(running.sidecar._store, "save_step", self.save_step)
        monkeypatch.setattr(waiting, "_AGAIN", 0.02)

    async def save_step(self, record: StepRecord, blobs: Mapping[bytes, bytes], *fence: Any) -> None:
        if record.state == "aborted" and not self.mended:
            self.tries += 1
            raise StoreError("the disk is full")
        await self._save_step(record, blobs, *fence)


async def test_an_end_that_cannot_be_stored_is_stored_later(
    engine: FakeSGLang, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_sidecar(engine, tmp_path / "state", retry_window=0.2) as running:
        broken = Broken(running, monkeypatch)
        await detach(running, "s", ask())
        await until(lambda: broken.tries > 3, "attempts to store the end")
        assert await states(running) == ["detached"]
        response = await running.control.post("/session/finalize", json={"session_id": "s"})
        assert response.status_code == 503
        assert await states(running) == ["detached"]
        broken.mended = True
        [step] = (await until_states(running, "s", "aborted"))["steps"]
        assert (await running.finalize("s"))["aborted_step_ids"] == [step["step_id"]]
    async with running_sidecar(engine, tmp_path / "state") as running:
        assert await states(running) == ["aborted"]


async def test_a_step_whose_end_is_not_stored_yet_can_still_be_resumed(
    engine: FakeSGLang, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_sidecar(engine, tmp_path / "state", retry_window=0.05) as running:
        broken = Broken(running, monkeypatch)
        monkeypatch.setattr(waiting, "_AGAIN", 60)
        await detach(running, "s", ask())
        await until(lambda: broken.tries == 2, "two attempts to store the end")
        await until(lambda: len(running.sidecar.registry._sessions["s"].waiting) == 1, "the step that waits")
        assert text_of(await running.chat("s", ask(), **RETRY)) == WHOLE
        assert await states(running) == ["committed"]
