"""A restart with another tokenizer and the same chat template: ids of two vocabularies never meet in a segment."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from sidecar.model_files import read_model
from sidecar.tito.codec import Codec
from tests.fake_sglang import FakeSGLang, Reply
from tests.sessions.agent import Agent, check_trained_once, prompt_text, reasons, trained
from tests.store.older import downgrade_file
from tests.support.chat import ask, completion, user
from tests.support.running import engine_for, running_sidecar


def _sha256(directory: Path) -> str:
    return Codec(read_model(str(directory)).tokenizer).sha256


def _rewritten(source: Path, directory: Path, *swapped: str) -> Path:
    """A model's directory with `tokenizer.json` laid out anew, and the ids of two vocabulary entries swapped."""
    directory.mkdir()
    shutil.copy(source / "tokenizer_config.json", directory)
    state = json.loads((source / "tokenizer.json").read_text(encoding="utf-8"))
    vocab = state["model"]["vocab"]
    if swapped:
        one, other = swapped
        vocab[one], vocab[other] = vocab[other], vocab[one]
    (directory / "tokenizer.json").write_text(json.dumps(state), encoding="utf-8")
    return directory


@pytest.fixture(scope="module")
def other_dir(qwen3_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Qwen3 with the ids of ` cat` and ` dog` swapped."""
    return _rewritten(qwen3_dir, tmp_path_factory.mktemp("models") / "other", "Ġcat", "Ġdog")


async def test_the_next_step_is_encoded_anew_and_the_one_after_appends(
    engine: FakeSGLang, tmp_path: Path, qwen3_dir: Path, other_dir: Path
) -> None:
    agent = Agent()
    async with running_sidecar(engine, tmp_path / "state") as running:
        first = await agent.turn(running, "What is it?", "I see a cat.")
    async with engine_for(other_dir) as later, running_sidecar(later, tmp_path / "state") as running:
        second = await agent.turn(running, "Sure?", "Yes, a cat.")
        third = await agent.turn(running, "Really?", "Yes!")
        view = await running.view("s")
        segments = await running.segments("s")
    assert prompt_text(later, second).count("I see a cat.") == 1, "the words of the first reply, in the new ids"
    sampled = [*first.input_ids, *first.output_ids]
    assert second.input_ids[: len(sampled)] != sampled
    assert third.input_ids[: len(second.input_ids) + len(second.output_ids)] == second.input_ids + second.output_ids

    assert reasons(segments) == ["root", "tokenizer_changed"]
    assert [segment["tokens"] for segment in segments] == [r.input_ids + r.output_ids for r in (first, third)]
    assert trained(segments[1]) == second.output_ids + third.output_ids
    check_trained_once(segments, [first, second, third])
    told = [(one["extra_info"]["tokenizer"], one["extra_info"]["tokenizer_sha256"]) for one in segments]
    assert told == [(str(path), _sha256(path)) for path in (qwen3_dir, other_dir)]
    assert len({one["extra_info"]["template_sha256"] for one in segments}) == 1

    steps = view["steps"]
    assert [step["parent"] for step in steps] == [None, *agent.step_ids[:2]]
    assert steps[1]["break_reason"] == {
        "segment_reason": "tokenizer_changed",
        "message_index": None,
        "field": "tokenizer",
    }
    assert steps[2]["break_reason"] is None
    assert [step["tokenizer"] for step in steps] == [str(qwen3_dir), str(other_dir), str(other_dir)]
    assert [step["tokenizer_sha256"] for step in steps] == [told[0][1], told[1][1], told[1][1]]


async def test_the_same_tokenizer_in_another_place_and_layout_goes_on(
    engine: FakeSGLang, tmp_path: Path, qwen3_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its place is recorded so that it can be found from any directory."""
    moved = _rewritten(qwen3_dir, tmp_path / "moved")
    monkeypatch.chdir(tmp_path)
    agent = Agent()
    async with running_sidecar(engine, tmp_path / "state") as running:
        await agent.turn(running, "What is it?", "A cat.")
    async with running_sidecar(engine, tmp_path / "state", tokenizer="./moved") as running:
        await agent.turn(running, "Sure?", "Yes.")
        body = (await running.control.get("/integration/capabilities")).json()
        [segment] = await running.segments("s")
    engine.assert_i1(session="s")
    assert segment["extra_info"]["tokenizer"] == body["tokenizer"] == str(moved)
    assert segment["extra_info"]["tokenizer_sha256"] == body["tokenizer_sha256"] == _sha256(qwen3_dir)


async def test_a_reply_that_is_continued_is_encoded_anew_too(
    engine: FakeSGLang, tmp_path: Path, other_dir: Path
) -> None:
    said = Reply(text="I see a cat", finish="length")
    agent = Agent()
    async with running_sidecar(engine, tmp_path / "state") as running:
        first = await agent.turn(running, "What is it?", said)
    body: dict[str, Any] = {"model": "m", "messages": agent.messages, "continue_final_message": True}
    async with engine_for(other_dir) as later, running_sidecar(later, tmp_path / "state") as running:
        later.replies.append(Reply(text=" and a dog."))
        completion(await running.chat("s", body))
        segments = await running.segments("s")
    [second] = later.requests
    assert prompt_text(later, second).endswith("I see a cat")
    assert second.input_ids[-1] != first.output_ids[-1], "` cat` has another id now"
    assert reasons(segments) == ["root", "tokenizer_changed"]
    check_trained_once(segments, [first, second])


async def test_a_replayed_reply_shows_no_token_texts_of_the_wrong_vocabulary(
    engine: FakeSGLang, tmp_path: Path, other_dir: Path
) -> None:
    body = {**ask(messages=[user("What is it?")]), "logprobs": True}
    async with running_sidecar(engine, tmp_path / "state") as running:
        engine.replies.append(Reply(text="I see a cat."))
        answer = completion(await running.chat("s", body))
        assert answer.choices[0].logprobs is not None
        again = completion(await running.chat("s", body, x_stainless_retry_count="1"))
        assert again.choices[0].logprobs == answer.choices[0].logprobs
    async with engine_for(other_dir) as later, running_sidecar(later, tmp_path / "state") as running:
        again = completion(await running.chat("s", body, x_stainless_retry_count="1"))
    assert not later.requests
    assert again.choices[0].message.content == "I see a cat."
    assert again.choices[0].logprobs is None


async def test_steps_of_a_version_that_recorded_no_tokenizer_are_not_gone_on_from(
    engine: FakeSGLang, tmp_path: Path, qwen3_dir: Path
) -> None:
    """Theirs may have been any; the upgrade costs a segment and loses nothing."""
    agent = Agent()
    async with running_sidecar(engine, tmp_path / "state") as running:
        await agent.turn(running, "What is it?", "A cat.")
    await downgrade_file(tmp_path / "state" / "tito.db")
    async with running_sidecar(engine, tmp_path / "state") as running:
        await agent.turn(running, "Sure?", "Yes.")
        await agent.turn(running, "Really?", "Yes!")
        segments = await running.segments("s")
    assert reasons(segments) == ["root", "tokenizer_changed"]
    assert [one["extra_info"]["tokenizer"] for one in segments] == [None, str(qwen3_dir)]
    assert [one["extra_info"]["tokenizer_sha256"] for one in segments] == [None, _sha256(qwen3_dir)]
    check_trained_once(segments, engine.requests)
