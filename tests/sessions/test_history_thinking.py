"""`--history-thinking` through the running sidecar: what the engine gets, what trains, and what is recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from tests.fake_sglang import FakeSGLang
from tests.sessions.agent import Agent, check_trained_once, for_template, prompt_text, reasons, trained
from tests.support.chat import call_text, tool
from tests.support.running import Running, running_sidecar

TOOLS = [tool()]


def thought(text: str, then: str) -> str:
    return f"<think>\n{text}\n</think>\n\n{then}"


async def two_questions(running: Running, agent: Agent) -> None:
    """A tool loop with reasoning, a second question, a second loop."""
    await agent.turn(running, "What is it?", thought("One.", call_text(at=1)))
    await agent.turn(running, agent.results("a cat"), thought("Two.", "A cat."))
    await agent.turn(running, "Sure?", thought("Three.", call_text(at=2)))
    await agent.turn(running, agent.results("a dog"), thought("Four.", "A dog."))


@pytest.fixture(scope="module")
def reference(qwen3_dir: Path) -> Any:
    """Qwen3's tokenizer, as transformers loads it."""
    return AutoTokenizer.from_pretrained(qwen3_dir)


async def test_keep_is_the_default_and_one_segment(engine: FakeSGLang, tmp_path: Path) -> None:
    async with running_sidecar(engine, tmp_path / "state") as running:
        await two_questions(running, Agent(forgets=True, tools=TOOLS))
        [segment] = await running.segments("s")
        assert segment["extra_info"]["history_thinking"] == "keep"
        assert segment["extra_info"]["token_build_mode"] == "tito"
        body = (await running.control.get("/integration/capabilities")).json()
        assert (body["token_build_modes"], body["history_thinking"]) == (["tito"], "keep")
    engine.assert_i1(session="s")


@pytest.mark.parametrize("forgets", [False, True], ids=["replays reasoning", "drops reasoning"])
async def test_template_starts_a_segment_where_the_template_drops_reasoning(
    engine: FakeSGLang, tmp_path: Path, reference: Any, forgets: bool
) -> None:
    async with running_sidecar(engine, tmp_path / "state", history_thinking="template") as running:
        agent = Agent(forgets=forgets, tools=TOOLS)
        await two_questions(running, agent)
        view = await running.view("s")
        finalized = await running.finalize("s", reward=1.0)
        segments = await running.segments("s")
        body = (await running.control.get("/integration/capabilities")).json()
        assert body["history_thinking"] == "template"
    first, second, third, fourth = engine.requests
    assert prompt_text(engine, third).endswith("Sure?<|im_end|>\n<|im_start|>assistant\n")
    assert "One." not in prompt_text(engine, third) + prompt_text(engine, fourth)
    assert second.input_ids[: len(first.input_ids) + len(first.output_ids)] == first.input_ids + first.output_ids
    assert fourth.input_ids[: len(third.input_ids) + len(third.output_ids)] == third.input_ids + third.output_ids
    assert prompt_text(engine, fourth) == reference.apply_chat_template(
        for_template(agent.whole[:-1]), tools=TOOLS, add_generation_prompt=True, tokenize=False
    )

    assert reasons(segments) == ["root", "thinking_template"]
    assert [segment["tokens"] for segment in segments] == [r.input_ids + r.output_ids for r in (second, fourth)]
    assert trained(segments[0]) == first.output_ids + second.output_ids
    assert trained(segments[1]) == third.output_ids + fourth.output_ids
    check_trained_once(segments, engine.requests)
    assert [segment["finish_reason"] for segment in segments] == ["segment_boundary", "stop"]
    assert [segment["reward"] for segment in segments] == [None, 1.0]
    assert [segment["extra_info"]["is_anchor"] for segment in segments] == [False, True]
    assert {segment["extra_info"]["history_thinking"] for segment in segments} == {"template"}
    assert (finalized["num_segments"], finalized["history_rewritten"]) == (2, False)
    assert finalized["token_build_mode"] == "tito"
    assert view["steps"][2]["break_reason"]["segment_reason"] == "thinking_template"
    assert view["steps"][2]["break_reason"]["message_index"] == 1
    assert view["steps"][2]["break_reason"]["field"] == "reasoning_content"


async def test_our_template_that_keeps_reasoning_gives_one_segment_either_way(
    engine: FakeSGLang, tmp_path: Path
) -> None:
    chosen = {"history_thinking": "template", "chat_template": "qwen3-keep-thinking"}
    async with running_sidecar(engine, tmp_path / "state", **chosen) as running:
        await two_questions(running, Agent(forgets=True, tools=TOOLS))
        [segment] = await running.segments("s")
    engine.assert_i1(session="s")
    assert segment["extra_info"]["history_thinking"] == "template"
    text = prompt_text(engine, engine.requests[-1])
    assert all(f"<think>\n{word}.\n</think>" in text for word in ("One", "Two", "Three"))


async def test_what_was_in_force_is_recorded_with_the_step(engine: FakeSGLang, tmp_path: Path) -> None:
    agent = Agent(forgets=True)
    async with running_sidecar(engine, tmp_path / "state") as running:
        await agent.turn(running, "What is it?", thought("One.", "A cat."))
        await agent.turn(running, "Sure?", thought("Two.", "Yes."))
    async with running_sidecar(engine, tmp_path / "state", history_thinking="template") as running:
        await agent.turn(running, "Really?", thought("Three.", "Yes!"))
    async with running_sidecar(engine, tmp_path / "state") as running:
        segments = await running.segments("s")
    assert [segment["extra_info"]["history_thinking"] for segment in segments] == ["keep", "template"]
    assert reasons(segments) == ["root", "thinking_template"]
    kept, dropped = (prompt_text(engine, request) for request in engine.requests[1:])
    assert "One." in kept
    assert "One." not in dropped
    check_trained_once(segments, engine.requests)
