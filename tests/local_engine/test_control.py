"""Abort, disconnect, pause and versions of the embedded engine; what it refuses and what it tells."""

import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from sidecar.local_engine import LocalEngine, ModelFiles
from tests.local_engine.client import (
    CONTEXT,
    LIVENESS,
    MARKS,
    Client,
    ids_of,
    request_body,
    started_stream,
    until,
)

pytestmark = MARKS


def test_an_abort_gives_the_partial_ids_and_continuing_gives_the_rest(
    client: Client, chat: Callable[[str], list[int]], pool: ThreadPoolExecutor
) -> None:
    prompt = chat("Count to thirty.")
    whole = client.generate(prompt, ignore_eos=True, max_new_tokens=80)["output_ids"]
    events, done = started_stream(client, pool, prompt, "cut-1", ignore_eos=True, max_new_tokens=80)
    assert client.post("/abort_request", json={"rid": "cut-1"}).status_code == 200
    done.result(LIVENESS)
    partial = ids_of(events)
    last = events[-1]["meta_info"]
    assert last["finish_reason"] == {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
    assert last["completion_tokens"] == len(partial)
    assert last["weight_versions"] == [{"version": "default", "start": 0, "end": len(partial)}]
    assert 0 < len(partial) < len(whole)
    assert partial == whole[: len(partial)]
    rest = client.generate([*prompt, *partial], ignore_eos=True, max_new_tokens=80 - len(partial))
    assert partial + rest["output_ids"] == whole


def test_an_abort_takes_every_request_whose_id_begins_with_the_given_one(
    client: Client, chat: Callable[[str], list[int]], pool: ThreadPoolExecutor
) -> None:
    streams = [
        started_stream(client, pool, chat(rid), rid, ignore_eos=True, max_new_tokens=400)
        for rid in ("t-1", "t-10", "u-1")
    ]
    assert client.post("/abort_request", json={"rid": "t"}).status_code == 200  # no such request: no effect
    assert client.get("/server_info").json()["internal_states"][0]["num_running_requests"] == 3
    client.post("/abort_request", json={"rid": "t-1"})
    for events, done in streams[:2]:
        done.result(LIVENESS)
        assert events[-1]["meta_info"]["finish_reason"]["type"] == "abort"
    assert not streams[2][1].done()
    reply = client.post("/abort_request", json={"abort_all": True})
    assert (reply.status_code, reply.content) == (200, b"")
    streams[2][1].result(LIVENESS)
    assert client.post("/abort_request", json={"rid": "unknown"}).status_code == 200


def test_a_request_aborted_before_it_runs_has_no_ids_and_a_sparse_reply(
    client: Client, chat: Callable[[str], list[int]], pool: ThreadPoolExecutor, engine: LocalEngine
) -> None:
    client.post("/pause_generation", json={})
    waiting = pool.submit(client.generate, chat("hi"), rid="queued")
    until(lambda: engine.num_running == 1)
    refused = client.refusal(chat("hi"), rid="queued")
    assert refused == {"message": "Duplicate request ID detected: queued"}
    client.post("/abort_request", json={"rid": "queued"})
    reply = waiting.result(LIVENESS)
    assert reply["output_ids"] == []
    assert reply["meta_info"]["finish_reason"] == {"type": "abort", "message": "Abort in waiting queue"}
    assert "prompt_tokens" not in reply["meta_info"]


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_ends_its_generation(
    stream: bool, address: str, client: Client, chat: Callable[[str], list[int]], engine: LocalEngine
) -> None:
    body = request_body(chat("Tell me everything."), stream=stream, ignore_eos=True, max_new_tokens=900)
    with Client(base_url=address, timeout=LIVENESS) as leaving:
        if stream:
            with leaving.stream("POST", "/generate", json=body) as reply:
                lines = reply.iter_lines()  # kept: httpx closes the connection with its iterator
                next(lines)
                client.post("/pause_generation", json={"mode": "in_place"})  # so that it cannot end by itself
                assert engine.num_running == 1
        else:
            client.post("/pause_generation", json={"mode": "in_place"})
            leaving.timeout = httpx.Timeout(LIVENESS, read=0.3)
            with pytest.raises(httpx.ReadTimeout):
                leaving.post("/generate", json=body)
    until(lambda: engine.num_running == 0)


def test_a_pause_aborts_what_runs_blocks_what_comes_and_continue_releases_it(
    client: Client, chat: Callable[[str], list[int]], pool: ThreadPoolExecutor, engine: LocalEngine
) -> None:
    events, done = started_stream(client, pool, chat("Count on."), "runs", ignore_eos=True, max_new_tokens=400)
    paused = client.post("/pause_generation", json={}).json()
    assert paused["status"] == "ok"
    done.result(LIVENESS)
    assert events[-1]["meta_info"]["finish_reason"]["type"] == "abort"
    assert client.get("/ready").status_code == 503
    assert client.get("/health").status_code == 200
    blocked = pool.submit(client.generate, chat("hi"), max_new_tokens=3)
    until(lambda: engine.num_running == 1)
    assert client.get("/flush_cache").status_code == 400
    assert not blocked.done()
    assert client.post("/continue_generation", json={}).json()["status"] == "ok"
    assert len(blocked.result(LIVENESS)["output_ids"]) == 3
    assert client.get("/ready").status_code == 200
    assert client.post("/flush_cache").status_code == 200
    assert client.post("/pause_generation", json={"mode": "sideways"}).status_code == 400


def test_a_request_held_over_a_version_change_goes_on_and_keeps_both_versions(
    client: Client, chat: Callable[[str], list[int]], pool: ThreadPoolExecutor, engine: LocalEngine
) -> None:
    prompt = chat("Count to forty.")
    whole = client.generate(prompt, ignore_eos=True, max_new_tokens=60)["output_ids"]
    try:
        events, done = started_stream(client, pool, prompt, "held", ignore_eos=True, max_new_tokens=60)
        client.post("/pause_generation", json={"mode": "retract"})
        changed = client.post("/update_weight_version", json={"new_version": "7", "abort_all_requests": False})
        assert changed.json()["success"] is True
        assert client.get("/model_info").json()["weight_version"] == "7"
        assert not done.done()
        client.post("/continue_generation", json={})
        done.result(LIVENESS)
        assert ids_of(events) == whole
        meta = events[-1]["meta_info"]
        cut = meta["weight_versions"][0]["end"]
        assert 0 < cut < 60
        assert meta["weight_versions"] == [
            {"version": "default", "start": 0, "end": cut},
            {"version": "7", "start": cut, "end": 60},
        ]
        assert (meta["weight_version"], meta["num_retractions"]) == ("7", 1)
    finally:
        client.post("/update_weight_version", json={"new_version": "default"})


def test_a_new_version_aborts_what_runs_unless_told_otherwise(
    client: Client, chat: Callable[[str], list[int]], pool: ThreadPoolExecutor
) -> None:
    events, done = started_stream(client, pool, chat("Go on."), "old", ignore_eos=True, max_new_tokens=400)
    client.post("/update_weight_version", json={"new_version": "default"})
    done.result(LIVENESS)
    assert events[-1]["meta_info"]["finish_reason"]["type"] == "abort"


def test_an_unknown_sampling_key_or_type_is_refused_with_a_string(
    client: Client, chat: Callable[[str], list[int]]
) -> None:
    assert client.refusal(chat("hi"), max_tokens=4).startswith("unknown field `max_tokens`, expected one of")
    assert "integer `1`, expected a boolean" in client.refusal(chat("hi"), ignore_eos=1)
    assert client.refusal(chat("hi"), stream=True, max_tokens=4).startswith("unknown field")


@pytest.mark.parametrize(
    ("sampling", "said"),
    [
        ({"json_schema": "{}"}, "json_schema"),
        ({"regex": "a+"}, "regex"),
        ({"n": 2}, "n must be 1"),
        ({"top_p": 0}, "top_p must be in (0, 1]"),
        ({"min_new_tokens": 30}, "min_new_tokens must be in [0, max_new_tokens(24)]"),
        ({"max_new_tokens": CONTEXT}, "Requested token count exceeds the model's maximum context length of 1024"),
    ],
)
def test_what_cannot_be_honoured_is_refused_in_words(
    sampling: dict[str, Any], said: str, client: Client, chat: Callable[[str], list[int]]
) -> None:
    assert said in client.refusal(chat("hi"), **sampling)["message"]
    (event,) = client.events(chat("hi"), **sampling)
    assert said in event["error"]["message"]
    assert (event["error"]["code"], event["error"]["retryable"]) == (400, False)


@pytest.mark.parametrize("bad", [-1, 49152, 999_999_999, 1.5, True, "7"])
def test_an_id_outside_the_vocabulary_is_refused(bad: Any, client: Client) -> None:
    assert "input_ids" in client.refusal([1, bad, 2])["message"]


def test_an_input_as_long_as_the_context_is_refused_in_sglangs_words(client: Client) -> None:
    said = client.refusal([5] * CONTEXT)["message"]
    assert said == "The input (1024 tokens) is longer than the model's context length (1024 tokens)."


@pytest.mark.parametrize("bad", [None, [], [[1, 2]], "text"])
def test_anything_but_a_list_of_ids_is_refused(bad: Any, client: Client) -> None:
    assert "input_ids" in client.refusal(bad)["message"]


def test_the_engine_tells_what_a_sidecar_asks(client: Client, files: ModelFiles) -> None:
    info = client.get("/model_info").json()
    assert info["tokenizer_path"] == str(files.tokenizer_dir)
    assert info["weight_version"] == "default"
    (model,) = client.get("/v1/models").json()["data"]
    assert model["max_model_len"] == client.get("/server_info").json()["context_length"] == CONTEXT
    assert client.get(f"/v1/models/{model['id']}").json() == model
    assert client.get("/v1/models/other").json()["error"]["code"] == "model_not_found"
    assert client.get("/health").status_code == client.get("/ready").status_code == 200


def test_the_engine_leaves_the_signal_handlers_alone(client: Client, caught_signals: list[int]) -> None:
    signal.raise_signal(signal.SIGTERM)
    assert caught_signals == [signal.SIGTERM]
    assert client.get("/health").status_code == 200
