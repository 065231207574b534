"""What the embedded engine samples: ids, logprobs, text, and how a generation ends."""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.local_engine.client import (
    EMOJI_PROMPT,
    END_OF_TURN,
    LOGPROB_TOLERANCE,
    MARKS,
    NEARLY_DONE,
    Client,
    logprob_ids_of,
    logprobs_of,
)

pytestmark = MARKS


def test_greedy_ids_and_logprobs_are_those_of_the_shipped_model(
    client: Client, chat: Callable[[str], list[int]], shipped: httpx.Client
) -> None:
    prompt = chat("Name three colours.")
    reply = client.generate(prompt, max_new_tokens=16)
    ids, logprobs = reply["output_ids"], logprobs_of(reply)
    assert logprob_ids_of(reply) == ids
    request = {"prompt": prompt, "n_predict": 16, "temperature": 0, "n_probs": 1, "return_tokens": True}
    own = shipped.post("/completion", json=request).json()
    assert ids == own["tokens"]
    expected = [entry["logprob"] for entry in own["completion_probabilities"]]
    assert logprobs == pytest.approx(expected, abs=LOGPROB_TOLERANCE)


def test_the_tokens_of_an_emoji_all_come_with_their_logprobs(client: Client, tokenizer: Any) -> None:
    prompt = tokenizer.encode(EMOJI_PROMPT, add_special_tokens=False)
    events = list(client.events(prompt, max_new_tokens=12))
    ids = [token_id for event in events for token_id in event["output_ids"]]
    text = "".join(event["text"] for event in events)
    assert len(ids) == events[-1]["meta_info"]["completion_tokens"] == 12
    assert [token_id for event in events for token_id in logprob_ids_of(event)] == ids
    assert text == tokenizer.decode(ids) and "🎉" in text
    assert all("\ufffd" not in event["text"] for event in events[:-1])


def test_sampled_logprobs_are_finite_and_not_positive_and_greedy_again_gives_equal_ones(
    client: Client, chat: Callable[[str], list[int]]
) -> None:
    hot = client.generate(chat("Tell me a story."), temperature=1.5, max_new_tokens=40)
    assert hot["meta_info"]["completion_tokens"] == len(logprobs_of(hot)) == len(hot["output_ids"])
    assert all(math.isfinite(logprob) and logprob <= 0 for logprob in logprobs_of(hot))
    first, second = (client.generate(chat("Count to five.")) for _ in range(2))
    assert first["output_ids"] == second["output_ids"]
    assert first["text"] == second["text"]
    assert logprobs_of(first) == pytest.approx(logprobs_of(second), abs=LOGPROB_TOLERANCE)


def test_an_equal_sampling_seed_draws_equal_ids(client: Client, chat: Callable[[str], list[int]]) -> None:
    prompt = chat("Write a word.")
    client.generate(prompt, max_new_tokens=1)  # so that both runs find the prompt cached
    sampled = [
        client.generate(prompt, temperature=1.0, sampling_seed=seed, max_new_tokens=12)["output_ids"]
        for seed in (1, 1, 2)
    ]
    assert sampled[0] == sampled[1] != sampled[2]


@pytest.mark.parametrize("interval", [1, 4])
def test_a_stream_is_incremental_and_adds_up_to_the_plain_reply(
    interval: int, client: Client, chat: Callable[[str], list[int]]
) -> None:
    prompt = chat("What is the capital of France?")
    whole = client.generate(prompt)
    events = list(client.events(prompt, stream_interval=interval))
    assert len(events) > 2
    assert "".join(event["text"] for event in events) == whole["text"]
    ids = [token_id for event in events for token_id in event["output_ids"]]
    assert ids == whole["output_ids"]
    assert [token_id for event in events for token_id in logprob_ids_of(event)] == ids
    count = 0
    for event in events:
        count += len(event["output_ids"])
        assert event["meta_info"]["completion_tokens"] == count
        assert event["meta_info"]["output_token_logprobs_length"] == count
    assert [event["meta_info"]["finish_reason"] for event in events[:-1]] == [None] * (len(events) - 1)
    last = events[-1]["meta_info"]
    assert last["finish_reason"] == whole["meta_info"]["finish_reason"]
    assert last["weight_versions"] == [{"version": "default", "start": 0, "end": count}]
    assert client.get("/server_info").json()["incremental_streaming_output"] is True


