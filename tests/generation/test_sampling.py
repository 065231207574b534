"""What the engine is asked to sample, and what follows from it: off policy or not, resumable or not."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import pytest

from adapters.protocols.request import Sampling
from sidecar.generation.sampling import PINNABLE, check_pin, effective_sampling, is_off_policy, is_resumable
from tests.fake_sglang import Reply
from tests.fake_sglang.contract import SAMPLING_FIELDS
from tests.support.chat import ask, completion
from tests.support.running import Running

NEUTRAL = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0}


def test_what_nobody_asks_for_is_neutral_and_not_the_models_default() -> None:
    assert effective_sampling(Sampling(), {}) == NEUTRAL


def test_everything_an_agent_asks_for_reaches_the_engine_under_its_name() -> None:
    asked = Sampling(
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        min_p=0.1,
        frequency_penalty=0.2,
        presence_penalty=0.3,
        repetition_penalty=1.1,
        seed=7,
        stop=("a", "b"),
        logit_bias={"5": 1.5},
        json_schema="{}",
    )
    assert all(getattr(asked, field.name) is not None for field in fields(asked))
    effective = effective_sampling(asked, {})
    assert effective == {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.1,
        "frequency_penalty": 0.2,
        "presence_penalty": 0.3,
        "repetition_penalty": 1.1,
        "sampling_seed": 7,
        "stop": ["a", "b"],
        "logit_bias": {"5": 1.5},
        "json_schema": "{}",
    }
    assert set(effective) <= set(SAMPLING_FIELDS)  # from SGLang 0.5.22 on, any other is a 400


def test_zero_is_asked_for_and_not_absent() -> None:
    asked = Sampling(temperature=0.0, top_p=0.0, frequency_penalty=0.0, seed=0)
    effective = effective_sampling(asked, {})
    assert (effective["temperature"], effective["top_p"]) == (0.0, 0.0)
    assert (effective["frequency_penalty"], effective["sampling_seed"]) == (0.0, 0)


def test_a_pin_wins_and_null_takes_a_field_away() -> None:
    asked = Sampling(temperature=0.1, top_p=0.5, logit_bias={"1": 5.0}, json_schema="{}", stop=("x",))
    pin = {"temperature": 1.0, "top_p": 1.0, "logit_bias": None, "json_schema": None, "max_new_tokens": 5}
    assert effective_sampling(asked, pin) == {**NEUTRAL, "stop": ["x"]}


def test_a_pin_to_no_seed_takes_the_agent_s_seed_away_from_all_siblings() -> None:
    pin = check_pin({"sampling_seed": None}, "sampling")
    assert effective_sampling(Sampling(seed=7), pin, sibling=1) == NEUTRAL


def test_siblings_get_seeds_of_their_own() -> None:
    asked = Sampling(seed=7)
    assert [effective_sampling(asked, {}, n)["sampling_seed"] for n in range(3)] == [7, 8, 9]
    assert [effective_sampling(Sampling(), {"sampling_seed": 1}, n)["sampling_seed"] for n in range(2)] == [1, 2]
    assert "sampling_seed" not in effective_sampling(Sampling(), {}, 1)


OFF_POLICY: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0.0},
    {"top_p": 0.99},
    {"top_k": 50},
    {"min_p": 0.01},
    {"frequency_penalty": 0.1},
    {"presence_penalty": -0.1},
    {"repetition_penalty": 1.01},
    {"logit_bias": {"5": 1.0}},
    {"json_schema": "{}"},
    {"min_new_tokens": 1},
]


@pytest.mark.parametrize("sampling", OFF_POLICY, ids=str)
def test_what_changes_the_distribution_is_off_policy(sampling: dict[str, Any]) -> None:
    assert is_off_policy({**NEUTRAL, **sampling})


@pytest.mark.parametrize(
    "sampling",
    [
        {},
        {"temperature": 0.3},
        {"temperature": 2.0},
        {"sampling_seed": 1},
        {"stop": ["x"]},
        {"frequency_penalty": 0.0, "presence_penalty": 0, "repetition_penalty": 1},
        {"top_p": 1, "top_k": -1, "min_p": 0},
        {"logit_bias": None, "json_schema": None},
    ],
    ids=str,
)
def test_what_does_not_change_it_trains(sampling: dict[str, Any]) -> None:
    assert not is_off_policy({**NEUTRAL, **sampling})


@pytest.mark.parametrize(
    ("sampling", "resumable"),
    [
        ({}, True),
        ({"temperature": 0, "top_p": 0.5, "top_k": 3, "min_p": 0.1, "logit_bias": {"5": 1.0}}, True),
        ({"frequency_penalty": 0.1}, False),
        ({"presence_penalty": 0.1}, False),
        ({"repetition_penalty": 0.9}, False),
        ({"json_schema": "{}"}, False),
        ({"frequency_penalty": 0, "repetition_penalty": 1.0}, True),
    ],
    ids=str,
)
def test_a_sampler_with_a_state_of_its_own_is_not_resumable(sampling: dict[str, Any], resumable: bool) -> None:
    assert is_resumable({**NEUTRAL, **sampling}) is resumable


@pytest.mark.parametrize(
    ("pin", "text"),
    [
        ({"temprature": 1}, "sampling.temprature cannot be pinned; known names are"),
        ({"stop": "x"}, "sampling.stop cannot be pinned"),
        ({"temperature": "1"}, "sampling.temperature is '1'; send a number"),
        ({"temperature": True}, "sampling.temperature is True; send a number"),
        ({"top_p": None}, "sampling.top_p is None; send a number"),
        ({"logit_bias": {}}, "it can only be pinned to null"),
        ({"json_schema": "{}"}, "it can only be pinned to null"),
        ({"max_new_tokens": 0}, "at least 1"),
        ({"max_new_tokens": 1.5}, "whole number"),
        ({"min_new_tokens": -1}, "at least 0"),
        ({"min_new_tokens": 0.5}, "whole number"),
    ],
    ids=str,
)
def test_a_pin_that_makes_no_sense_is_refused_by_name(pin: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match="sampling") as raised:
        check_pin(pin, "sampling")
    assert text in str(raised.value)


def test_every_name_that_can_be_pinned_is_one_that_the_engine_knows() -> None:
    assert set(PINNABLE) <= set(SAMPLING_FIELDS)
    assert math.isclose(check_pin({"temperature": 1}, "s")["temperature"], 1.0)


# Over HTTP: what is marked, and what a pin changes.


@pytest.mark.parametrize(
    "asked",
    [{"temperature": 0}, {"top_p": 0.5}, {"response_format": {"type": "json_object"}}, {"logit_bias": {"5": 1}}],
    ids=str,
)
@pytest.mark.asyncio(loop_scope="module")
async def test_an_off_policy_step_is_recorded_and_does_not_train(shared: Running, asked: dict[str, Any]) -> None:
    session = f"off-{next(iter(asked))}"
    shared.engine.replies.append(Reply(text="ok"))
    response = await shared.chat(session, ask(**asked))
    completion(response)
    [segment] = await shared.segments(session)
    assert not any(segment["full_loss_mask"])
    [request] = shared.engine.requests
    assert segment["full_logprobs"][len(request.input_ids) :] == request.output_logprobs
    assert segment["extra_info"]["untrainable"] == [
        {"step_id": response.headers["x-step-id"], "reason": "off_policy_sampling"}
    ]
    assert segment["extra_info"]["untrainable_tokens"] == {"off_policy_sampling": len(request.output_ids)}


@pytest.mark.asyncio(loop_scope="module")
async def test_a_pin_to_neutral_values_makes_what_an_agent_asks_trainable(shared: Running) -> None:
    neutral = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "frequency_penalty": 0, "logit_bias": None}
    await shared.open("pinned", sampling=neutral)
    shared.engine.replies.append(Reply(text="ok"))
    asked = {"temperature": 0, "top_p": 0.1, "top_k": 5, "frequency_penalty": 1, "logit_bias": {"5": 1}}
    completion(await shared.chat("pinned", ask(**asked)))
    [segment] = await shared.segments("pinned")
    assert any(segment["full_loss_mask"])
    sent = shared.engine.requests[0].sampling_params
    assert {name: sent[name] for name in NEUTRAL} == NEUTRAL
    assert "logit_bias" not in sent


@pytest.mark.asyncio(loop_scope="module")
async def test_a_pin_can_be_what_makes_a_step_off_policy(shared: Running) -> None:
    await shared.open("pinned-off", sampling={"top_p": 0.9})
    shared.engine.replies.append(Reply(text="ok"))
    completion(await shared.chat("pinned-off", ask(top_p=1)))
    [segment] = await shared.segments("pinned-off")
    assert not any(segment["full_loss_mask"])
