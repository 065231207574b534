"""Case 65 (sgl-project/sglang PR 34488, 30917 and 22610, issue 18378): ids beside chat deltas do not align with
them, since parsers hold text back, and an abort's chunk can lose or repeat ids. The advice there (call without a
stream and make the stream up) is superseded by the design: `/generate` is streamed, and text is made from its ids.

Input: a streamed reply with reasoning and a call; an abort in the waiting queue of an incremental server.
"""

from __future__ import annotations

from pathlib import Path

from tests.fake_sglang import FakeSGLang, Reply
from tests.support.chat import Held, ask, call_text, joined, payloads, streaming, tool
from tests.support.running import engine_for, running_sidecar


async def test_ids_of_a_streamed_reply_are_all_there_whatever_was_held_back(
    engine: FakeSGLang, tmp_path: Path
) -> None:
    async with running_sidecar(engine, tmp_path / "state") as running:
        engine.replies.append(Reply(text=f"<think>\nhm\n</think>\n\nLook 🫠\n{call_text(at=1)}", chunk_tokens=1))
        response = await running.chat("s", ask(tools=[tool()], stream=True))
        assert joined(payloads(response.text)) == "Look 🫠"
        [request] = engine.requests
        assert request.stream
        [segment] = await running.segments("s")
    assert segment["tokens"] == request.input_ids + request.output_ids


async def test_an_abort_that_repeats_an_id_doubles_none(qwen3_dir: Path, tmp_path: Path) -> None:
    async with (
        engine_for(qwen3_dir, incremental=True) as engine,
        running_sidecar(engine, tmp_path / "state") as running,
    ):
        held = Held()
        engine.replies.append(held.reply())
        async with streaming(running, "s", ask()) as stream:
            await held.reached(engine)
            await engine.state.pause("retract")
            engine.state.abort(abort_all=True)
            held.open.set()
            await engine.wait_until(lambda: engine.requests[0].done)
            await engine.state.resume()
            rest = await stream.rest()
            assert joined(rest) == held.text
        first, second = engine.requests
        assert second.input_ids == first.input_ids + first.output_ids
        [segment] = await running.segments("s")
        assert segment["tokens"] == second.input_ids + second.output_ids
        logprobs = [*first.output_logprobs, *second.output_logprobs]
        assert segment["full_logprobs"][-len(logprobs) :] == logprobs
