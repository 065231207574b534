"""At which tokens the engine of each known family stops, as data: its `generation_config.json`, or its `eos_token`.

A family is recognised by what its templates spell; the first that fits counts. For all other templates the stop
tokens are taken from what they print behind a reply (`renderer.printed_stops`), as their makers trained them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stops:
    """`spelled` are texts that a template of the family holds, all of them. `closers` are no stop tokens, but what
    its templates print in the place of one once a reply is history."""

    family: str
    spelled: tuple[str, ...]
    tokens: tuple[str, ...]
    closers: tuple[str, ...] = ()


KNOWN: tuple[Stops, ...] = (
    Stops("gpt-oss", ("<|channel|>", "<|return|>"), ("<|return|>", "<|call|>", "<|endoftext|>"), ("<|end|>",)),
    Stops("Gemma 4", ("<turn|>", "<|tool_response>"), ("<turn|>", "<|tool_response>", "<eos>")),
    Stops("FunctionGemma", ("<start_function_response>",), ("<end_of_turn>", "<start_function_response>", "<eos>")),
    Stops("Gemma", ("<end_of_turn>",), ("<end_of_turn>", "<eos>")),
    Stops("GLM", ("[gMASK]<sop>", "<|observation|>"), ("<|user|>", "<|observation|>", "<|endoftext|>")),
    Stops("Llama 3", ("<|eot_id|>",), ("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>")),
    Stops("Llama 4", ("<|header_start|>",), ("<|eot|>", "<|eom|>", "<|end_of_text|>")),
    Stops("DeepSeek", ("<｜Assistant｜>",), ("<｜end▁of▁sentence｜>",)),
    Stops("Kimi", ("<|im_middle|>",), ("<|im_end|>", "[EOS]")),
    Stops("MiniMax", ("[e~[",), ("[e~[",)),
    Stops("Cohere", ("<|END_OF_TURN_TOKEN|>",), ("<|END_OF_TURN_TOKEN|>",)),
    Stops("Mistral", ("[INST]", "[/INST]", "[TOOL_CALLS]"), ("</s>",)),
    Stops("Seed", ("<seed:eos>",), ("<seed:eos>",)),
    Stops("Granite", ("<|start_of_role|>",), ("<|end_of_text|>",)),
    Stops("Apertus", ("<|assistant_end|>", "<|tools_suffix|>"), ("<|assistant_end|>", "<|tools_suffix|>")),
    Stops("Apriel", ("[BEGIN FINAL RESPONSE]", "<|end|>"), ("<|end|>", "</s>")),
    Stops("Ling", ("<role>ASSISTANT</role>",), ("<|role_end|>", "<|endoftext|>")),
    Stops("ChatML", ("<|im_start|>", "<|im_end|>"), ("<|im_end|>", "<|endoftext|>")),
)


def known_stops(source: str) -> Stops | None:
    """The family whose template this is."""
    return next((stops for stops in KNOWN if all(text in source for text in stops.spelled)), None)
