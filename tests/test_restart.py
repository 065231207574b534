"""A sidecar that was stopped or killed goes on token-exact on the same state directory."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.fake_sglang import FakeSGLang, Reply
from tests.support.chat import (
    LIVENESS,
    Held,
    ask,
    call_text,
    completion,
    follow,
    refusal,
    tool,
    until_states,
    user,
)
from tests.support.running import Running, running_sidecar

ROOT = Path(__file__).resolve().parents[1]


async def turn(running: Running, session: str, body: dict[str, Any], said: str) -> dict[str, Any]:
    """One turn in which the engine says `said`; the body of the next."""
    running.engine.replies.append(Reply(text=said))
    answer = completion(await running.chat(session, body)).choices[0].message.model_dump(exclude_none=True)
    following = follow(body, answer, "Go on.")
    for made in answer.get("tool_calls", ()):
        following["messages"].insert(-1, {"role": "tool", "tool_call_id": made["id"], "content": "r"})
    return following


async def test_a_conversation_with_a_restart_after_every_turn_is_one_exact_segment(
    engine: FakeSGLang, tmp_path: Path
) -> None:
    body = ask(messages=[{"role": "system", "content": "S"}, user("Hi")], tools=[tool()])
    said = ["<think>\nhm\n</think>\n\nOne 🎉.", call_text(at=1), "he" + "llo", "Done."]
    for text in said:
        async with running_sidecar(engine, tmp_path / "state") as running:
            body = await turn(running, "s", body, text)
    async with running_sidecar(engine, tmp_path / "state") as running:
        engine.assert_i1(session="s")
        [segment] = await running.segments("s")
        last = engine.requests[-1]
        assert segment["tokens"] == last.input_ids + last.output_ids
        sampled = [logprob for request in engine.requests for logprob in request.output_logprobs]
        pairs = zip(segment["full_logprobs"], segment["full_loss_mask"], strict=True)
        assert [logprob for logprob, trained in pairs if trained] == sampled
        assert segment["extra_info"]["untrainable"] == []


async def test_ids_that_no_tokenizer_would_make_survive_a_restart(engine: FakeSGLang, tmp_path: Path) -> None:
    encode = engine.vocabulary.encode
    split = [*encode("he"), *encode("llo"), *encode(" wor"), *encode("ld")]
    assert split != encode("hello world")
    async with running_sidecar(engine, tmp_path / "state") as running:
        engine.replies.append(Reply(ids=split))
        answer = completion(await running.chat("s", ask())).choices[0].message.model_dump(exclude_none=True)
        assert answer["content"] == "hello world"
    async with running_sidecar(engine, tmp_path / "state") as running:
        await turn(running, "s", follow(ask(), answer, "On"), "Yes.")
    first, second = engine.requests
    assert second.input_ids[: len(first.input_ids) + len(split)] == first.input_ids + split


async def test_what_was_recorded_is_viewed_and_read_the_same_after_a_restart(
    engine: FakeSGLang, tmp_path: Path
) -> None:
    async with running_sidecar(engine, tmp_path / "state") as running:
        await running.open("s", instance_id="i", run_id="r", metadata={"a": [1]}, sampling={"temperature": 0.9})
        body = await turn(running, "s", ask(tools=[tool()]), call_text(at=1))
        await turn(running, "s", body, "Done.")
        await turn(running, "s", ask("Title?"), "A title")
        view = await running.view("s")
        open_one = await turn(running, "open", ask(), "One.")
        finalized = await running.finalize("s", reward=0.5, label={"x": 1})
        segments = (await running.post("/trajectory/read", {"session_id": "s"}))["data"]
        await turn(running, "gone", ask(), "One.")
        await running.post("/session/discard", {"session_id": "gone"})
    async with running_sidecar(engine, tmp_path / "state") as running:
        assert await running.view("s") == {**view, "state": "finalized"}
        assert await running.finalize("s", reward=9.0) == finalized
        read = await running.post("/trajectory/read", {"session_id": "s", "drain": True})
        assert read["data"] == segments
        for closed, state in (("s", "finalized"), ("gone", "discarded")):
            response = await running.chat(closed, ask())
            assert response.status_code == 409
            assert response.json()["error"]["code"] == f"session_{state}"
        await turn(running, "open", open_one, "Two.")
        engine.assert_i1(session="open")
        asked = [request for request in engine.requests if request.session == "s"]
        assert {request.sampling_params["temperature"] for request in asked} == {0.9}
    async with running_sidecar(engine, tmp_path / "state") as running:
        assert (await running.post("/trajectory/read", {"session_id": "s"}))["data"] == []
        again = await running.post("/trajectory/read", {"session_id": "s", "include_drained": True})
        assert again["data"] == segments


async def test_a_marked_retry_after_a_restart_gets_the_recorded_reply(engine: FakeSGLang, tmp_path: Path) -> None:
    async with running_sidecar(engine, tmp_path / "state") as running:
        engine.replies.append(Reply(text="One."))
        first = await running.chat("s", ask())
    async with running_sidecar(engine, tmp_path / "state") as running:
        again = await running.chat("s", ask(), x_stainless_retry_count="1")
    assert completion(again).choices == completion(first).choices
    assert again.headers["x-step-id"] == first.headers["x-step-id"]
    assert len(engine.requests) == 1


async def test_a_running_step_is_finished_before_the_sidecar_stops(engine: FakeSGLang, tmp_path: Path) -> None:
    held = Held()
    engine.replies.append(held.reply())
    async with running_sidecar(engine, tmp_path / "state", drain_seconds=30) as running:
        call = asyncio.ensure_future(running.chat("s", ask()))
        await held.reached(engine)
        stopping = asyncio.ensure_future(running.sidecar.registry.stop(30))
        response = await running.chat("s", ask("Another"))
        assert response.json()["error"]["code"] == "shutting_down"
        held.open.set()
        assert completion(await call).choices[0].message.content == held.text
        await stopping
    async with running_sidecar(engine, tmp_path / "state") as running:
        [step] = (await running.view("s"))["steps"]
        assert (step["state"], step["delivered"]) == ("committed", True)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_step_that_takes_too_long_to_stop_is_a_503_that_the_sdk_retries(
    engine: FakeSGLang, tmp_path: Path, stream: bool
) -> None:
    engine.replies.append(Reply(text="never", queue=asyncio.Event()))
    async with running_sidecar(engine, tmp_path / "state", drain_seconds=0) as running, running.agent("s") as agent:
        call = asyncio.ensure_future(refusal(agent, ask(stream=stream)))
        [request] = await engine.wait_requests(1)
        await running.sidecar.registry.stop(0)
        error = await call
        assert error.status_code == 503
        assert error.code == "shutting_down"
        assert error.response.headers["retry-after"] == "1"
        await engine.wait_until(lambda: request.done)


async def test_a_step_that_waits_for_its_retry_does_not_hinder_the_session_after_a_restart(
    engine: FakeSGLang, tmp_path: Path
) -> None:
    async with running_sidecar(engine, tmp_path / "state") as running:
        body = await turn(running, "s", ask(), "One.")
        held = Held()
        engine.replies.append(held.reply())
        call = asyncio.ensure_future(running.chat("s", body))
        await held.reached(engine, 1)
        call.cancel()
        await until_states(running, "s", "committed", "detached")
    engine.continue_aborted = False
    async with running_sidecar(engine, tmp_path / "state") as running:
        [_, step] = (await running.view("s"))["steps"]
        assert (step["state"], step["delivered"], step["output_tokens"]) == ("detached", False, held.after)
        await turn(running, "s", body, "Two.")
        first, _, third = engine.requests
        engine.recorder.assert_token_exact([first, third])


# A process of its own, killed.


class Process:
    """A `tito-sidecar serve` of its own."""

    def __init__(self, process: asyncio.subprocess.Process, gateway: str, control: httpx.AsyncClient) -> None:
        self.process = process
        self.gateway = gateway
        self.control = control

    def agent(self, session: str, **options: Any) -> openai.AsyncOpenAI:
        """The SDK in front of it."""
        return openai.AsyncOpenAI(base_url=f"{self.gateway}/sessions/{session}/v1", api_key="any", **options)

    async def kill(self) -> None:
        """`kill -9`."""
        self.process.send_signal(signal.SIGKILL)
        await self.process.wait()


@asynccontextmanager
async def served(engine: FakeSGLang, state_dir: Path) -> AsyncIterator[Process]:
    """Start `tito-sidecar serve` and read its addresses from its log; it is killed at the latest at the end."""
    flags = ["--engine-url", engine.url, "--listen", "127.0.0.1:0", "--control-listen", "127.0.0.1:0"]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "sidecar.cli",
        "serve",
        *flags,
        "--state-dir",
        str(state_dir),
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stderr is not None
        found: dict[str, str] = {}
        async with asyncio.timeout(120):
            while len(found) < 2:
                line = (await process.stderr.readline()).decode()
                assert line, f"the process ended: {found}"
                match = re.search(r"(agents|trainer): +(?:base_url )?(http://[\d.:]+)", line)
                if match:
                    found[match[1]] = match[2]
        drain = asyncio.ensure_future(process.stderr.read())
        token = (state_dir / "control-token").read_text().strip()
        headers = {"Authorization": f"Bearer {token}"}
        async with httpx.AsyncClient(base_url=found["trainer"], headers=headers, timeout=LIVENESS) as control:
            yield Process(process, found["agents"], control)
        drain.cancel()
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_a_sidecar_killed_in_the_middle_of_a_generation_goes_on_token_exact(
    engine: FakeSGLang, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    body = ask()
    held = Held()
    async with served(engine, state) as first:
        async with first.agent("s", max_retries=0) as agent:
            for said in ("One 🎉.", "Two."):
                engine.replies.append(Reply(text=said))
                answer = (await agent.chat.completions.create(**body)).choices[0].message
                body = follow(body, answer.model_dump(exclude_none=True), "On.")
            engine.replies.append(held.reply())
            stream = await agent.chat.completions.create(**body, stream=True)
            lost = await held.reached(engine, 2)
            await first.kill()
            with pytest.raises(openai.APIConnectionError):
                async for _ in stream:
                    pass
        await engine.wait_until(lambda: lost.done)
    engine.continue_aborted = False
    async with served(engine, state) as second:
        async with second.agent("s", max_retries=0) as agent:
            for said in ("Three.", "Four."):
                engine.replies.append(Reply(text=said))
                answer = (await agent.chat.completions.create(**body)).choices[0].message
                assert answer.content == said
                body = follow(body, answer.model_dump(exclude_none=True), "On.")
        engine.assert_i1(session="s")
        one, two, _, three, four = engine.requests
        engine.recorder.assert_token_exact([one, two, three, four])
        finalized = await second.control.post("/session/finalize", json={"session_id": "s", "reward": 1})
        assert finalized.json()["num_steps"] == 4
        read = await second.control.post("/trajectory/read", json={"session_id": "s"})
        [segment] = read.json()["data"]
        assert segment["tokens"] == four.input_ids + four.output_ids
        sampled = [token for request in (one, two, three, four) for token in request.output_ids]
        pairs = zip(segment["tokens"], segment["full_loss_mask"], strict=True)
        assert [token for token, trained in pairs if trained] == sampled
        await second.kill()
    async with served(engine, state) as third:
        again = await third.control.post("/trajectory/read", json={"session_id": "s"})
        assert json.loads(again.content) == read.json()
