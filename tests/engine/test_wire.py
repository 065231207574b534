"""The engine's own wire, asked directly: what the stand-in claims of SGLang is what SGLang does."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from tests.engine.subject import CONTEXT, RUNNING, Subject
from tests.engine.tap import Exchange
from tests.support.waiting import until

Json = dict[str, Any]
PROMPT = list(range(1000, 1030))
META = {
    "id", "finish_reason", "prompt_tokens", "weight_version", "num_retractions", "input_token_logprobs",
    "output_token_logprobs", "output_token_logprobs_length", "reasoning_tokens", "completion_tokens",
    "cached_tokens", "weight_versions", "cached_tokens_details", "dp_rank", "e2e_latency",
    "response_sent_to_client_ts",
}  # fmt: skip
ONLY_AT_THE_END = {"weight_versions", "e2e_latency"}
ONLY_AT_THE_START = {"response_sent_to_client_ts"}


def asked(tokens: int, **fields: Any) -> Json:
    params = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True, **fields.pop("params", {})}
    return {"input_ids": PROMPT, "sampling_params": params, "return_logprob": True, **fields}


async def whole(subject: Subject, tokens: int, **fields: Any) -> Json:
    response = await subject.client.post("/generate", json=asked(tokens, **fields))
    assert response.status_code == 200, response.text
    reply: Json = response.json()
    return reply


async def events(subject: Subject, tokens: int, **fields: Any) -> list[Json]:
    """The payloads of a stream, `[DONE]` checked."""
    response = await subject.client.post("/generate", json=asked(tokens, stream=True, **fields))
    assert response.headers["content-type"].startswith("text/event-stream")
    found = response.text.split("\n\n")
    assert found[-2:] == ["data: [DONE]", ""]
    return [json.loads(event.removeprefix("data: ")) for event in found[:-2]]


class Under:
    """A stream in its own task, read as it comes. No two tests use one rid: SGLang kills a stream whose rid another
    one had up to two seconds ago."""

    def __init__(self, subject: Subject, tokens: int, **fields: Any) -> None:
        self.exchange = Exchange()
        self._task = asyncio.ensure_future(self._read(subject, asked(tokens, stream=True, **fields)))

    async def _read(self, subject: Subject, body: Json) -> Json:
        async with subject.client.stream("POST", "/generate", json=body) as response:
            async for data in response.aiter_bytes():
                self.exchange.take(data)
        return self.exchange.events[-1]

    async def reached(self, count: int) -> None:
        """Until it has `count` ids."""
        await until(lambda: len(self.exchange.output_ids) >= count or self._task.done(), f"{count} ids")
        assert not self._task.done()

    def leave(self) -> None:
        """Close the connection, as a client that has gone."""
        self._task.cancel()

    async def end(self) -> Json:
        """Its last event."""
        return await self._task


async def test_a_whole_reply_has_these_fields(subject: Subject) -> None:
    reply = await whole(subject, 3, rid="abc")
    assert reply.keys() == {"text", "output_ids", "meta_info"}
    meta = reply["meta_info"]
    assert meta.keys() == META
    assert (meta["id"], meta["prompt_tokens"], meta["completion_tokens"]) == ("abc", len(PROMPT), 3)
    assert meta["finish_reason"] == {"type": "length", "length": 3}
    assert meta["weight_versions"] == [{"version": "1", "start": 0, "end": 3}]
    assert (meta["weight_version"], meta["input_token_logprobs"]) == ("1", [])
    assert [entry[1:] for entry in meta["output_token_logprobs"]] == [
        [index, None] for index in reply["output_ids"]
    ]


async def test_a_stream_counts_as_the_server_says_and_only_its_end_has_versions(subject: Subject) -> None:
    info = (await subject.client.get("/server_info")).json()
    assert info["incremental_streaming_output"] is subject.variant.incremental
    chunks = await events(subject, 9, params={"stream_interval": 2})
    counts = [chunk["meta_info"]["completion_tokens"] for chunk in chunks]
    assert (counts[0], counts[-1]) == (1, 9)
    sizes = [len(chunk["output_ids"]) for chunk in chunks]
    if subject.variant.incremental:
        assert [sum(sizes[: number + 1]) for number in range(len(sizes))] == counts
    else:
        assert sizes == counts
    assert [chunk["meta_info"]["output_token_logprobs_length"] for chunk in chunks] == counts
    first, *middle, last = [set(chunk["meta_info"]) for chunk in chunks]
    assert first == META - ONLY_AT_THE_END
    assert all(keys == META - ONLY_AT_THE_END - ONLY_AT_THE_START for keys in middle)
    assert last == META - ONLY_AT_THE_START


async def test_the_logprobs_of_a_prompt_begin_with_none(subject: Subject) -> None:
    reply = await whole(subject, 0, logprob_start_len=0)
    entries = reply["meta_info"]["input_token_logprobs"]
    assert [entry[1] for entry in entries] == PROMPT
    assert entries[0][0] is None
    assert all(entry[0] <= 0 for entry in entries[1:])
    assert reply["output_ids"] == []


async def test_text_omits_the_token_that_stopped_it(subject: Subject) -> None:
    stop = (await whole(subject, 1))["output_ids"][0]
    await subject.until_idle()
    reply = await whole(subject, 5, params={"stop_token_ids": [stop], "ignore_eos": False})
    assert (reply["text"], reply["output_ids"]) == ("", [stop])
    assert reply["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (
            asked(1, params={"max_tokens": 1}),
            "unknown field `max_tokens`, expected one of `max_new_tokens`, `stop`, ",
        ),
        (asked(1, stream=1), "invalid type: integer `1`, expected a boolean"),
        ({**asked(1), "input_ids": []}, {"message": "input_ids cannot be empty."}),
        (
            {**asked(1), "input_ids": [5] * 5000},
            {"message": "The input (5000 tokens) is longer than the model's context length (4096 tokens)."},
        ),
    ],
    ids=["unknown", "type", "empty", "long"],
)
async def test_a_bad_body_is_refused_in_these_words(subject: Subject, body: Json, error: Any) -> None:
    response = await subject.client.post("/generate", json=body)
    assert response.status_code == 400
    said = response.json()["error"]
    assert said == error or (isinstance(said, str) and said.startswith(error))


async def test_a_stream_is_refused_inside_http_200(subject: Subject) -> None:
    [event] = await events(subject, CONTEXT)
    assert event["error"].keys() == {"message", "type", "code", "retryable"}
    assert (event["error"]["code"], event["error"]["type"]) == (400, "invalid_request_error")
    assert event["error"]["message"].startswith("Requested token count exceeds the model's maximum context length")


async def test_control_calls_answer_so(subject: Subject) -> None:
    assert (await subject.post("/abort_request", {"rid": "unknown"})).text == ""
    await subject.post("/pause_generation", {"mode": "nap"}, status=400)
    assert (await subject.client.get("/workers")).status_code == 404
    assert (await subject.client.get("/ready")).status_code == 200
    paused = await subject.post("/pause_generation", {"mode": "in_place"})
    assert paused.json()["status"] == "ok"
    assert (await subject.client.get("/ready")).status_code == 503
    assert (await subject.client.get("/model_info")).status_code == 200
    await subject.resume()
    assert (await subject.client.get("/ready")).status_code == 200


async def test_an_abort_gives_what_was_sampled_and_says_so_in_a_finish_reason(subject: Subject) -> None:
    call = Under(subject, 2000, rid="ends")
    await call.reached(3)
    await subject.post("/abort_request", {"rid": "ends"})
    meta = (await call.end())["meta_info"]
    assert meta["finish_reason"] == {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
    assert len(call.exchange.output_ids) == meta["completion_tokens"] >= 3
    assert meta["weight_versions"] == [{"version": "1", "start": 0, "end": meta["completion_tokens"]}]


async def test_an_abort_hits_every_rid_that_begins_so_but_only_if_it_exists_itself(subject: Subject) -> None:
    calls = [Under(subject, 2000, rid=rid) for rid in ("t-1", "t-10")]
    for call in calls:
        await call.reached(1)
    await subject.post("/abort_request", {"rid": "t-"})
    await calls[1].reached(len(calls[1].exchange.output_ids) + 2)
    await subject.post("/abort_request", {"rid": "t-1"})
    for call in calls:
        assert (await call.end())["meta_info"]["finish_reason"]["type"] == "abort"


async def test_a_rid_in_flight_is_refused(subject: Subject) -> None:
    call = Under(subject, 2000, rid="taken")
    await call.reached(1)
    response = await subject.client.post("/generate", json=asked(1, rid="taken"))
    assert (response.status_code, response.json()) == (
        400,
        {"error": {"message": "Duplicate request ID detected: taken"}},
    )
    await subject.post("/abort_request", {"abort_all": True})
    await call.end()


async def test_an_abort_in_the_waiting_queue_gives_no_ids_and_sparse_meta_info(subject: Subject) -> None:
    running = [Under(subject, 1500) for _ in range(RUNNING)]
    for call in running:
        await call.reached(1)
    waiting = Under(subject, 10, rid="waits")
    for _ in range(100):  # the abort of a rid that the scheduler does not know yet does nothing
        await subject.post("/abort_request", {"rid": "waits"})
        if waiting.exchange.events:
            break
        await asyncio.sleep(0.1)
    last = await waiting.end()
    assert (last["output_ids"], last["meta_info"]["completion_tokens"]) == ([], 0)
    assert last["meta_info"]["finish_reason"] == {"type": "abort", "message": "Abort in waiting queue"}
    assert not {"prompt_tokens", "cached_tokens"} & last["meta_info"].keys()
    await subject.post("/abort_request", {"abort_all": True})
    for call in running:
        await call.end()


async def test_a_retracted_request_aborted_while_it_waits_keeps_its_ids(subject: Subject) -> None:
    call = Under(subject, 2000, rid="retracted")
    await call.reached(4)
    await subject.pause("retract")
    await subject.post("/abort_request", {"rid": "retracted"})
    last = await call.end()
    count = last["meta_info"]["completion_tokens"]
    assert last["meta_info"]["finish_reason"] == {"type": "abort", "message": "Abort in waiting queue"}
    # on a busy machine the pause may come when the last one is scored and not yet counted
    assert len(last["meta_info"]["output_token_logprobs"]) - count in (0, 1)
    assert count >= 4
    # an incremental server repeats the last id, beside the logprobs of all
    assert len(last["output_ids"]) == (1 if subject.variant.incremental else count)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_a_client_that_leaves_stops_the_engine(subject: Subject, stream: bool) -> None:
    if stream:
        call = Under(subject, 2000)
        await call.reached(1)
        call.leave()
    else:
        task = asyncio.ensure_future(subject.client.post("/generate", json=asked(2000)))
        await until(lambda: _busy(subject), "a busy engine")
        task.cancel()
    await subject.until_idle()


async def _busy(subject: Subject) -> bool:
    return not await subject.idle()


async def test_keys_open_what_they_are_for(subject: Subject) -> None:
    if subject.variant.keys is None:
        pytest.skip("a server without keys")
    swapped = [
        await subject.admin.post("/generate", json=asked(1)),
        await subject.client.post("/abort_request", json={"rid": "x"}),
    ]
    for response in swapped:
        assert (response.status_code, response.json()) == (401, {"error": "Unauthorized"})
    async with httpx.AsyncClient(base_url=str(subject.client.base_url)) as nobody:
        assert (await nobody.get("/ready")).status_code == 200
        for path in ("/model_info", "/server_info", "/v1/models", "/ping"):
            assert (await nobody.get(path)).status_code == 401


async def test_an_update_that_cannot_flush_names_its_weights_only_in_the_spans(subject: Subject) -> None:
    call = Under(subject, 200)
    await call.reached(3)
    await subject.pause("in_place")
    refused = await subject.admin.post(
        "/update_weights_from_disk", json={"model_path": subject.second, "weight_version": "2"}
    )
    assert refused.status_code == 400
    assert refused.json()["success"] is False
    assert refused.json()["message"].startswith("Weights were updated, but the cache was not flushed")
    assert await subject.version() == "1"
    await subject.resume()
    meta = (await call.end())["meta_info"]
    assert [span["version"] for span in meta["weight_versions"]] == ["1", "2"]
    await subject.update_weights(subject.first, "1")
