"""A real agent that knows nothing of the sidecar, mini-swe-agent, repairs a small project through it.

The stand-in engine plays the model: what it "samples" is scripted, in ids that re-tokenising would not give back.
"""

from __future__ import annotations

import asyncio
import copy
import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.agents.mini_swe import Finished, installed_mini_swe, run_mini_swe
from tests.agents.turns import BROKEN, CHECK, REPAIR, SUBMIT, TASK, TURNS, decoded, scripted, with_code_block
from tests.fake_sglang import FakeSGLang
from tests.support.running import Running, running_sidecar

pytestmark = pytest.mark.timeout(1200)  # the first test to run installs the agent

Render = Callable[[dict[str, Any]], str]


def without_thoughts(text: str) -> str:
    """`text` without its reasoning blocks."""
    return re.sub(r"<think>.*?</think>\n\n", "", text, flags=re.DOTALL)


@pytest.fixture(scope="module")
def template_text(qwen3_dir: Path) -> Render:
    """What the model's chat template makes of a segment's messages, by the library that trainers use."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(qwen3_dir))

    def render(segment: dict[str, Any]) -> str:
        messages = copy.deepcopy(segment["messages"])
        for call in [call for message in messages for call in message.get("tool_calls") or ()]:
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
        text: str = tokenizer.apply_chat_template(messages, tools=segment["tools"], tokenize=False)
        return text.removesuffix("\n")

    return render


@pytest.fixture(scope="module")
def programs() -> Path:
    """Where the installed agent's programs are."""
    return installed_mini_swe()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Two files of Python, one of them wrong."""
    directory = tmp_path / "project"
    directory.mkdir()
    (directory / "celsius.py").write_text(BROKEN)
    (directory / "check.py").write_text(CHECK)
    assert not passes(directory)
    return directory


def passes(directory: Path) -> bool:
    """Whether the project's own check does."""
    return subprocess.run([sys.executable, "-B", "check.py"], cwd=directory, capture_output=True).returncode == 0


def assert_solved(agent: Finished, directory: Path, turns: int) -> None:
    """The agent handed in its work after so many turns, and the work is done."""
    assert (agent.returncode, agent.exit_status, agent.api_calls) == (0, "Submitted", turns), agent.output
    assert passes(directory)
    assert (directory / "celsius.py").read_text() == BROKEN.replace("fahrenheit - 32", "(fahrenheit - 32)")
    assert (directory / "check.py").read_text() == CHECK


async def exact_segments(running: Running, session: str, *, steps: list[int]) -> list[dict[str, Any]]:
    """The session's segments, of so many steps each, after a look at their ids: every prompt but those that start
    a segment grew by what was sampled, and all that was sampled trains, and nothing else does."""
    running.engine.assert_i1(session, expected_roots=len(steps))
    segments = await running.segments(session)
    assert [len(segment["extra_info"]["step_ids"]) for segment in segments] == steps
    assert [segment["extra_info"]["untrainable"] for segment in segments] == [[] for _ in steps]
    trained = [
        token
        for segment in segments
        for token, mask in zip(segment["tokens"], segment["full_loss_mask"], strict=True)
        if mask
    ]
    requests = running.engine.recorder.session(session)
    assert trained == [token for request in requests for token in request.output_ids]
    assert segments[-1]["tokens"] == requests[-1].input_ids + requests[-1].output_ids
    return segments


