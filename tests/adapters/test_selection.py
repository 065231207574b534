"""Formats are what the operator says, else what the engine says, else what the template suggests."""

from __future__ import annotations

import pytest

from adapters.models.formats import REASONING_FORMATS, TOOL_FORMATS
from adapters.models.marks import Marks
from adapters.models.parsers import Parsers, ReplyFormats
from adapters.models.registry import find_family
from adapters.models.selection import REASONING_PARSERS, TOOL_CALL_PARSERS, ParserChoice, choose_formats

QWEN3 = "<|im_start|><tool_call><think></think>"
UNKNOWN = "[INST]{{ tools }}"


def chosen(template: str, choice: ParserChoice | None = None, family: str = "auto") -> ReplyFormats:
    return choose_formats(find_family(family, template), template, choice or ParserChoice())


def names(formats: ReplyFormats) -> tuple[str | None, str | None]:
    return formats.tools and formats.tools.name, formats.reasoning and formats.reasoning.name


def test_the_template_decides_if_nobody_else_does() -> None:
    formats = chosen(QWEN3)
    assert names(formats) == ("hermes", "think")
    assert formats.warnings == ()
    assert names(chosen("<|im_start|>")) == (None, None)


def test_a_family_gives_what_its_template_does_not_name() -> None:
    assert names(chosen("<|channel|><|message|>")) == ("gpt-oss", "gpt-oss")


def test_the_operator_decides_above_all() -> None:
    choice = ParserChoice("qwen3_coder", "kimi", "glm45", "qwen3")
    assert names(chosen(QWEN3, choice)) == ("qwen3_coder", "kimi")
    assert chosen(QWEN3, choice).warnings == ()
    assert names(chosen(QWEN3, ParserChoice("none", "none", "glm45", "qwen3"))) == (None, None)


def test_the_engine_decides_before_the_template_and_a_difference_is_told() -> None:
    formats = chosen(QWEN3, ParserChoice(reported_tool_calls="qwen3_coder", reported_reasoning="qwen3"))
    assert names(formats) == ("qwen3_coder", "think")
    [warning] = formats.warnings
    assert "'qwen3_coder'" in warning
    assert "suggests hermes" in warning
    assert "--tool-call-parser is qwen3_coder" in warning


@pytest.mark.parametrize("name", ["qwen", "qwen25", "hermes"])
def test_several_names_of_the_engine_mean_one_format(name: str) -> None:
    formats = chosen(QWEN3, ParserChoice(reported_tool_calls=name, reported_reasoning="deepseek-r1"))
    assert (names(formats), formats.warnings) == (("hermes", "think"), ())


def test_a_parser_of_the_engine_that_is_not_known_leaves_it_to_the_template() -> None:
    formats = chosen(QWEN3, ParserChoice(reported_tool_calls="cohere_command4", reported_reasoning="inkling"))
    assert names(formats) == ("hermes", "think")
    assert [("cohere_command4" in one, "inkling" in one) for one in formats.warnings] == [
        (True, False),
        (False, True),
    ]
    assert (
        "is none as the chat template suggests" in chosen(UNKNOWN, ParserChoice("auto", "none", "beam")).warnings[0]
    )


def test_a_template_of_no_family_is_accepted_with_a_warning() -> None:
    formats = chosen(UNKNOWN)
    assert names(formats) == (None, None)
    [warning] = formats.warnings
    assert "belongs to no known model family" in warning
    assert "--tool-call-parser" in warning
    assert chosen(UNKNOWN, ParserChoice("none")).warnings == ()
    assert chosen(UNKNOWN, ParserChoice("mistral")).warnings == ()
    assert chosen(UNKNOWN, ParserChoice(reported_tool_calls="mistral")).warnings == ()


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="--tool-call-parser is 'nope'; known are auto, none, deepseekv3"):
        chosen(QWEN3, ParserChoice("nope"))
    with pytest.raises(ValueError, match="--reasoning-parser is 'nope'; known are auto, none, deepseek-r1"):
        chosen(QWEN3, ParserChoice(reasoning="nope"))


@pytest.mark.parametrize("choice", [ParserChoice("gpt-oss", "qwen3"), ParserChoice("hermes", "gpt-oss")])
def test_gpt_oss_goes_with_itself(choice: ParserChoice) -> None:
    with pytest.raises(ValueError, match="gpt-oss goes with gpt-oss or none"):
        chosen(QWEN3, choice)


def test_the_settings_know_every_name() -> None:
    assert set(TOOL_CALL_PARSERS) == {"auto", "none", "engine", *TOOL_FORMATS}
    assert set(REASONING_PARSERS) == {"auto", "none", "engine", *REASONING_FORMATS}


def test_a_prompt_opens_reasoning_by_ending_in_its_opener() -> None:
    parsers = Parsers(Marks({}, frozenset()), chosen(QWEN3))
    assert parsers.reasoning_open("<|im_start|>assistant\n<think>\n")
    assert not parsers.reasoning_open("<think>\n\n</think>\n\n")
    harmony = Parsers(Marks({}, frozenset()), chosen("<|channel|><|message|>"))
    assert not harmony.reasoning_open("<|start|>assistant")
    assert not Parsers(Marks({}, frozenset()), ReplyFormats()).reasoning_open("<think>")
