"""What each flag about weight versions does to a session, from the engine to the trainer's samples."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fake_sglang import FakeSGLang, Reply
from tests.support.chat import Held, ask, completion, follow, joined, payloads, streaming, until_states
from tests.support.running import Running, engine_for, running_sidecar
from tests.support.waiting import until
from tests.trainer_hooks.builders import make_template
from trainer_hooks.slime.samples import expand_segments_to_samples

STREAMS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


@asynccontextmanager
async def serving(qwen3_dir: Path, state_dir: Path, **settings: Any) -> AsyncIterator[Running]:
    """A sidecar with these settings, its engine at version 1."""
    async with (
        engine_for(qwen3_dir, weight_version="1", version_spans=settings.pop("version_spans", True)) as engine,
        running_sidecar(engine, state_dir, **settings) as running,
    ):
        yield running


async def turn(running: Running, session: str, body: dict[str, Any], text: str = "ok") -> dict[str, Any]:
    """One call; the body of the next turn."""
    running.engine.replies.append(Reply(text=text))
    reply = completion(await running.chat(session, body)).choices[0].message
    return follow(body, {"role": "assistant", "content": reply.content}, "go on")


def update(engine: FakeSGLang, version: str) -> None:
    """New weights, as a trainer brings them that pauses the engine and not the sidecar: all calls are aborted."""
    engine.state.abort(abort_all=True)
    engine.set_weight_version(version)


async def straddling(running: Running, session: str, body: dict[str, Any]) -> tuple[list[int], int]:
    """One call whose first ids version 1 sampled and the rest version 2; its ids, and how many are version 1's."""
    held = Held()
    running.engine.replies.append(held.reply())
    await running.open(session, instance_id="i")
    calling = asyncio.ensure_future(running.chat(session, body))
    first = await held.reached(running.engine)
    update(running.engine, "2")
    completion(await calling)
    await running.engine.wait_until(lambda: first.done)
    return running.engine.vocabulary.encode(held.text), len(first.output_ids)


def sampled(segment: dict[str, Any]) -> list[str]:
    """Versions of a segment's sampled tokens."""
    return [version for version in segment["full_versions"] if version != "-1"]


# What is recorded.


async def test_a_step_that_goes_on_after_an_update_has_both_versions(qwen3_dir: Path, tmp_path: Path) -> None:
    async with serving(qwen3_dir, tmp_path) as running:
        ids, old = await straddling(running, "s", ask())
        [segment] = await running.segments("s")
        context = len(segment["tokens"]) - len(ids) - 1
        total = len(segment["tokens"])
        assert segment["full_versions"] == ["-1"] * context + ["1"] * old + ["2"] * (len(ids) + 1 - old)
        assert segment["extra_info"]["version_spans"] == [
            {"start": context, "end": context + old, "version": "1"},
            {"start": context + old, "end": total, "version": "2"},
        ]
        assert segment["extra_info"]["mask_nonlast_version_tokens"] is False
        [sample] = expand_segments_to_samples(make_template(), [segment])
        assert sample.loss_mask == [1] * (len(ids) + 1)
        assert sample.weight_versions == ["1", "2"]
        metadata = sample.metadata
        assert metadata["full_versions"] == segment["full_versions"]
        assert metadata["version_spans"] == segment["extra_info"]["version_spans"]
        for prefix in ("", "dressage_"):
            assert metadata[f"{prefix}partial_rollout"] is True
            assert metadata[f"{prefix}start_token_version"] == "1"
            assert metadata[f"{prefix}end_token_version"] == "2"


async def test_recording_off_leaves_sampled_tokens_unknown(qwen3_dir: Path, tmp_path: Path) -> None:
    async with serving(qwen3_dir, tmp_path, record_token_versions=False) as running:
        ids, _ = await straddling(running, "s", ask())
        [segment] = await running.segments("s")
        assert set(segment["full_versions"]) == {"-1", "unknown"}
        assert sampled(segment) == ["unknown"] * (len(ids) + 1)
        assert segment["full_loss_mask"][-len(ids) :] == [1] * len(ids)
        assert segment["extra_info"]["untrainable"] == []
        [sample] = expand_segments_to_samples(make_template(), [segment])
        assert sample.weight_versions == ["unknown"]
        assert "partial_rollout" not in sample.metadata


# What trains.


async def test_masking_is_told_to_the_hook_and_leaves_the_stored_mask(qwen3_dir: Path, tmp_path: Path) -> None:
    async with serving(qwen3_dir, tmp_path, mask_nonlast_version_tokens=True) as running:
        ids, old = await straddling(running, "s", ask())
        [segment] = await running.segments("s")
        assert segment["extra_info"]["mask_nonlast_version_tokens"] is True
        assert segment["full_loss_mask"][-len(ids) - 1 :] == [1] * (len(ids) + 1)
        [sample] = expand_segments_to_samples(make_template(), [segment])
        assert sample.loss_mask == [0] * old + [1] * (len(ids) + 1 - old)
        assert sample.response_length == len(ids) + 1


