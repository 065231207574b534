"""A family is found by its name or by its template."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from adapters.models.registry import FAMILIES, find_family

CHATML = "{{ '<|im_start|>' }}"
TEMPLATES = {
    "qwen3": CHATML + "<tool_call>",
    "qwen3_coder": CHATML + "<tool_call><function=<parameter=",
    "hermes": "<start_of_role><tool_call>",
    "glm": "<tool_call><arg_key>",
    "deepseek_v3": "<｜tool▁calls▁begin｜>",
    "deepseek_v32": "{% set d = 'DSML' %}function_calls",
    "deepseek_v4": "{% set d = 'DSML' %}tool_calls",
    "kimi_k2": "<|tool_calls_section_begin|>",
    "minimax_m2": "{% set t = 'minimax:tool_call' %}",
    "llama3": '<|start_header_id|>"parameters"',
    "llama4": "<|python_start|>",
    "mistral": "[TOOL_CALLS]",
    "gpt_oss": "<|start|><|channel|><|message|>",
    "gemma4": "<|tool_call>call:",
    "nemotron_v2": "<TOOLCALL>",
    "smollm2": CHATML,
    "generic": "[INST]",
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_auto_reads_the_family_off_the_template(name: str) -> None:
    assert find_family("auto", TEMPLATES[name]).name == name


def test_every_family_has_a_template_here_and_a_name_of_its_own() -> None:
    assert sorted(family.name for family in FAMILIES) == sorted(TEMPLATES)


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_name_decides_whatever_the_template(name: str) -> None:
    assert find_family(name, "no template of ours").name == name


@pytest.mark.parametrize(
    "template",
    [
        CHATML + "{{ tools }}",
        "]<]minimax[>[<tool_call>",
        "<tool_calls><tool_call>",
        "<|start_header_id|>{{ tools }}<function=",
    ],
)
def test_markers_of_a_format_that_is_not_known_belong_to_no_family(template: str) -> None:
    """MiniMax M3, Hunyuan, Functionary and others."""
    assert find_family("auto", template).name == "generic"


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="--model-family is 'llama'; known families are auto, gpt_oss, gemma4"):
        find_family("llama", CHATML)


def test_the_published_templates_are_recognised(qwen3_dir: Path, smollm2_dir: Path) -> None:
    for directory, name in ((qwen3_dir, "qwen3"), (smollm2_dir, "smollm2")):
        template = json.loads((directory / "tokenizer_config.json").read_text(encoding="utf-8"))["chat_template"]
        assert find_family("auto", template).name == name


def test_families_say_where_their_engines_stop() -> None:
    stops = {family.name: family.stop_tokens for family in FAMILIES}
    assert stops["qwen3"] == ("<|endoftext|>",)
    assert stops["smollm2"] == stops["generic"] == ()
    assert {"<|user|>", "<|observation|>"} <= set(stops["glm"])
    assert {"<|return|>", "<|call|>"} <= set(stops["gpt_oss"])
