"""A family is found by its name or by its template."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from adapters.models.registry import FAMILIES, find_family

CHATML = "{{ '<|im_start|>' }}"
HERMES = CHATML + "<tool_call>"


@pytest.mark.parametrize(("template", "name"), [(HERMES, "qwen3"), (CHATML, "smollm2")])
def test_auto_reads_the_family_off_the_template(template: str, name: str) -> None:
    assert find_family("auto", template).name == name


@pytest.mark.parametrize("name", [family.name for family in FAMILIES])
def test_a_name_decides_whatever_the_template(name: str) -> None:
    assert find_family(name, "no template of ours").name == name


def test_no_template_belongs_to_two_families() -> None:
    for template in (HERMES, CHATML, "<tool_call>", ""):
        assert sum(family.matches(template) for family in FAMILIES) <= 1


def test_names_are_unique() -> None:
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)


def test_a_template_of_no_known_family_is_refused_with_the_flag() -> None:
    with pytest.raises(ValueError, match="choose --model-family from qwen3, smollm2"):
        find_family("auto", "[INST]")


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="--model-family is 'llama'; known families are auto, qwen3, smollm2"):
        find_family("llama", HERMES)


def test_the_published_templates_are_recognised(qwen3_dir: Path, smollm2_dir: Path) -> None:
    for directory, name in ((qwen3_dir, "qwen3"), (smollm2_dir, "smollm2")):
        template = json.loads((directory / "tokenizer_config.json").read_text(encoding="utf-8"))["chat_template"]
        assert find_family("auto", template).name == name


def test_qwen3_has_calls_reasoning_and_a_second_stop_and_smollm2_has_none_of_them() -> None:
    qwen3, smollm2 = find_family("qwen3", ""), find_family("smollm2", "")
    assert qwen3.tools is not None
    assert qwen3.reasoning is not None
    assert qwen3.stop_tokens == ("<|endoftext|>",)
    assert (smollm2.tools, smollm2.reasoning, smollm2.stop_tokens) == (None, None, ())
