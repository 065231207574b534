"""`--token-build-mode snapshot`: every request rendered in full, each step a segment of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from sidecar.tito.errors import UnstableTemplate
from tests.fake_sglang import FakeSGLang, Reply
from tests.sessions.agent import Agent, check_trained_once, for_template, prompt_text, reasons, trained
from tests.support.chat import call_text, tool
from tests.support.running import running_sidecar

TOOLS = [tool()]
UNSTABLE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{{ m.content | length }}\n"
    "{% endfor %}<|im_start|>assistant\n{# <tool_call> #}"
)
"""Prints the length of every reply behind it, so that no sentinel can stand for one."""


@pytest.fixture
def unstable(tmp_path: Path) -> Path:
    """The template as a file."""
    path = tmp_path / "unstable.jinja"
    path.write_text(UNSTABLE)
    return path


async def test_every_prompt_is_the_templates_and_trains_its_own_reply_alone(
    engine: FakeSGLang, tmp_path: Path, qwen3_dir: Path
) -> None:
    reference: Any = AutoTokenizer.from_pretrained(qwen3_dir)
    agent = Agent(tools=TOOLS)
    async with running_sidecar(engine, tmp_path / "state", token_build_mode="snapshot") as running:
        for new, said in (
            ("What is it?", f"<think>\nOne.\n</think>\n\n{call_text(at=1)}"),
            (None, "<think>\nTwo.\n</think>\n\nA cat."),
            ("Sure?", "Yes."),
        ):
            request = await agent.turn(running, new or agent.results("a cat"), said)
            text = reference.apply_chat_template(
                for_template(agent.whole[:-1]), tools=TOOLS, add_generation_prompt=True, tokenize=False
            )
            assert prompt_text(engine, request) == text
            assert request.input_ids == reference.encode(text, add_special_tokens=False)
        view = await running.view("s")
        finalized = await running.finalize("s", reward=1.0)
        segments = await running.segments("s")
        body = (await running.control.get("/integration/capabilities")).json()
    assert (body["token_build_modes"], body["history_thinking"]) == (["snapshot"], "template")
    assert [segment["tokens"] for segment in segments] == [r.input_ids + r.output_ids for r in engine.requests]
    assert [trained(segment) for segment in segments] == [r.output_ids for r in engine.requests]
    check_trained_once(segments, engine.requests)
    assert reasons(segments) == ["snapshot"] * 3
    assert [segment["extra_info"]["step_ids"] for segment in segments] == [[step] for step in agent.step_ids]
    assert [segment["reward"] for segment in segments] == [None, None, 1.0]
    assert [segment["finish_reason"] for segment in segments] == ["segment_boundary", "segment_boundary", "stop"]
    for segment in segments:
        assert segment["extra_info"]["token_build_mode"] == "snapshot"
        assert segment["extra_info"]["history_thinking"] == "template"
    assert finalized["token_build_mode"] == "snapshot"
    assert (finalized["num_steps"], finalized["num_turns"], finalized["num_segments"]) == (3, 3, 3)
    steps = view["steps"]
    assert [step["parent"] for step in steps] == [None, *agent.step_ids[:2]]
    assert len({step["lineage_id"] for step in steps}) == 1


async def test_the_templates_own_view_of_reasoning_is_shown_though_the_client_drops_it(
    engine: FakeSGLang, tmp_path: Path
) -> None:
    agent = Agent(forgets=True, tools=TOOLS)
    async with running_sidecar(engine, tmp_path / "state", token_build_mode="snapshot") as running:
        await agent.turn(running, "What is it?", f"<think>\nOne.\n</think>\n\n{call_text(at=1)}")
        inside = await agent.turn(running, agent.results("a cat"), "A cat.")
        after = await agent.turn(running, "Sure?", "Yes.")
    assert "<think>\nOne.\n</think>" in prompt_text(engine, inside)
    assert "One." not in prompt_text(engine, after)


async def test_side_calls_leave_the_anchor_with_the_main_agent(engine: FakeSGLang, tmp_path: Path) -> None:
    main, title = Agent(), Agent()
    system = {"role": "system", "content": "S"}
    async with running_sidecar(engine, tmp_path / "state", token_build_mode="snapshot") as running:
        await main.turn(running, [system, {"role": "user", "content": "Hi"}], "Hello.")
        await main.turn(running, "And?", "More.")
        await title.turn(running, "Title?", "A title")
        segments = await running.segments("s")
    assert segments[-1]["extra_info"]["is_anchor"]
    assert [segment["extra_info"]["step_ids"][0] for segment in segments] == [
        main.step_ids[0], title.step_ids[0], main.step_ids[1],
    ]  # fmt: skip


async def test_a_template_without_a_delta_is_served(engine: FakeSGLang, tmp_path: Path, unstable: Path) -> None:
    with pytest.raises(UnstableTemplate, match="no exact delta"):
        async with running_sidecar(engine, tmp_path / "other", chat_template=unstable):
            pass
    agent = Agent()
    chosen: dict[str, Any] = {"chat_template": unstable, "token_build_mode": "snapshot"}
    async with running_sidecar(engine, tmp_path / "state", **chosen) as running:
        body = (await running.control.get("/integration/capabilities")).json()
        assert body["template_verdict"] == "refused"
        await agent.turn(running, "Hi", "Hello.")
        await agent.turn(running, "Sure?", Reply(text="Yes and", finish="length"))
        await agent.turn(running, "Go on", "no.")
        segments = await running.segments("s")
    assert prompt_text(engine, engine.requests[1]).startswith(
        "<|im_start|>user\nHi<|im_end|>2\n<|im_start|>assistant\nHello.<|im_end|>6\n"
    )
    assert reasons(segments) == ["snapshot"] * 3
    check_trained_once(segments, engine.requests)


async def test_the_mode_in_force_is_recorded_when_it_changes(engine: FakeSGLang, tmp_path: Path) -> None:
    agent = Agent()
    for mode in ("snapshot", "tito", "tito", "snapshot"):
        async with running_sidecar(engine, tmp_path / "state", token_build_mode=mode) as running:
            await agent.turn(running, "And?", f"More in {mode}.")
    async with running_sidecar(engine, tmp_path / "state") as running:
        finalized = await running.finalize("s")
        segments = await running.segments("s")
    assert [segment["extra_info"]["step_ids"] for segment in segments] == [agent.step_ids[:3], agent.step_ids[3:]]
    assert [segment["extra_info"]["token_build_mode"] for segment in segments] == ["tito", "snapshot"]
    assert finalized["token_build_mode"] == "snapshot"
    check_trained_once(segments, engine.requests)