def told(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What of messages both the agent and the sidecar keep, up to the model's last turn."""
    last = max(index for index, message in enumerate(messages) if message["role"] == "assistant")
    names = ("role", "content", "reasoning_content", "tool_call_id")
    return [
        {name: message.get(name) for name in names}
        | {"calls": [call["function"] | {"id": call["id"]} for call in message.get("tool_calls") or ()]}
        for message in messages[: last + 1]
    ]


def swapped(running: Running, session: str) -> dict[str, str]:
    """The `base_url` swap."""
    return {"OPENAI_BASE_URL": f"{running.sidecar.gateway.url}/sessions/{session}/v1", "OPENAI_API_KEY": "any"}


async def test_an_agent_with_its_base_url_swapped_repairs_a_project_in_one_exact_segment(
    sidecar: Running, programs: Path, project: Path, template_text: Render
) -> None:
    sidecar.engine.replies.extend(scripted(sidecar.engine, TURNS))
    agent = await run_mini_swe(programs, project, TASK, swapped(sidecar, "s"))
    assert_solved(agent, project, len(TURNS))
    [segment] = await exact_segments(sidecar, "s", steps=[len(TURNS)])
    assert told(segment["messages"]) == told(agent.messages)
    assert decoded(sidecar.engine, segment["tokens"]) == template_text(segment)
    results = [json.loads(one["content"]) for one in segment["messages"] if one["role"] == "tool"]
    assert [result["returncode"] for result in results] == [0, 1, 0, 0]
    assert "212 °F are 100 °C, not 194.2" in results[1]["output"]
    assert results[3]["output"] == "fits: °C\n"
    assert [tool["function"]["name"] for tool in segment["tools"]] == ["bash"]


async def test_an_agent_without_tool_calls_stays_exact_though_the_template_would_drop_its_reasoning(
    sidecar: Running, programs: Path, project: Path, template_text: Render
) -> None:
    turns = [
        with_code_block("What is there?", "I look around.", "cat celsius.py; python check.py"),
        with_code_block("Brackets!", "I repair it.", REPAIR),
        with_code_block("It passes.", "Done.", SUBMIT),
    ]
    sidecar.engine.replies.extend(scripted(sidecar.engine, turns))
    agent = await run_mini_swe(programs, project, TASK, swapped(sidecar, "s"), tool_calls=False)
    assert_solved(agent, project, len(turns))
    [segment] = await exact_segments(sidecar, "s", steps=[len(turns)])
    assert told(segment["messages"]) == told(agent.messages)
    assert segment["tools"] is None
    kept, printed = decoded(sidecar.engine, segment["tokens"]), template_text(segment)
    assert without_thoughts(kept) == without_thoughts(printed)
    thoughts = ["What is there?", "Brackets!", "It passes."]
    assert [thought in kept for thought in thoughts] == [True, True, True]
    assert [thought in printed for thought in thoughts] == [False, False, True]


async def test_a_reply_that_the_agent_drops_trains_in_a_segment_of_its_own(
    sidecar: Running, programs: Path, project: Path, template_text: Render
) -> None:
    # mini-swe-agent forgets a reply without a call and tells the model so in a user message.
    forgotten = "<think>\nHm.\n</think>\n\nI am not sure."
    engine = sidecar.engine
    engine.replies.extend(scripted(engine, [forgotten, *TURNS]))
    agent = await run_mini_swe(programs, project, TASK, swapped(sidecar, "s"))
    assert_solved(agent, project, len(TURNS) + 1)
    first, second = await exact_segments(sidecar, "s", steps=[1, len(TURNS)])
    assert decoded(engine, engine.requests[0].output_ids) == forgotten + "<|im_end|>"
    assert first["messages"][-1]["content"] == "I am not sure."
    assert decoded(engine, second["tokens"]) == template_text(second)
    assert told(second["messages"]) == told(agent.messages)
    reasons = [segment["extra_info"]["segment_reason"] for segment in (first, second)]
    assert reasons == ["root", "history_rewrite"]
    assert [segment["extra_info"]["is_anchor"] for segment in (first, second)] == [False, True]


async def test_an_agent_with_a_session_key_does_not_notice_new_weights_in_the_middle_of_a_turn(
    sidecar: Running, programs: Path, project: Path, template_text: Render
) -> None:
    engine, cut = sidecar.engine, 20
    replies = scripted(engine, TURNS)
    replies[2] = replace(replies[2], hold=asyncio.Event(), hold_after=cut)
    engine.replies.extend(replies)
    opened = await sidecar.open("s")
    variables = {"OPENAI_BASE_URL": f"{sidecar.sidecar.gateway.url}/v1", "OPENAI_API_KEY": opened["api_key"]}
    running = asyncio.create_task(run_mini_swe(programs, project, TASK, variables))
    await engine.wait_requests(3)
    await engine.wait_tokens(engine.requests[2], cut)
    pause = await sidecar.post("/v1/rollout/pause", {"reason": "new weights"})
    assert (pause["status"], pause["quiesced"], pause["active"]) == ("paused", True, 0)
    assert pause["preempted_request_ids"] == [engine.requests[2].rid]
    update = {"new_version": "new", "abort_all_requests": False}
    updated = await sidecar.data.post(f"{engine.url}/update_weight_version", json=update)
    assert updated.status_code == 200
    assert not running.done()
    await sidecar.post("/v1/rollout/resume", {"pause_id": pause["pause_id"], "version": "new"})
    agent = await running

    assert_solved(agent, project, len(TURNS))
    assert len(engine.requests) == len(TURNS) + 1
    [segment] = await exact_segments(sidecar, "s", steps=[len(TURNS)])
    assert told(segment["messages"]) == told(agent.messages)
    assert decoded(engine, segment["tokens"]) == template_text(segment)
    sampled = [version for version in segment["full_versions"] if version != "-1"]
    old = sum(len(request.output_ids) for request in engine.requests[:3])
    assert len(engine.requests[2].output_ids) == cut
    assert sampled == ["default"] * old + ["new"] * (len(sampled) - old)


async def test_an_agent_that_calls_openai_itself_is_answered_by_the_engine(
    engine: FakeSGLang, programs: Path, project: Path, tmp_path: Path
) -> None:
    engine.replies.extend(scripted(engine, TURNS))
    async with running_sidecar(engine, tmp_path / "state", intercept=["regular@0"]) as running:
        opened = await running.open("s")
        assert running.sidecar.interception is not None
        host, port = running.sidecar.interception.addresses[0]
        variables = {
            "HTTPS_PROXY": f"http://{host}:{port}",
            "SSL_CERT_FILE": str(running.sidecar.interception.bundle),
            "OPENAI_API_KEY": opened["api_key"],
        }
        agent = await run_mini_swe(programs, project, TASK, variables)
        assert_solved(agent, project, len(TURNS))
        [segment] = await exact_segments(running, "s", steps=[len(TURNS)])
        assert told(segment["messages"]) == told(agent.messages)
