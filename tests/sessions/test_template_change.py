"""A restart with another `--chat-template`: no segment goes on under a template that did not make it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from adapters.models.templates import template_file
from sidecar.model_files import read_model
from tests.fake_sglang import FakeSGLang
from tests.sessions.agent import Agent, check_trained_once, for_template, prompt_text, reasons, trained
from tests.support.chat import call_text, tool
from tests.support.running import running_sidecar

KEEPS = {"chat_template": "qwen3-keep-thinking"}
THOUGHT = "<think>\nOne.\n</think>\n\n"


async def test_the_next_step_is_rendered_in_full_and_the_one_after_appends(
    engine: FakeSGLang, tmp_path: Path, qwen3_dir: Path
) -> None:
    tools = [tool()]
    agent = Agent(tools=tools)
    async with running_sidecar(engine, tmp_path / "state") as running:
        await agent.turn(running, "What is it?", THOUGHT + call_text(at=1))
        await agent.turn(running, agent.results("a cat"), "A cat.")
    async with running_sidecar(engine, tmp_path / "state", **KEEPS) as running:
        await agent.turn(running, "Sure?", "Yes.")
        expected = for_template(agent.whole[:-1])
        await agent.turn(running, "Really?", "Yes!")
        view = await running.view("s")
        finalized = await running.finalize("s", reward=1.0)
        segments = await running.segments("s")
    file = template_file(KEEPS["chat_template"])
    assert file is not None
    reference: Any = AutoTokenizer.from_pretrained(qwen3_dir)
    text = reference.apply_chat_template(
        expected, tools=tools, add_generation_prompt=True, tokenize=False, chat_template=file.read_text()
    )
    _, second, third, fourth = engine.requests
    assert prompt_text(engine, third) == text
    assert "One." in text
    assert fourth.input_ids[: len(third.input_ids) + len(third.output_ids)] == third.input_ids + third.output_ids

    assert reasons(segments) == ["root", "template_changed"]
    assert [segment["tokens"] for segment in segments] == [r.input_ids + r.output_ids for r in (second, fourth)]
    assert trained(segments[1]) == third.output_ids + fourth.output_ids
    check_trained_once(segments, engine.requests)
    own, ours = (read_model(str(qwen3_dir), chosen).chat_template for chosen in (None, file))
    hashes = [hashlib.sha256(source.encode()).hexdigest() for source in (own, ours)]
    assert [segment["extra_info"]["template_sha256"] for segment in segments] == hashes
    assert [segment["reward"] for segment in segments] == [None, 1.0]
    assert (finalized["num_turns"], finalized["history_rewritten"]) == (4, False)
    assert [step["parent"] for step in view["steps"]] == [None, *agent.step_ids[:3]]
    assert view["steps"][2]["break_reason"]["segment_reason"] == "template_changed"
    assert view["steps"][3]["break_reason"] is None


@pytest.mark.parametrize("again", [KEEPS, {}], ids=["the same", "the first"])
async def test_a_restart_changes_a_segment_only_with_its_template(
    engine: FakeSGLang, tmp_path: Path, again: dict[str, Any]
) -> None:
    agent = Agent()
    for chosen in (KEEPS, KEEPS, again):
        async with running_sidecar(engine, tmp_path / "state", **chosen) as running:
            await agent.turn(running, "And?", THOUGHT + "More.")
    async with running_sidecar(engine, tmp_path / "state", **again) as running:
        segments = await running.segments("s")
    assert reasons(segments) == (["root"] if again else ["root", "template_changed"])
    check_trained_once(segments, engine.requests)


async def test_a_branch_from_before_the_change_is_not_continued_either(engine: FakeSGLang, tmp_path: Path) -> None:
    agent = Agent()
    async with running_sidecar(engine, tmp_path / "state") as running:
        first = await agent.turn(running, "What is it?", "A cat.")
    other = Agent()
    other.messages, other.whole = list(agent.messages), list(agent.whole)
    async with running_sidecar(engine, tmp_path / "state", **KEEPS) as running:
        await agent.turn(running, "Sure?", "Yes.")
        await other.turn(running, "Why?", "Because.")
        segments = await running.segments("s")
    assert sorted(reasons(segments)) == ["root", "template_changed", "template_changed"]
    check_trained_once(segments, engine.requests)
    assert [trained(segment) for segment in segments].count(first.output_ids) == 1
