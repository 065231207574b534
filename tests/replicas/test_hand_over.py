"""A session that one replica opens for an agent of another: it belongs to the one that the agent calls."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.fake_sglang import FakeSGLang, Reply
from tests.replicas.pair import replica
from tests.support.chat import ask, completion, follow

UNREACHABLE = "http://127.0.0.1:9"
"""As an injected sidecar finds the gateway: the chart's NetworkPolicy leaves its pod engine, store and DNS."""


async def test_an_injected_sidecar_serves_the_session_that_a_gateway_opened_for_its_agent(
    engine: FakeSGLang, tmp_path: Path, store_url: str
) -> None:
    async with replica(engine, tmp_path / "gateway", store_url, advertise_url=UNREACHABLE) as gateway:
        for _ in range(2):  # a repeat, after a reply that was lost
            await gateway.open("job", instance_id="i", sampling={"temperature": 0.5}, hand_over=True)
        async with replica(engine, tmp_path / "injected", store_url) as injected:
            body = ask()
            for turn in range(2):
                engine.replies.append(Reply(text=f"Turn {turn}."))
                answer = completion(await injected.chat("job", body)).choices[0].message
                body = follow(body, answer.model_dump(exclude_none=True), "On.")
        engine.assert_i1(session="job")
        assert [one.sampling_params["temperature"] for one in engine.requests] == [0.5, 0.5]
        assert (await gateway.finalize("job", reward=1))["num_turns"] == 2
        [segment] = await gateway.segments("job")
        assert segment["instance_id"] == "i"


async def test_a_session_that_has_steps_stays_where_it_is(
    engine: FakeSGLang, tmp_path: Path, store_url: str
) -> None:
    async with (
        replica(engine, tmp_path / "a", store_url, advertise_url=UNREACHABLE) as first,
        replica(engine, tmp_path / "b", store_url) as second,
    ):
        engine.replies.append(Reply(text="One."))
        completion(await first.chat("used", ask()))
        await first.open("used", hand_over=True)
        refused = await second.chat("used", ask())
        assert refused.json()["error"]["code"] == "replica_unreachable"


async def test_a_call_that_comes_while_it_is_handed_over_is_served(
    engine: FakeSGLang, tmp_path: Path, store_url: str
) -> None:
    async with replica(engine, tmp_path / "a", store_url) as alone:
        for turn in range(8):
            engine.replies.append(Reply(text="One."))
            name = f"s{turn}"
            await alone.open(name)
            _, reply = await asyncio.gather(alone.open(name, hand_over=True), alone.chat(name, ask()))
            assert completion(reply).choices[0].message.content == "One."
            assert len((await alone.view(name))["steps"]) == 1