def test_turns_of_a_conversation_continue_from_the_cached_ids(
    client: Client, chat: Callable[[str], list[int]], tokenizer: Any
) -> None:
    ids = chat("Hello! My name is Ada.")
    for question in ("What is two plus two?", "And what is my name?", "Say goodbye."):
        reply = client.generate(ids, max_new_tokens=48)
        assert reply["meta_info"]["prompt_tokens"] == len(ids)
        if reply["meta_info"]["finish_reason"]["type"] == "length":
            reply["output_ids"].append(END_OF_TURN)
        ids = ids + reply["output_ids"]
        known = len(ids)
        turn = f"\n<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
        ids = ids + tokenizer.encode(turn, add_special_tokens=False)
    last = client.generate(ids)
    assert last["meta_info"]["cached_tokens"] >= known - 2
    assert last["meta_info"]["cached_tokens"] < len(ids)


def test_more_requests_than_slots_all_end_with_their_own_ids(
    client: Client, chat: Callable[[str], list[int]], pool: ThreadPoolExecutor
) -> None:
    prompts = [chat(f"Write about number {number}.") for number in range(7)]
    replies = list(pool.map(lambda prompt: client.generate(prompt, ignore_eos=True, max_new_tokens=8), prompts))
    assert [len(reply["output_ids"]) for reply in replies] == [8] * 7
    assert len({reply["meta_info"]["id"] for reply in replies}) == 7
    assert client.get("/server_info").json()["internal_states"][0]["num_running_requests"] == 0


def test_the_end_of_turn_is_in_the_ids_but_not_in_the_text(client: Client, tokenizer: Any) -> None:
    prompt = tokenizer.encode(NEARLY_DONE, add_special_tokens=False)
    reply = client.generate(prompt)
    assert reply["output_ids"][-1] == logprob_ids_of(reply)[-1] == END_OF_TURN
    assert reply["meta_info"]["finish_reason"] == {"type": "stop", "matched": END_OF_TURN}
    assert reply["text"] == tokenizer.decode(reply["output_ids"][:-1])
    kept = client.generate(prompt, no_stop_trim=True, skip_special_tokens=False)
    assert kept["output_ids"] == reply["output_ids"]
    assert kept["text"] == reply["text"] + "<|im_end|>"


def test_a_stop_token_id_of_the_request_stops_and_is_reported(
    client: Client, chat: Callable[[str], list[int]]
) -> None:
    prompt = chat("What is the capital of France?")
    free = client.generate(prompt)["output_ids"]
    reply = client.generate(prompt, stop_token_ids=[free[3]])
    cut = free.index(free[3]) + 1
    assert reply["output_ids"] == free[:cut]
    assert reply["meta_info"]["finish_reason"] == {"type": "stop", "matched": free[3]}


def test_a_stop_string_ends_the_reply_and_is_trimmed_from_text_only(
    client: Client, chat: Callable[[str], list[int]], tokenizer: Any
) -> None:
    prompt = chat("What is the capital of France?")
    text = client.generate(prompt)["text"]
    stop = text[5:9]
    events = list(client.events(prompt, stop=[stop, "never this"]))
    assert "".join(event["text"] for event in events) == text.partition(stop)[0]
    ids = [token_id for event in events for token_id in event["output_ids"]]
    assert stop in tokenizer.decode(ids)
    assert stop not in tokenizer.decode(ids[:-1])
    assert events[-1]["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}


def test_the_token_limit_ends_as_length_and_zero_samples_nothing(
    client: Client, chat: Callable[[str], list[int]]
) -> None:
    prompt = chat("Count to one hundred.")
    cut = client.generate(prompt, max_new_tokens=5)
    assert len(cut["output_ids"]) == 5
    assert cut["meta_info"]["finish_reason"] == {"type": "length", "length": 5}
    none = client.generate(prompt, max_new_tokens=0)
    assert (none["output_ids"], none["text"]) == ([], "")
    assert none["meta_info"]["finish_reason"] == {"type": "length", "length": 0}


def test_an_ignored_end_of_turn_is_passed_and_a_minimum_puts_it_off(client: Client, tokenizer: Any) -> None:
    prompt = tokenizer.encode(NEARLY_DONE, add_special_tokens=False)
    natural = client.generate(prompt)["output_ids"]
    passed = client.generate(prompt, ignore_eos=True, max_new_tokens=len(natural) + 5)["output_ids"]
    assert passed[: len(natural)] == natural and len(passed) == len(natural) + 5
    longer = client.generate(prompt, min_new_tokens=len(natural) + 4, max_new_tokens=40)["output_ids"]
    assert longer[: len(natural) - 1] == natural[:-1]
    assert END_OF_TURN not in longer[: len(natural) + 4]


def test_penalties_count_output_tokens_only(client: Client, chat: Callable[[str], list[int]]) -> None:
    prompt = chat("la la la la la la la la")
    plain = client.generate(prompt, max_new_tokens=30, ignore_eos=True)["output_ids"]
    penalised = client.generate(prompt, max_new_tokens=30, ignore_eos=True, frequency_penalty=2.0)["output_ids"]
    assert penalised[0] == plain[0]
    assert len(set(penalised)) > len(set(plain))
