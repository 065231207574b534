"""Nemotron Nano 2 and Llama-Nemotron: a JSON list in one block. Nemotron 3 writes Qwen3-Coder's calls."""

from __future__ import annotations

from adapters.models.family import ModelFamily
from adapters.models.formats.hermes import NEMOTRON_V2

NEMOTRON_V2_FAMILY = ModelFamily(
    name="nemotron_v2",
    matches=lambda template: "<TOOLCALL>" in template,
    stop_tokens=("<|eot_id|>",),
    tools=NEMOTRON_V2,
)
