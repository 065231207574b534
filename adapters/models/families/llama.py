"""Llama 3 calls in JSON and may stop at the end of a message (`<|eom_id|>`) as well as of a turn; Llama 4, and
templates of Llama 3.2 that ask for it, in Python."""

from __future__ import annotations

from adapters.models.family import ModelFamily
from adapters.models.formats.llama import LLAMA3_JSON, PYTHONIC


def _pythonic(template: str) -> bool:
    return "<|python_start|>" in template or "params_name1=params_value1" in template


LLAMA3 = ModelFamily(
    name="llama3",
    matches=lambda template: "<|start_header_id|>" in template and '"parameters"' in template,
    stop_tokens=("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"),
    tools=LLAMA3_JSON,
)
PYTHONIC_FAMILY = ModelFamily(
    name="llama4",
    matches=_pythonic,
    stop_tokens=("<|eot|>", "<|eom|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"),
    tools=PYTHONIC,
)
