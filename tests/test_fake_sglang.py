"""The stand-in engine keeps its promises: SGLang's wire, scripted replies, continuations, and the I1 assertion.

Concurrency: one engine and one HTTP client per test, in the test's event loop.
"""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from tests.fake_sglang import FakeSGLang, Reply, ScriptError, Timings, faults
from tests.fake_sglang.text import GrowingText
from tests.fake_sglang.vocabulary import Vocabulary

EOS = 7
PROMPT = [20, 21, 22]
Json = dict[str, Any]


@asynccontextmanager
async def running(**options: Any) -> AsyncIterator[tuple[FakeSGLang, aiohttp.ClientSession]]:
    """An engine with 1,000 ids and a client bound to it."""
    options = {"vocab_size": 1000, "eos_token_ids": (EOS,)} | options
    async with FakeSGLang(**options) as engine, aiohttp.ClientSession(engine.url) as client:
        yield engine, client


def byte_tokenizer() -> Tokenizer:
    """One id per byte, plus two special tokens: enough for text, half characters and stop strings."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({char: index for index, char in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True), AddedToken("<|user|>", special=True)])
    return tokenizer


def body(input_ids: list[int] = PROMPT, **changes: Any) -> Json:
    params = {"max_new_tokens": 100, **changes.pop("params", {})}
    return {"input_ids": input_ids, "sampling_params": params, "return_logprob": True, **changes}


async def post(client: aiohttp.ClientSession, path: str, payload: Json, **options: Any) -> tuple[int, Any]:
    async with client.post(path, json=payload, **options) as response:
        text = await response.text()
        return response.status, json.loads(text) if text[:1] in "{[" and text else text


async def whole(client: aiohttp.ClientSession, input_ids: list[int] = PROMPT, **changes: Any) -> Json:
    status, reply = await post(client, "/generate", body(input_ids, **changes))
    assert status == 200, reply
    return reply


def key(session: str) -> dict[str, str]:
    return {"X-SMG-Routing-Key": session}


async def stream(
    client: aiohttp.ClientSession,
    input_ids: list[int] = PROMPT,
    headers: dict[str, str] | None = None,
    **changes: Any,
) -> list[Json]:
    """All events of a stream but `[DONE]`, which must be the last."""
    async with client.post("/generate", json=body(input_ids, stream=True, **changes), headers=headers) as response:
        assert response.status == 200
        assert response.content_type == "text/event-stream"
        events = (await response.read()).decode().split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    return [json.loads(event.removeprefix("data: ")) for event in events[:-2]]


def ids_of(reply: Json) -> list[int]:
    ids = [token_id for _, token_id, _ in reply["meta_info"]["output_token_logprobs"]]
    assert ids == reply["output_ids"]
    return ids


async def background[T](work: Awaitable[T]) -> asyncio.Task[T]:
    return asyncio.ensure_future(work)


# The wire.


async def test_a_whole_reply_carries_the_stop_id_in_ids_and_logprobs_but_no_text_without_a_tokenizer() -> None:
    async with running() as (engine, client):
        engine.replies.append(Reply(ids=[1, 2, 3]))
        reply = await whole(client, rid="abc")
        meta = reply["meta_info"]
        assert ids_of(reply) == [1, 2, 3, EOS]
        assert "text" not in reply
        assert meta["id"] == "abc"
        assert meta["finish_reason"] == {"type": "stop", "matched": EOS}
        assert (meta["prompt_tokens"], meta["completion_tokens"]) == (3, 4)
        assert meta["weight_versions"] == [{"version": "default", "start": 0, "end": 4}]
        assert all(-100 < logprob <= 0 for logprob, _, _ in meta["output_token_logprobs"])
        assert meta["input_token_logprobs"] == []
        assert engine.requests[0].output_ids == [1, 2, 3, EOS]
        assert engine.requests[0].outcome == "finished"


async def test_a_cumulative_stream_repeats_everything_and_only_the_last_chunk_has_versions() -> None:
    async with running() as (engine, client):
        engine.replies.append(Reply(ids=[1, 2, 3]))
        chunks = await stream(client)
        assert [ids_of(chunk) for chunk in chunks] == [[1], [1, 2], [1, 2, 3], [1, 2, 3, EOS]]
        assert [chunk["meta_info"]["finish_reason"] for chunk in chunks[:-1]] == [None] * 3
        assert ["weight_versions" in chunk["meta_info"] for chunk in chunks] == [False, False, False, True]


async def test_an_incremental_stream_sends_deltas_while_completion_tokens_stays_cumulative() -> None:
    async with running(incremental=True) as (engine, client):
        engine.replies.append(Reply(ids=[1, 2, 3, 4, 5]))
        chunks = await stream(client, params={"stream_interval": 2})
        assert [ids_of(chunk) for chunk in chunks] == [[1], [2, 3], [4, 5], [EOS]]
        assert [chunk["meta_info"]["completion_tokens"] for chunk in chunks] == [1, 3, 5, 6]
        assert (await (await client.get("/server_info")).json())["incremental_streaming_output"] is True


async def test_text_omits_the_stop_token_and_never_ends_in_half_a_character() -> None:
    tokenizer = byte_tokenizer()
    end = tokenizer.token_to_id("<|end|>")
    async with running(vocab_size=None, tokenizer=tokenizer, eos_token_ids=(end,)) as (engine, client):
        engine.replies.append(Reply(text="é🙂"))
        chunks = await stream(client)
        assert [chunk["text"] for chunk in chunks] == ["", "é", "é", "é", "é", "é🙂", "é🙂"]
        assert chunks[-1]["output_ids"][-1] == end
        engine.options.incremental = True
        engine.replies.append(Reply(text="é🙂"))
        deltas = await stream(client, params={"no_stop_trim": True, "skip_special_tokens": False})
        assert "".join(chunk["text"] for chunk in deltas) == "é🙂<|end|>"


async def test_a_stop_string_ends_the_ids_with_the_token_that_completes_it_and_trims_the_text() -> None:
    tokenizer = byte_tokenizer()
    end = tokenizer.token_to_id("<|end|>")
    async with running(vocab_size=None, tokenizer=tokenizer, eos_token_ids=(end,)) as (engine, client):
        engine.replies.append(Reply(text="beta gamma delta"))
        chunks = await stream(client, params={"stop": ["a gam"]})
        assert chunks[-1]["text"] == "bet"
        assert chunks[-1]["meta_info"]["finish_reason"] == {"type": "stop", "matched": "a gam"}
        assert tokenizer.decode(chunks[-1]["output_ids"]) == "beta gam"
        assert all("a gam".startswith(chunk["text"][3:]) for chunk in chunks[:-1])
        assert all(not chunk["text"].endswith(("a", "a ")) for chunk in chunks[:-1])


async def test_a_late_reader_of_a_coalescing_stream_gets_only_the_newest_chunk() -> None:
    async with running() as (engine, client):
        engine.replies.append(Reply(ids=list(range(10, 900)) * 4, coalesce=True))
        async with client.post("/generate", json=body(stream=True, params={"max_new_tokens": None})) as response:
            (request,) = await engine.wait_requests(1)
            # The reader takes nothing until the engine is done: cumulative chunks soon fill the socket.
            await engine.wait_until(lambda: request.finish_reason is not None)
            text = await response.text()
        chunks = [json.loads(event.removeprefix("data: ")) for event in text.split("\n\n")[:-2]]
        assert len(chunks) < len(request.output_ids) / 2
        assert ids_of(chunks[-1]) == request.output_ids


async def test_max_new_tokens_and_the_requests_own_stop_ids_end_a_reply() -> None:
    async with running() as (engine, client):
        engine.script = lambda _: Reply(ids=[1, 2, 3])
        reply = await whole(client, params={"max_new_tokens": 2})
        assert (ids_of(reply), reply["meta_info"]["finish_reason"]) == ([1, 2], {"type": "length", "length": 2})
        reply = await whole(client, params={"stop_token_ids": [2]})
        assert (ids_of(reply), reply["meta_info"]["finish_reason"]) == ([1, 2], {"type": "stop", "matched": 2})
        assert ids_of(await whole(client, params={"max_new_tokens": 0})) == []


async def test_the_default_reply_depends_on_the_prompt_alone() -> None:
    async with running() as (_, client):
        first, again, other = [await whole(client, ids) for ids in (PROMPT, PROMPT, [5, 6])]
        assert ids_of(first) == ids_of(again) != ids_of(other)
        assert first["output_ids"][-1] == EOS
        assert EOS not in first["output_ids"][:-1]


@pytest.mark.parametrize(
    ("payload", "status", "error"),
    [
        (
            body(params={"max_tokens": 5}),
            400,
            "unknown field `max_tokens`, expected one of `max_new_tokens`, `stop`",
        ),
        (body(stream=1), 400, "invalid type: integer `1`, expected a boolean"),
        (body(params={"temperature": "hot"}), 400, 'invalid type: string "hot", expected f64'),
        (body([]), 400, {"message": "input_ids cannot be empty."}),
        (
            body(list(range(50))),
            400,
            {"message": "The input (50 tokens) is longer than the model's context length (50 tokens)."},
        ),
    ],
)
async def test_a_bad_body_gets_sglangs_status_and_words(payload: Json, status: int, error: object) -> None:
    async with running(context_length=50) as (engine, client):
        engine.replies.append(Reply(ids=[1]))
        got, reply = await post(client, "/generate", payload)
        assert got == status
        assert reply["error"] == error or reply["error"].startswith(error)
        assert len(engine.replies) == 1, "a refused request must not use up a reply"


async def test_a_stream_that_asks_too_much_is_refused_inside_http_200() -> None:
    async with running(context_length=50) as (engine, client):
        (event,) = await stream(client, params={"max_new_tokens": 48})
        assert event["error"]["code"] == 400
        assert event["error"]["message"].startswith(
            "Requested token count exceeds the model's maximum context length of 50 tokens. "
            "You requested a total of 51 tokens: 3 tokens from the input messages and 48 tokens for the completion."
        )
        assert engine.requests[0].outcome == "rejected"


async def test_a_body_without_the_json_content_type_or_no_json_is_refused() -> None:
    async with running() as (engine, client):
        for content_type, data in (("text/plain", json.dumps(body())), ("application/json", "{oops")):
            async with client.post("/generate", data=data, headers={"Content-Type": content_type}) as response:
                assert response.status == 400
                assert (await response.json())["object"] == "error"
        assert engine.requests == []
        assert [call.status for call in engine.recorder.calls_to("/generate")] == [400, 400]


async def test_information_routes_and_the_routers_workers_path() -> None:
    async with running(model_path="m", parsers=("qwen3", "hermes"), weight_version="v3") as (_, client):
        info = await (await client.get("/model_info")).json()
        assert (info["weight_version"], info["reasoning_parser"], info["tool_call_parser"]) == (
            "v3",
            "qwen3",
            "hermes",
        )
        models = await (await client.get("/v1/models")).json()
        assert models["data"][0]["id"] == "m"
        assert (await client.get("/v1/models/other")).status == 404
        for path in ("/workers", "/get_weight_version"):
            response = await client.get(path)
            assert (response.status, await response.json()) == (404, {"detail": "Not Found"})
        assert [(await client.get(path)).status for path in ("/health", "/ready", "/ping")] == [200] * 3


async def test_with_both_keys_admin_paths_take_only_the_admin_key() -> None:
    async with running(api_key="user", admin_key="root") as (_, client):
        user, root = ({"Authorization": f"Bearer {name}"} for name in ("user", "root"))
        assert await post(client, "/generate", body(), headers=root) == (401, {"error": "Unauthorized"})
        assert (await post(client, "/generate", body(), headers=user))[0] == 200
        assert (await post(client, "/abort_request", {"rid": ""}, headers=user))[0] == 401
        assert await post(client, "/abort_request", {"rid": ""}, headers=root) == (200, "")
        assert (await client.get("/health")).status == 200


async def test_an_id_outside_the_vocabulary_kills_the_engine() -> None:
    async with running() as (engine, client):
        with pytest.raises(aiohttp.ClientError):
            await whole(client, [1, 1000])
        assert engine.crashed
        with pytest.raises(aiohttp.ClientConnectorError):
            await client.get("/ready")
        await engine.up()
        assert ids_of(await whole(client))


# Abort and rids.


async def held(engine: FakeSGLang, ids: list[int], after: int, **options: Any) -> asyncio.Event:
    hold = asyncio.Event()
    engine.replies.append(Reply(ids=ids, hold=hold, hold_after=after, **options))
    return hold


async def test_an_aborted_request_returns_its_partial_ids_with_status_200() -> None:
    async with running() as (engine, client):
        await held(engine, [1, 2, 3, 4], 2)
        call = await background(whole(client, rid="r"))
        (request,) = await engine.wait_requests(1)
        await engine.wait_tokens(request, 2)
        assert await post(client, "/abort_request", {"rid": "unknown"}) == (200, "")
        assert await post(client, "/abort_request", {"rid": "r"}) == (200, "")
        reply = await call
        assert ids_of(reply) == [1, 2]
        assert reply["meta_info"]["finish_reason"] == {
            "type": "abort",
            "message": "Aborted",
            "status_code": None,
            "err_type": None,
        }
        assert request.outcome == "aborted"


async def test_an_abort_hits_every_rid_with_that_prefix_but_only_if_the_rid_itself_exists() -> None:
    async with running() as (engine, client):
        for _ in range(2):
            await held(engine, [1, 2], 1)
        calls = [await background(whole(client, rid=rid)) for rid in ("t-1", "t-10")]
        for request in await engine.wait_requests(2):
            await engine.wait_tokens(request, 1)
        await post(client, "/abort_request", {"rid": "t-"})
        assert [request.outcome for request in engine.requests] == ["running", "running"]
        await post(client, "/abort_request", {"rid": "t-1"})
        assert [ids_of(reply) for reply in await asyncio.gather(*calls)] == [[1], [1]]


async def test_an_abort_in_the_waiting_queue_returns_no_ids_and_sparse_meta_info() -> None:
    async with running(max_running_requests=1) as (engine, client):
        hold = await held(engine, [1, 2], 1)
        first = await background(whole(client))
        await engine.wait_tokens((await engine.wait_requests(1))[0], 1)
        second = await background(whole(client, rid="queued"))
        await engine.wait_until(lambda: len(engine.state.jobs) == 2)
        await post(client, "/abort_request", {"rid": "queued"})
        reply = await second
        assert reply["output_ids"] == []
        assert reply["meta_info"]["finish_reason"] == {"type": "abort", "message": "Abort in waiting queue"}
        assert not {"prompt_tokens", "cached_tokens"} & reply["meta_info"].keys()
        hold.set()
        assert ids_of(await first) == [1, 2, EOS]


async def test_a_request_too_many_for_the_queue_is_a_503_and_in_a_stream_an_abort_with_that_status() -> None:
    async with running(max_running_requests=1, max_queued_requests=1) as (engine, client):
        hold = await held(engine, [1, 2], 1)
        first = await background(whole(client))
        await engine.wait_tokens((await engine.wait_requests(1))[0], 1)
        second = await background(whole(client))
        await engine.wait_until(lambda: len(engine.state.jobs) == 2)
        status, refusal = await post(client, "/generate", body())
        assert (status, refusal["message"]) == (503, "The request queue is full.")
        [event] = await stream(client)
        reason = event["meta_info"]["finish_reason"]
        assert (reason["type"], reason["status_code"]) == ("abort", 503)
        assert event["output_ids"] == []
        hold.set()
        assert ids_of(await first) == [1, 2, EOS]
        assert ids_of(await second)


@pytest.mark.parametrize(
    ("version", "flag", "missing"),
    [
        ("0.5.9", "stream_output", {"num_retractions", "output_token_logprobs_length", "weight_versions"}),
        ("0.5.11", "incremental_streaming_output", {"num_retractions", "weight_versions"}),
        ("0.5.18", "incremental_streaming_output", {"weight_versions"}),
        ("0.5.19", "incremental_streaming_output", set()),
    ],
)
async def test_an_older_server_lacks_what_came_later(version: str, flag: str, missing: set[str]) -> None:
    later = {"num_retractions", "output_token_logprobs_length", "weight_versions"}
    async with running(version=version, incremental=True) as (engine, client):
        engine.replies.append(Reply(ids=[1, 2]))
        last = (await stream(client))[-1]
        assert later - last["meta_info"].keys() == missing
        async with client.get("/server_info") as response:
            info = await response.json()
        assert info[flag] is True
        assert info["version"] == version


async def test_a_script_can_keep_a_request_in_the_waiting_queue_once() -> None:
    async with running() as (engine, client):
        engine.replies.append(Reply(ids=[1, 2], queue=asyncio.Event()))
        call = await background(whole(client, rid="r"))
        await engine.wait_until(lambda: engine.state.jobs)
        await post(client, "/abort_request", {"rid": "r"})
        assert (await call)["meta_info"]["finish_reason"]["message"] == "Abort in waiting queue"
        assert ids_of(await whole(client)) == [1, 2, EOS]


async def test_an_abort_before_the_scheduler_has_the_request_does_nothing_and_a_repeat_is_ignored() -> None:
    async with running() as (engine, client):
        await post(client, "/pause_generation", {})
        hold = await held(engine, [1, 2], 1)
        call = await background(whole(client, rid="r"))
        (request,) = await engine.wait_requests(1)
        await post(client, "/abort_request", {"rid": "r"})
        await post(client, "/continue_generation", {})
        await engine.wait_tokens(request, 1)
        await post(client, "/abort_request", {"rid": "r"})
        hold.set()
        assert ids_of(await call) == [1, 2, EOS]


async def test_a_rid_in_flight_is_refused_and_one_reused_after_a_stream_is_aborted() -> None:
    async with running(timings=Timings(rid_reuse=0.05)) as (engine, client):
        await stream(client, rid="r")
        await held(engine, [1, 2], 1)
        call = await background(whole(client, rid="r"))
        await engine.wait_requests(2)
        status, reply = await post(client, "/generate", body(rid="r"))
        assert (status, reply) == (400, {"error": {"message": "Duplicate request ID detected: r"}})
        assert (await call)["meta_info"]["finish_reason"]["type"] == "abort"


async def test_a_refused_stream_with_a_duplicate_rid_kills_the_request_that_has_it() -> None:
    async with running(timings=Timings(rid_reuse=0.05)) as (engine, client):
        await held(engine, [1, 2], 1)
        call = await background(whole(client, rid="r"))
        await engine.wait_tokens((await engine.wait_requests(1))[0], 1)
        (event,) = await stream(client, rid="r")
        assert event["error"]["message"] == "Duplicate request ID detected: r"
        assert (await call)["meta_info"]["finish_reason"]["type"] == "abort"


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_client_that_leaves_cancels_its_request(streamed: bool) -> None:
    async with running() as (engine, client):
        await held(engine, [1, 2], 1)
        call = await background((stream if streamed else whole)(client))
        (request,) = await engine.wait_requests(1)
        await engine.wait_tokens(request, 1)
        call.cancel()
        await engine.wait_idle()
        assert (request.outcome, request.output_ids) == ("disconnected", [1])


# Pause and versions.


async def test_pause_aborts_what_runs_blocks_what_comes_and_the_reply_goes_on_afterwards() -> None:
    async with running() as (engine, client):
        await held(engine, [1, 2, 3, 4], 2)
        call = await background(stream(client, headers=key("s")))
        (request,) = await engine.wait_requests(1)
        await engine.wait_tokens(request, 2)
        assert (await post(client, "/pause_generation", {}))[1]["status"] == "ok"
        partial = ids_of((await call)[-1])
        assert partial == [1, 2]
        blocked = await background(stream(client, PROMPT + partial, headers=key("s")))
        _, second = await engine.wait_requests(2)
        assert (await client.get("/ready")).status == 503
        assert (await client.get("/health")).status == 503
        assert (second.outcome, second.output_ids) == ("running", [])
        await post(client, "/update_weight_version", {"new_version": "v2"})
        await post(client, "/continue_generation", {})
        rest = (await blocked)[-1]
        assert ids_of(rest) == [3, 4, EOS]
        assert rest["meta_info"]["weight_versions"] == [{"version": "v2", "start": 0, "end": 3}]
        assert second.continues is request
        engine.assert_i1("s")


@pytest.mark.parametrize(("mode", "retractions", "flushed"), [("in_place", 0, 400), ("retract", 1, 200)])
async def test_a_version_that_changes_inside_a_request_gives_two_spans(
    mode: str, retractions: int, flushed: int
) -> None:
    async with running() as (engine, client):
        hold = await held(engine, [1, 2, 3], 2)
        call = await background(whole(client))
        (request,) = await engine.wait_requests(1)
        await engine.wait_tokens(request, 2)
        assert (await post(client, "/pause_generation", {"mode": mode}))[0] == 200
        hold.set()
        assert (await client.post("/flush_cache")).status == flushed
        update = {"model_path": "new", "weight_version": "v2", "flush_cache": mode == "retract"}
        assert (await post(client, "/update_weights_from_disk", update))[1]["success"] is True
        assert request.output_ids == [1, 2]
        await post(client, "/continue_generation", {})
        meta = (await call)["meta_info"]
        assert meta["weight_versions"] == [
            {"version": "default", "start": 0, "end": 2},
            {"version": "v2", "start": 2, "end": 4},
        ]
        assert (meta["weight_version"], meta["num_retractions"]) == ("v2", retractions)


async def test_a_retracted_request_aborted_while_it_waits_repeats_its_last_id_on_an_incremental_server() -> None:
    async with running(incremental=True) as (engine, client):
        await held(engine, [1, 2, 3], 2)
        call = await background(stream(client, rid="r"))
        await engine.wait_tokens((await engine.wait_requests(1))[0], 2)
        await post(client, "/pause_generation", {"mode": "retract"})
        await post(client, "/abort_request", {"rid": "r"})
        last = (await call)[-1]
        assert last["output_ids"] == [2]
        assert last["meta_info"]["completion_tokens"] == 2
        assert [entry[1] for entry in last["meta_info"]["output_token_logprobs"]] == [1, 2]


async def test_update_weight_version_aborts_everything_unless_told_not_to() -> None:
    async with running(version_spans=False) as (engine, client):
        await held(engine, [1, 2], 1)
        call = await background(whole(client))
        await engine.wait_tokens((await engine.wait_requests(1))[0], 1)
        await post(client, "/update_weight_version", {"new_version": "v2", "abort_all_requests": False})
        assert not call.done()
        await post(client, "/update_weight_version", {"new_version": "v3"})
        meta = (await call)["meta_info"]
        assert (meta["finish_reason"]["type"], meta["weight_version"]) == ("abort", "v3")
        assert "weight_versions" not in meta


async def test_weights_outside_a_pause_wait_for_running_requests_and_a_bad_pause_mode_is_refused() -> None:
    async with running() as (engine, client):
        hold = await held(engine, [1, 2], 1)
        call = await background(whole(client))
        await engine.wait_tokens((await engine.wait_requests(1))[0], 1)
        update = await background(
            post(client, "/update_weights_from_disk", {"model_path": "m", "weight_version": "v2"})
        )
        await engine.wait_until(lambda: engine.state.updating)
        assert (await post(client, "/pause_generation", {"mode": "nap"}))[0] == 400
        hold.set()
        assert (await call)["meta_info"]["weight_version"] == "default"
        assert (await update)[0] == 200
        assert engine.state.weight_version == "v2"


# Continuations.


async def test_a_dropped_stream_goes_on_from_any_prefix_of_its_ids_and_the_queue_is_untouched() -> None:
    async with running() as (engine, client):
        engine.replies += [Reply(ids=[1, 2, 3, 4], faults=faults.DropConnection(after=3)), Reply(ids=[50])]
        with pytest.raises(aiohttp.ClientPayloadError):
            await stream(client, headers=key("s"))
        elsewhere = ids_of((await stream(client, [*PROMPT, 1, 2], headers=key("other")))[-1])
        assert elsewhere == [50, EOS]
        assert ids_of((await stream(client, [*PROMPT, 1, 2], headers=key("s")))[-1]) == [3, 4, EOS]
        engine.assert_i1("s")


async def test_logprobs_of_a_reply_in_two_requests_are_those_of_one() -> None:
    async with running() as (engine, client):
        engine.script = lambda _: Reply(ids=[1, 2, 3, 4])
        at_once = await whole(client, [5, 5])
        engine.fail_next(faults.DropConnection(after=2))
        with pytest.raises(aiohttp.ClientError):
            await whole(client, [5, 5])
        rest = await whole(client, [5, 5, 1, 2])
        assert rest["meta_info"]["output_token_logprobs"] == at_once["meta_info"]["output_token_logprobs"][2:]


async def test_without_continue_aborted_every_request_is_a_new_reply() -> None:
    async with running(continue_aborted=False) as (engine, client):
        engine.replies += [Reply(ids=[1, 2], faults=faults.DropConnection(after=1)), Reply(ids=[3])]
        with pytest.raises(aiohttp.ClientError):
            await whole(client)
        assert ids_of(await whole(client)) == [3, EOS]


async def test_an_engine_that_goes_down_comes_back_on_the_same_port_and_goes_on() -> None:
    async with running() as (engine, client):
        await held(engine, [1, 2, 3], 2)
        call = await background(stream(client))
        (request,) = await engine.wait_requests(1)
        await engine.wait_tokens(request, 2)
        url = engine.url
        await engine.down()
        with pytest.raises(aiohttp.ClientError):
            await call
        assert request.outcome == "lost"
        with pytest.raises(aiohttp.ClientConnectorError):
            await client.get("/ready")
        await engine.up()
        assert engine.url == url
        assert ids_of((await stream(client, [*PROMPT, 1, 2]))[-1]) == [3, EOS]


# Faults.


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        (faults.HttpError(500), lambda status, text: status == 500 and "error" in json.loads(text)),
        (faults.HtmlBody(200), lambda status, text: status == 200 and text.startswith("<html>")),
        (faults.HtmlBody(), lambda status, text: status == 502 and text.startswith("<html>")),
        (faults.StreamError(1), lambda _, text: '"retryable":false' in text and text.count("[DONE]") == 1),
        (faults.EngineAbort(1, 503, None), lambda _, text: '"status_code":503,"err_type":null' in text),
        (faults.DropConnection(1, clean=True), lambda _, text: "[DONE]" not in text and text.count("data:") == 1),
        (faults.GarbageChunk(1), lambda _, text: "{oops" in text and "[DONE]" in text),
        (faults.BadLogprob(index=1), lambda _, text: "[NaN,2," in text),
        (faults.BadLogprob(0.5, 0), lambda _, text: "[0.5,1," in text),
        (faults.CompletionTokens(1), lambda _, text: '"completion_tokens":4' in text.split("data:")[-2]),
    ],
)
async def test_a_fault_strikes_one_stream_and_the_retry_gets_the_whole_reply(
    fault: faults.Fault, check: Callable[[int, str], bool]
) -> None:
    async with running() as (engine, client):
        engine.script = lambda _: Reply(ids=[1, 2])
        engine.fail_next(fault)
        async with client.post("/generate", json=body(stream=True)) as response:
            assert check(response.status, await response.text())
        assert ids_of((await stream(client))[-1]) == [1, 2, EOS]


async def test_ids_and_logprobs_can_differ_in_number() -> None:
    async with running(incremental=True) as (engine, client):
        for delta in (-1, 2):
            engine.replies.append(Reply(ids=[1, 2], faults=faults.LogprobCount(delta)))
            reply = await whole(client)
            assert len(reply["meta_info"]["output_token_logprobs"]) == len(reply["output_ids"]) + delta


async def test_an_abort_with_a_status_code_is_an_http_error_without_a_stream() -> None:
    async with running() as (engine, client):
        engine.fail_next(faults.EngineAbort(status_code=400, err_type="BadRequestError", message="bad grammar"))
        assert await post(client, "/generate", body()) == (400, {"error": {"message": "bad grammar"}})
        engine.fail_next(faults.EngineAbort(status_code=503, err_type=None, message="The request queue is full."))
        status, reply = await post(client, "/generate", body())
        assert (status, reply["code"], reply["message"]) == (503, 503, "The request queue is full.")


@pytest.mark.parametrize("fault", [faults.Silence(headers=False), faults.Silence(after=1), faults.SlowStart(30.0)])
async def test_a_silent_engine_neither_holds_up_a_pause_nor_its_own_stop(fault: faults.Fault) -> None:
    async with running() as (engine, client):
        engine.fail_next(fault)
        call = await background(stream(client))
        (request,) = await engine.wait_requests(1)
        if fault == faults.Silence(after=1):
            await engine.wait_until(lambda: request.done)
        assert (await post(client, "/pause_generation", {}))[0] == 200
        assert not call.done()
        call.cancel()


async def test_a_script_that_makes_no_sense_is_loud() -> None:
    with pytest.raises(ScriptError, match="exactly one of ids and text"):
        Reply(ids=[1], text="a")
    engine = FakeSGLang(vocab_size=1000, eos_token_ids=(EOS,))
    await engine.start()
    async with aiohttp.ClientSession(engine.url) as client:
        engine.replies.append(Reply(text="needs a tokenizer"))
        status, reply = await post(client, "/generate", body())
    assert status == 500
    assert "needs a tokenizer" in reply["error"]["message"]
    with pytest.raises(ScriptError, match="needs a tokenizer"):
        await engine.stop()


# The I1 assertion.


async def test_i1_accepts_a_growing_conversation_and_its_branches() -> None:
    async with running() as (engine, client):
        first = [*PROMPT, *ids_of((await stream(client, headers=key("s")))[-1])]
        for tail in ([30, 31], [40]):
            await stream(client, first + tail, headers=key("s"))
        await stream(client, headers=key("t"))
        assert [engine.recorder.find_parent(request) for request in engine.recorder.session("s")[1:]] == [
            engine.requests[0]
        ] * 2
        engine.assert_i1()
        with pytest.raises(AssertionError, match="does not continue the one before it"):
            engine.recorder.assert_append_only("s")


async def test_i1_names_the_first_id_that_differs() -> None:
    tokenizer = byte_tokenizer()
    end = tokenizer.token_to_id("<|end|>")
    async with running(vocab_size=None, tokenizer=tokenizer, eos_token_ids=(end,)) as (engine, client):
        engine.replies.append(Reply(text="hello"))
        ids = tokenizer.encode("hi").ids
        sampled = ids_of((await stream(client, ids, headers=key("s")))[-1])
        changed = [*ids, *sampled[:-1], *tokenizer.encode("\n").ids]
        await stream(client, changed, headers=key("s"))
        with pytest.raises(AssertionError) as caught:
            engine.assert_i1("s")
        message = str(caught.value)
        assert "first difference is at index 7, in its output" in message
        assert f"expected id {end}" in message
        assert f"got      id {changed[7]}" in message
        assert "hello<|end|>" in message
        engine.assert_i1("s", expected_roots=2)
        with pytest.raises(AssertionError, match="no request was recorded"):
            engine.assert_i1("misspelt")


async def test_i1_does_not_take_a_retokenised_partial_for_a_continuation() -> None:
    async with running() as (engine, client):
        engine.replies.append(Reply(ids=[1, 2, 3], faults=faults.DropConnection(after=2)))
        with pytest.raises(aiohttp.ClientError):
            await stream(client, headers=key("s"))
        await stream(client, [*PROMPT, 1, 9], headers=key("s"))
        with pytest.raises(AssertionError, match="first difference is at index 4, in its output"):
            engine.assert_i1("s")


def test_growing_text_equals_the_text_of_all_ids_for_any_bytes() -> None:
    tokenizer = byte_tokenizer()
    rng = random.Random(1)
    for _ in range(200):
        ids = tokenizer.encode("".join(rng.choice("aé€🙂\n ") for _ in range(rng.randint(0, 12)))).ids
        growing = GrowingText(Vocabulary(None, (), tokenizer, None), skip_special_tokens=True)
        seen = [""]
        for token_id in ids:
            growing.push(token_id)
            assert growing.text.startswith(seen[-1])
            assert "\ufffd" not in growing.text
            seen.append(growing.text)
        assert growing.text == tokenizer.decode(ids)
