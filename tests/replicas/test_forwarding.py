"""Calls of a session reach the replica that holds it, whichever replica they are sent to."""

from __future__ import annotations

import asyncio

import pytest

from sidecar.gateway.chat import ChatCompletions
from sidecar.replicas.hop import HOP_HEADER, Hop, Signed, write_hop
from tests.fake_sglang import Reply
from tests.replicas.pair import SHARED, Pair
from tests.support.chat import LIVENESS, Held, ask, completion, follow, until_states

pytestmark = pytest.mark.asyncio(loop_scope="module")
SETTINGS = {"heartbeat_interval": 0.2}


async def test_a_conversation_over_both_replicas_is_one_exact_segment(both: Pair) -> None:
    body, engine = ask(), both.engine
    for turn in range(4):
        running = both.replicas[turn % 2]
        engine.replies.append(Reply(text=f"Turn {turn} 🎉."))
        async with running.agent("talk") as agent:
            answer = (await agent.chat.completions.create(**body)).choices[0].message
        assert answer.content == f"Turn {turn} 🎉."
        body = follow(body, answer.model_dump(exclude_none=True), "On.")
    engine.assert_i1(session="talk")
    for running in both.replicas:
        assert (await running.view("talk"))["state"] == "open"
    first_reply = await both.replicas[1].finalize("talk", reward=1)
    assert await both.replicas[0].finalize("talk", reward=9) == first_reply
    for running in both.replicas:
        [segment] = await running.segments("talk")
        last = engine.requests[-1]
        assert segment["tokens"] == last.input_ids + last.output_ids
        assert segment["reward"] == 1


async def test_a_forwarded_stream_leaves_event_by_event(both: Pair) -> None:
    owner, other = both.replicas
    await owner.open("stream")
    held = Held()
    both.engine.replies.append(held.reply())
    async with other.agent("stream") as agent:
        stream = await agent.chat.completions.with_raw_response.create(**ask(stream=True))
        assert stream.headers["x-session-id"] == "stream"
        assert stream.headers["x-step-id"]
        chunks = stream.parse()
        text = ""
        async for chunk in chunks:  # what was sampled before the engine was held
            text += chunk.choices[0].delta.content or ""
            if text:
                break
        assert held.text.startswith(text)
        assert text != held.text
        held.open.set()
        async for chunk in chunks:
            text += chunk.choices[0].delta.content or ""
    assert text == held.text
    [step] = (await until_states(other, "stream", "committed"))["steps"]
    assert step["delivered"]


async def test_heartbeats_of_a_silent_call_pass(both: Pair) -> None:
    owner, other = both.replicas
    await owner.open("silent")
    queue = asyncio.Event()
    both.engine.replies.append(Reply(text="Late.", queue=queue))
    url = "/sessions/silent/v1/chat/completions"
    async with other.data.stream("POST", url, json=ask(stream=True)) as response, asyncio.timeout(LIVENESS):
        async for line in response.aiter_lines():
            if line.startswith(": heartbeat"):
                queue.set()
            if line == "data: [DONE]":
                break
    assert queue.is_set()


async def test_an_agent_that_leaves_the_other_replica_leaves_the_step(both: Pair) -> None:
    owner, other = both.replicas
    await owner.open("left")
    held = Held()
    both.engine.replies.append(held.reply())
    call = asyncio.ensure_future(other.chat("left", ask()))
    request = await held.reached(both.engine)
    call.cancel()
    await until_states(owner, "left", "detached")
    await both.engine.wait_until(lambda: request.done)


async def test_refusals_come_through_with_their_headers(both: Pair) -> None:
    owner, other = both.replicas
    await owner.open("ended")
    both.engine.replies.append(Reply(text="One."))
    completion(await other.chat("ended", ask()))
    wrong = await other.chat("ended", {"model": "m", "messages": []})
    assert wrong.status_code == 400
    await owner.finalize("ended")
    for running in both.replicas:
        refused = await running.chat("ended", ask())
        assert refused.status_code == 409
        assert refused.headers["x-should-retry"] == "false"


async def test_open_gives_the_url_of_the_replica_that_holds_the_session(both: Pair) -> None:
    owner, other = both.replicas
    first = await owner.open("opened", run_id="r")
    assert first["base_url"] == f"{owner.sidecar.gateway.url}/v1"
    assert await other.open("opened", run_id="r") == first
    refused = await other.post("/session/open", {"session_id": "opened", "run_id": "other"}, status=200)
    assert refused == first  # without steps it joins the run that is named, at its owner
    assert (await owner.view("opened"))["run_id"] == "other"
    assert (await other.open())["base_url"] == f"{other.sidecar.gateway.url}/v1"


async def test_any_replica_discards_open_and_finalized_sessions(both: Pair) -> None:
    owner, other = both.replicas
    for session, finalized in (("dropped", False), ("dropped late", True)):
        both.engine.replies.append(Reply(text="One."))
        completion(await owner.chat(session, ask()))
        if finalized:
            await owner.finalize(session)
        gone = await other.post("/session/discard", {"session_id": session})
        assert gone == {"success": True, "session_removed": True, "segments_removed": 1}
        again = await owner.post("/session/discard", {"session_id": session})
        assert not again["session_removed"]
        assert (await owner.chat(session, ask())).status_code == 409


async def test_a_forwarded_call_makes_no_second_hop(both: Pair) -> None:
    owner, other = both.replicas
    await owner.open("hop")
    both.engine.replies.append(Reply(text="One."))
    body = b'{"model":"m","messages":[{"role":"user","content":"Hi"}]}'
    signed = Signed("POST", b"/v1/chat/completions", body)
    headers = {HOP_HEADER: write_hop(Hop("hop"), signed, SHARED["session_secret"].encode())}
    refused = await other.data.post("/v1/chat/completions", content=body, headers=headers)
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "not_owner"
    served = await owner.data.post("/v1/chat/completions", content=body, headers=headers)
    assert completion(served).choices[0].message.content == "One."
    assert served.headers["x-session-id"] == "hop"


async def test_the_host_that_an_intercepted_agent_meant_comes_along(
    both: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the secret that proves it is another one in each process."""
    owner, other = both.replicas
    monkeypatch.setattr(
        ChatCompletions, "_intercepted_host", lambda _, request: request.headers.get("x-tito-original-host")
    )
    await owner.open("intercepted")
    both.engine.replies.append(Reply(text="One."))
    completion(await other.chat("intercepted", ask(), x_tito_original_host="api.openai.com"))
    [step] = (await owner.view("intercepted"))["steps"]
    assert step["extra"]["intercepted_host"] == "api.openai.com"


@pytest.mark.parametrize("forged", ["", "x", "WyJzIixudWxsXQ==.00"])
async def test_an_agent_cannot_pretend_to_be_a_replica(both: Pair, forged: str) -> None:
    refused = await both.replicas[1].chat("s", ask(), **{HOP_HEADER.replace("-", "_"): forged})
    assert refused.status_code == 403
    assert not both.engine.requests
