"""786 public chat templates: what the sidecar appends behind a reply is what the template prints there.

The oracle is `oracle.py`; its module says in what it is independent of the product. About two minutes on two cores.
"""

from __future__ import annotations

import pytest

from tests.conformance.matrix import Row

pytestmark = [pytest.mark.npm, pytest.mark.timeout(900)]

OTHER_ROOTS = {
    # print a call only beside `content: null`, which transformers is never given
    "Aletheia-Bench-DPO-Think-14B",
    "ByteDance-Seed-academic-ds-9B",
    "Sangsang-R1-7B-thinksafe-r1-7B-ablation-32-pm-3ep-harmful_only",
    "Skywork-Skywork-R1V-38B",
    "deepseek-ai-DeepSeek-Coder-V2-Instruct-0724",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B@56a144",
    "deepseek-ai-DeepSeek-V2.5",
    "stepfun-ai-StepFun-Formalizer-7B",
    "yujiepan-deepseek-v3-tiny-random",
    # print an object in Python's notation, and JSON text as it is
    "NightPrince-Muslim-6B-PRO",
    "ServiceNow-AI-Apriel-1.5-15b-Thinker",
    "ServiceNow-AI-Apriel-1.6-15b-Thinker",
    "ServiceNow-AI-Apriel-Nemotron-15b-Thinker",
    # read reasoning as `reasoning`, a name that transformers does not give it
    "Abhayn01-Arka-Specialist-V2-Pretrained",
    "breitburg-pure-reasoning-7b-230726",
}
"""The product prints more there than transformers does, and what the model wrote."""

SINGLE_TURN = (
    "prints nothing of the assistant's last message",
    "prints a reply somewhere else than where its generation prompt asks for one",
    "the chat template refuses these messages",
    "closes a reply with '<end_of_conversation>'",
    "prints none of the stop tokens '</s>' after a reply",
)
"""Why a template is refused: it judges, embeds, ranks or transcribes, and does not go on with a conversation."""


def named(rows: list[Row]) -> list[str]:
    return [row.sample.name for row in rows]


def test_no_template_is_wrong_in_any_case(matrix: list[Row]) -> None:
    wrong = {
        f"{row.sample.name} {name}": found
        for row in matrix
        for name, found in row.cases.items()
        if found and found != "refused" and not found.startswith("-")
    }
    assert not wrong


def test_templates_with_tools_are_exact_or_stateful_but_for_one_guard(matrix: list[Row]) -> None:
    """The target was 360 of 365 that print a call beside an empty content; 375 do in some form of the message."""
    able = [row for row in matrix if row.tools]
    assert len(able) == 375
    assert named([row for row in able if row.outcome == "refused"]) == ["inclusionAI-SingGuard-2b"]
    assert sum(row.outcome == "stateful" for row in able) == 22


def test_templates_without_tools_are_exact_unless_they_hold_no_conversation(matrix: list[Row]) -> None:
    plain = [row for row in matrix if not row.tools]
    assert len(plain) == 411
    refused = [row for row in plain if row.outcome != "exact"]
    assert len(refused) == 35
    for row in refused:
        for reason in (row.reasons or row.unsupported).values():
            assert any(known in reason for known in SINGLE_TURN), (row.sample.name, reason)


def test_every_case_is_tried_on_hundreds_of_templates(matrix: list[Row]) -> None:
    for name in matrix[0].cases:
        assert sum(not row.cases[name] for row in matrix) >= 340, name


def test_the_self_test_finds_the_same_templates_to_take_tools(matrix: list[Row]) -> None:
    assert named([row for row in matrix if row.tools != row.says_tools]) == []


def test_whole_conversations_are_rendered_as_transformers_renders_them(matrix: list[Row]) -> None:
    assert set(named([row for row in matrix if not row.roots])) == OTHER_ROOTS


def test_real_tokenizers_are_used_where_there_are_some(matrix: list[Row]) -> None:
    real = [row for row in matrix if row.vocabulary != "substitute"]
    assert len(real) >= 400
    assert {row.vocabulary for row in real} == {
        "qwen3", "deepseek", "llama3_1", "gemma3", "gptoss", "glm4", "kimi_k2", "tekken"
    }  # fmt: skip


def test_the_opener_that_a_model_stops_with_is_not_appended_again(matrix: list[Row]) -> None:
    glm = next(row for row in matrix if row.sample.name == "GLM-4.6")
    assert glm.traits.ends == {"text": "<|user|>", "calls": "<|observation|>"}
    assert glm.traits.openers == {"text": True, "calls": True}
    gemma = next(row for row in matrix if row.sample.name == "google-gemma-4-31B-it")
    assert gemma.traits.ends == {"text": "<turn|>", "calls": "<|tool_response>"}
    assert gemma.traits.repeats_text


def test_gpt_oss_closes_a_final_message_otherwise_than_it_ended(matrix: list[Row]) -> None:
    rows = [row for row in matrix if row.family == "gpt-oss"]
    assert len(rows) >= 10
    for row in rows:
        assert row.traits.ends["text"] == "<|end|>"
        assert "<|end|>" not in row.stops