async def test_steps_of_too_old_versions_do_not_train(qwen3_dir: Path, tmp_path: Path) -> None:
    async with serving(qwen3_dir, tmp_path, max_version_span=2) as running:
        body = ask()
        for version in ("1", "2", "3"):
            update(running.engine, version)
            body = await turn(running, "s", body)
        [segment] = await running.segments("s")
        step_ids = segment["extra_info"]["step_ids"]
        assert segment["extra_info"]["untrainable"] == [{"step_id": step_ids[0], "reason": "version_span"}]
        trained = [v for v, mask in zip(segment["full_versions"], segment["full_loss_mask"], strict=True) if mask]
        assert list(dict.fromkeys(trained)) == ["2", "3"]
        assert list(dict.fromkeys(sampled(segment))) == ["1", "2", "3"]


async def test_the_rules_of_the_finalization_stay_in_force(qwen3_dir: Path, tmp_path: Path) -> None:
    async with engine_for(qwen3_dir, weight_version="1") as engine:
        async with running_sidecar(engine, tmp_path, max_version_span=1) as running:
            body = await turn(running, "s", ask())
            update(engine, "2")
            await turn(running, "s", body)
            before = await running.segments("s")
        async with running_sidecar(engine, tmp_path, mask_nonlast_version_tokens=True) as running:
            assert await running.segments("s") == before
        assert [one["reason"] for one in before[0]["extra_info"]["untrainable"]] == ["version_span"]


@pytest.mark.parametrize(
    ("rules", "reasons"),
    [
        ({}, []),
        ({"mask_nonlast_version_tokens": True}, ["version_unknown"]),
        ({"max_version_span": 9}, ["version_unknown"]),
    ],
    ids=str,
)
async def test_tokens_of_no_known_version_train_unless_a_rule_needs_it(
    qwen3_dir: Path, tmp_path: Path, rules: dict[str, Any], reasons: list[str]
) -> None:
    """A server without spans, and weights that change inside a call without an abort (`in_place`)."""
    async with serving(qwen3_dir, tmp_path, version_spans=False, **rules) as running:
        held = Held()
        running.engine.replies.append(held.reply())
        await running.open("s", instance_id="i")
        async with streaming(running, "s", ask()) as stream:
            await stream.until_text()  # so that version 1 was named
            running.engine.set_weight_version("2")
            held.open.set()
            await stream.rest()
        [segment] = await running.segments("s")
        assert set(sampled(segment)) == {"unknown"}
        assert [one["reason"] for one in segment["extra_info"]["untrainable"]] == reasons
        assert any(segment["full_loss_mask"]) is not bool(reasons)
        assert expand_segments_to_samples(make_template(), [segment])  # the hook can read it


# One version per session.


def assert_changed(response: httpx.Response) -> None:
    assert response.status_code == 502, response.text
    assert response.headers["x-should-retry"] == "false"
    error = response.json()["error"]
    assert error["code"] == "trajectory_version_changed"
    assert "'s' has steps of weight version 1, and the engine is at 2" in error["message"]


@STREAMS
async def test_without_partial_rollout_a_preempted_step_starts_over_and_shows_nothing_before(
    qwen3_dir: Path, tmp_path: Path, stream: bool
) -> None:
    async with serving(qwen3_dir, tmp_path, partial_rollout=False) as running:
        held = Held()
        running.engine.replies.append(held.reply())
        calling = asyncio.ensure_future(running.chat("s", ask(stream=stream)))
        first = await held.reached(running.engine)
        running.engine.replies.append(Reply(text="another reply"))
        running.engine.continue_aborted = False
        update(running.engine, "2")
        response = await calling
        assert response.status_code == 200
        assert "one" not in response.text
        assert (joined(payloads(response.text)) if stream else completion(response).choices[0].message.content) == (
            "another reply"
        )
        first, second = running.engine.requests
        assert second.input_ids == first.input_ids
        [segment] = await running.segments("s")
        assert set(sampled(segment)) == {"2"}
        assert segment["tokens"] == [*second.input_ids, *second.output_ids]


@STREAMS
async def test_without_partial_rollout_a_session_of_an_old_version_is_told_before_anything_is_sampled(
    qwen3_dir: Path, tmp_path: Path, stream: bool
) -> None:
    async with serving(qwen3_dir, tmp_path, partial_rollout=False) as running:
        body = await turn(running, "s", ask())
        update(running.engine, "2")
        await turn(running, "other", ask())  # the sidecar learns of the update
        assert_changed(await running.chat("s", {**body, "stream": stream}))
        assert len(running.engine.requests) == 2
        [segment] = await running.segments("s")  # what it has still trains
        assert set(sampled(segment)) == {"1"}
        assert any(segment["full_loss_mask"])


