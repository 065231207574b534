"""The session and trajectory routes of the control plane, over HTTP, as a trainer uses them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.fake_sglang import Reply
from tests.support.chat import Held, ask, call_text, completion, streaming, tool, turns, user
from tests.support.running import Running

pytestmark = pytest.mark.asyncio(loop_scope="module")


# Open.


async def test_opening_gives_urls_and_a_key_and_is_idempotent(shared: Running) -> None:
    first = await shared.open("opened", instance_id="i", run_id="r", metadata={"a": 1}, sampling={"top_p": 1.0})
    gateway = shared.sidecar.gateway.url
    assert set(first) == {"session_id", "base_url", "anthropic_base_url", "api_key"}
    assert first["session_id"] == "opened"
    assert first["base_url"] == f"{gateway}/v1"
    assert first["anthropic_base_url"] == gateway
    assert await shared.open("opened", instance_id="another") == first
    view = await shared.view("opened")
    assert (view["state"], view["instance_id"], view["run_id"], view["steps"]) == ("open", "i", "r", [])


async def test_opening_without_an_id_draws_one(shared: Running) -> None:
    ids = {(await shared.open())["session_id"] for _ in range(3)}
    assert len(ids) == 3


async def test_two_openings_at_once_open_one_session(shared: Running) -> None:
    first, second = await asyncio.gather(shared.open("twice", instance_id="a"), shared.open("twice"))
    assert first == second


async def test_a_sessions_pin_wins_over_what_agents_ask(shared: Running) -> None:
    await shared.open("pinned", sampling={"temperature": 0.7, "top_p": 1.0, "max_new_tokens": 5})
    shared.engine.replies.append(Reply(text="ok"))
    completion(await shared.chat("pinned", ask(temperature=1.5, top_p=0.2, max_tokens=100)))
    asked = shared.engine.requests[-1].sampling_params
    assert (asked["temperature"], asked["top_p"], asked["max_new_tokens"]) == (0.7, 1.0, 5)
    [step] = (await shared.view("pinned"))["steps"]
    assert step["sampling"]["temperature"] == 0.7


@pytest.mark.parametrize(
    ("fields", "param", "remedy"),
    [
        ({"session_id": 5}, "session_id", "string"),
        ({"session_id": ""}, "session_id", "1 to 256"),
        ({"session_id": "a/b"}, "session_id", "without /"),
        ({"session_id": "x" * 257}, "session_id", "1 to 256"),
        ({"instance_id": []}, "instance_id", "string"),
        ({"instance_id": "a\0b"}, "instance_id", "NUL"),
        ({"run_id": 1}, "run_id", "string"),
        ({"metadata": "x"}, "metadata", "object"),
        ({"sampling": 1}, "sampling", "object"),
        ({"sampling": {"temprature": 1}}, "sampling", "known names are"),
        ({"sampling": {"temperature": "hot"}}, "sampling", "send a number"),
        ({"sampling": {"max_new_tokens": 0}}, "sampling", "at least 1"),
        ({"sesion_id": "x"}, "sesion_id", "known fields are session_id"),
    ],
)
async def test_bad_fields_of_open_are_named(
    shared: Running, fields: dict[str, Any], param: str, remedy: str
) -> None:
    error = (await shared.post("/session/open", fields, status=400))["error"]
    assert error["param"] == param
    assert remedy in error["message"]


@pytest.mark.parametrize("path", ["/session/open", "/session/finalize", "/session/discard", "/trajectory/read"])
@pytest.mark.parametrize("content", [b"{", b"[]", b'"x"', b"\xff"])
async def test_a_body_that_is_no_json_object_is_400(shared: Running, path: str, content: bytes) -> None:
    response = await shared.control.post(path, content=content)
    assert response.status_code == 400
    assert "JSON" in response.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/session/finalize", "/session/discard", "/trajectory/read"])
async def test_a_missing_session_is_named(shared: Running, path: str) -> None:
    error = (await shared.post(path, {}, status=400))["error"]
    assert "name the session" in error["message"]


async def test_an_unknown_path_or_method_is_in_the_envelope(shared: Running) -> None:
    assert (await shared.post("/session/opne", {}, status=405))["error"]["code"] == "method_not_allowed"
    assert (await shared.post("/nothing", {}, status=404))["error"]["code"] == "not_found"


# View and read.


async def test_the_view_shows_the_forest_with_what_runs(shared: Running) -> None:
    await shared.open("viewed", instance_id="i")
    body = await turns(shared, "viewed", "<think>\nhm\n</think>\n\nOne.")
    held = Held()
    shared.engine.replies.append(held.reply())
    del body["messages"][1]["reasoning_content"]
    async with streaming(shared, "viewed", body) as agent:
        await held.reached(shared.engine, 1)
        view = await shared.view("viewed")
        first, second = view["steps"]
        assert (view["session_id"], view["state"], view["lineages"]) == ("viewed", "open", 1)
        assert (first["state"], first["delivered"], first["finish_reason"]) == ("committed", True, "stop")
        assert first["parent"] is None
        assert first["lineage_id"] == first["step_id"]
        assert first["versions"] == ["default"]
        assert first["output_tokens"] == len(shared.engine.requests[0].output_ids)
        assert (second["state"], second["parent"], second["output_tokens"]) == (
            "running",
            first["step_id"],
            held.after,
        )
        held.open.set()
        await agent.rest()
    second = (await shared.view("viewed"))["steps"][1]
    assert second["forgiven"] == [{"message_index": 1, "field": "reasoning_content", "kind": "missing"}]
    assert second["lineage_id"] == first["step_id"]


async def test_the_view_says_why_a_segment_was_broken(shared: Running) -> None:
    body = await turns(shared, "broken", "One.")
    shared.engine.replies.append(Reply(text="Two."))
    completion(await shared.chat("broken", {**body, "tools": [tool()]}))
    [_, step] = (await shared.view("broken"))["steps"]
    assert step["break_reason"]["segment_reason"] == "tools_changed"


async def test_viewing_an_unknown_session_is_404(shared: Running) -> None:
    response = await shared.control.get("/session/never")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "session_not_found"


async def test_reading_gives_segments_as_the_design_names_their_fields(shared: Running) -> None:
    await shared.open("read", instance_id="i", run_id="r", metadata={"task": 7})
    shared.engine.replies.append(Reply(text=call_text(at=1)))
    body = ask(tools=[tool()])
    answer = completion(await shared.chat("read", body)).choices[0].message.model_dump(exclude_none=True)
    result = {"role": "tool", "tool_call_id": answer["tool_calls"][0]["id"], "content": "r"}
    shared.engine.replies.append(Reply(text="Seen."))
    completion(await shared.chat("read", {**body, "messages": [user("Hi"), answer, result]}))
    await shared.finalize("read", label={"gold": 1}, reward=0.5)
    read = await shared.post("/trajectory/read", {"trajectory_id": "read", "arrays": "json"})
    assert (read["success"], read["drained"]) == (True, False)
    [segment] = read["data"]
    first, second = shared.engine.requests
    assert segment["tokens"] == second.input_ids + second.output_ids
    sampled = [(len(first.input_ids), first), (len(second.input_ids), second)]
    mask, logprobs, versions = [0] * len(segment["tokens"]), [0.0] * len(segment["tokens"]), []
    for start, request in sampled:
        for offset, logprob in enumerate(request.output_logprobs):
            mask[start + offset], logprobs[start + offset] = 1, logprob
    versions = ["default" if trained else "-1" for trained in mask]
    assert segment["full_loss_mask"] == mask
    assert segment["full_logprobs"] == logprobs
    assert segment["full_versions"] == versions
    assert [message["role"] for message in segment["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert segment["tools"] == [tool()]
    assert (segment["label"], segment["reward"], segment["instance_id"]) == ({"gold": 1}, 0.5, "i")
    assert (segment["segment_index"], segment["segment_count"]) == (0, 1)
    assert segment["finish_reason"] == "stop"
    assert segment["extra_info"]["metadata"] == {"task": 7}
    assert segment["extra_info"]["run_id"] == "r"
    assert segment["extra_info"]["output_token_count"] == sum(mask)
    assert segment["extra_info"]["untrainable"] == []


async def test_draining_hides_what_was_read_until_it_is_asked_for(shared: Running) -> None:
    await turns(shared, "drained", "One.")
    await shared.finalize("drained")
    whole = await shared.post("/trajectory/read", {"session_id": "drained"})
    assert await shared.post("/trajectory/read", {"session_id": "drained"}) == whole
    drained = await shared.post("/trajectory/read", {"session_id": "drained", "drain": True})
    assert drained == {**whole, "drained": True}
    empty = {"success": True, "data": [], "drained": True}
    assert await shared.post("/trajectory/read", {"session_id": "drained"}) == empty
    assert await shared.post("/trajectory/read", {"session_id": "drained", "drain": True}) == empty
    again = await shared.post("/trajectory/read", {"session_id": "drained", "include_drained": True})
    assert again == drained


async def test_reading_an_open_session_is_409_and_an_unknown_one_404(shared: Running) -> None:
    await turns(shared, "still-open", "One.")
    error = (await shared.post("/trajectory/read", {"session_id": "still-open"}, status=409))["error"]
    assert error["code"] == "session_not_finalized"
    assert "finalize it" in error["message"]
    await shared.post("/trajectory/read", {"session_id": "never"}, status=404)


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"drain": "yes"}, "drain"), ({"include_drained": 1}, "include_drained"), ({"arrays": "base64"}, "arrays")],
)
async def test_bad_fields_of_read_are_named(shared: Running, fields: dict[str, Any], param: str) -> None:
    error = (await shared.post("/trajectory/read", {"session_id": "x", **fields}, status=400))["error"]
    assert error["param"] == param
