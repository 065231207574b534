"""Replies are read as SGLang 0.5.23 reads them, but for the differences that `deliberate.json` lists and explains.

Expected values were made once by SGLang's own parsers (`sglang_parsers/PROVENANCE.md`).
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from adapters.models.reply import Reply
from tests.adapters.replies import data, reply_of, sample_formats, sample_options

SAMPLES: list[dict[str, Any]] = data("samples.json")["samples"]
EXPECTED: dict[str, dict[str, Any]] = data("expected.json")["results"]
DELIBERATE: dict[str, Any] = data("deliberate.json")


def ours(sample: dict[str, Any]) -> dict[str, Any]:
    return as_json(reply_of(sample["text"], sample_formats(sample), **sample_options(sample)))


def as_json(reply: Reply) -> dict[str, Any]:
    calls = [{"name": call.name, "arguments": json.loads(call.arguments)} for call in reply.calls]
    return {"reasoning": reply.reasoning, "content": reply.content, "calls": calls}


def theirs(sample: dict[str, Any]) -> dict[str, Any]:
    result = EXPECTED[sample["id"]]
    calls = [
        {"name": call.get("name"), "arguments": call["arguments"]} if "arguments" in call else call
        for call in result["calls"]
    ]
    return {"reasoning": result.get("reasoning") or "", "content": result["normal_text"] or "", "calls": calls}


def text(reply: dict[str, Any]) -> str:
    """Types count: 1, 1.0 and true are three values."""
    return json.dumps(reply, sort_keys=True)


def stripped(reply: dict[str, Any]) -> str:
    return text({**reply, "reasoning": reply["reasoning"].strip(), "content": reply["content"].strip()})


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample["id"])
def test_a_reply_is_read_as_sglang_reads_it_or_differs_as_listed(sample: dict[str, Any]) -> None:
    mine, known = ours(sample), sample["id"]
    listed = DELIBERATE["samples"].get(known)
    if listed is not None:
        assert listed["reason"] in DELIBERATE["reasons"]
        pinned = {"reasoning": "", **{key: value for key, value in listed.items() if key != "reason"}}
        assert text(mine) == text(pinned)
        assert stripped(mine) != stripped(theirs(sample)), "the difference is gone: take it off the list"
    elif known in DELIBERATE["white_space"]:
        assert stripped(mine) == stripped(theirs(sample))
        assert text(mine) != text(theirs(sample)), "the difference is gone: take it off the list"
    else:
        assert text(mine) == text(theirs(sample))


def test_every_listed_difference_is_of_a_sample_and_every_reason_has_one() -> None:
    samples = {sample["id"] for sample in SAMPLES}
    assert samples >= {*DELIBERATE["samples"], *DELIBERATE["white_space"]}
    assert not set(DELIBERATE["samples"]) & set(DELIBERATE["white_space"])
    assert {entry["reason"] for entry in DELIBERATE["samples"].values()} == set(DELIBERATE["reasons"])


def test_every_sample_has_an_expected_value_and_an_id_of_its_own() -> None:
    assert len({sample["id"] for sample in SAMPLES}) == len(SAMPLES)
    assert {sample["id"] for sample in SAMPLES} == set(EXPECTED)