@STREAMS
async def test_without_partial_rollout_a_reply_of_a_new_version_is_dropped_and_leaves_no_trace(
    qwen3_dir: Path, tmp_path: Path, stream: bool
) -> None:
    """Nobody has told the sidecar of the update: it sees it in the reply."""
    async with serving(qwen3_dir, tmp_path, partial_rollout=False) as running:
        body = await turn(running, "s", ask())
        before = await running.view("s")
        running.engine.set_weight_version("2")
        running.engine.replies.append(Reply(text="too late"))
        response = await running.chat("s", {**body, "stream": stream})
        assert_changed(response)
        assert "late" not in response.text
        assert await running.view("s") == before


async def test_without_partial_rollout_a_step_that_was_preempted_in_a_later_turn_is_dropped(
    qwen3_dir: Path, tmp_path: Path
) -> None:
    async with serving(qwen3_dir, tmp_path, partial_rollout=False) as running:
        body = await turn(running, "s", ask())
        held = Held()
        running.engine.replies.append(held.reply())
        calling = asyncio.ensure_future(running.chat("s", body))
        await held.reached(running.engine, 1)
        paused = await running.post("/v1/rollout/pause", {})
        assert paused["quiesced"]
        running.engine.set_weight_version("2")
        await running.post("/v1/rollout/resume", {"pause_id": paused["pause_id"]})
        assert_changed(await calling)
        assert len(running.engine.requests) == 2  # the resume has told of the new version: nothing was sent


async def test_without_partial_rollout_an_error_after_a_heartbeat_is_an_event(
    qwen3_dir: Path, tmp_path: Path
) -> None:
    async with serving(qwen3_dir, tmp_path, partial_rollout=False, heartbeat_interval=0.05) as running:
        body = await turn(running, "s", ask())
        held = Held()
        running.engine.replies.append(held.reply())
        async with streaming(running, "s", body) as stream:
            assert stream.response.status_code == 200
            assert (await stream.event()).startswith(":")
            running.engine.set_weight_version("2")
            held.open.set()
            events = await stream.rest()
        assert joined(events) == ""
        assert events[-1]["error"]["code"] == "trajectory_version_changed"
        await until_states(running, "s", "committed")


async def test_without_partial_rollout_calls_of_one_version_are_as_ever(qwen3_dir: Path, tmp_path: Path) -> None:
    async with serving(qwen3_dir, tmp_path, partial_rollout=False) as running:
        body = ask()
        for text in ("one", "two", "three"):
            body = await turn(running, "s", body, text)
        [segment] = await running.segments("s")
        assert set(sampled(segment)) == {"1"}
        assert len(segment["extra_info"]["step_ids"]) == 3
        running.engine.assert_i1("s")


async def test_without_partial_rollout_the_first_of_two_concurrent_steps_names_the_version(
    qwen3_dir: Path, tmp_path: Path
) -> None:
    async with serving(qwen3_dir, tmp_path, partial_rollout=False) as running:
        held = Held()
        running.engine.replies.append(held.reply())
        slow = asyncio.ensure_future(running.chat("s", ask("slow")))
        await held.reached(running.engine)
        await turn(running, "s", ask("quick"))
        running.engine.state.abort(abort_all=True)
        running.engine.set_weight_version("2")
        held.open.set()
        assert_changed(await slow)
        await until(lambda: not running.sidecar.controller.active, "no call in flight")


# Runs.


async def test_a_session_belongs_to_one_run(qwen3_dir: Path, tmp_path: Path) -> None:
    """A trainer that starts again counts its versions from 1 again, and they are other weights."""
    async with serving(qwen3_dir, tmp_path) as running:
        await running.open("s", run_id="a")
        await turn(running, "s", ask())
        await running.open("s", run_id="a")
        await running.open("s")  # names none, and asks for none
        refused = await running.control.post("/session/open", json={"session_id": "s", "run_id": "b"})
        assert refused.status_code == 409
        assert refused.headers["x-should-retry"] == "false"
        assert refused.json()["error"]["code"] == "session_of_another_run"
        assert "has steps of run 'a', and run_id is 'b'" in refused.json()["error"]["message"]
        assert (await running.view("s"))["run_id"] == "a"
        [segment] = await running.segments("s")
        assert segment["extra_info"]["run_id"] == "a"


@pytest.mark.parametrize("began", ["unnamed", "unused"])
async def test_a_session_without_a_run_or_without_steps_joins_the_one_that_is_named(
    qwen3_dir: Path, tmp_path: Path, began: str
) -> None:
    async with engine_for(qwen3_dir) as engine:
        async with running_sidecar(engine, tmp_path) as running:
            if began == "unnamed":
                await turn(running, "s", ask())
            else:
                await running.open("s", run_id="a")
            await running.open("s", run_id="b")
            await turn(running, "s", ask())
        async with running_sidecar(engine, tmp_path) as running:
            assert (await running.view("s"))["run_id"] == "b"
