"""From sampled ids to calls in formats whose stop tokens and markers are special tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from adapters.models.formats.gpt_oss import GPT_OSS
from adapters.models.reply import Reply, ToolCall, join
from adapters.models.selection import ParserChoice
from sidecar.tito.model import Model, ModelText, build_model
from tests.adapters.replies import tool
from tests.tito.builders import byte_tokenizer

TEMPLATE = (
    "{{% if tools %}}{{{{ tools | tojson }}}}{{% endif %}}"
    "{{% for m in messages %}}{{{{ m.role }}}}: {{{{ m.content }}}}"
    "{{% for c in m.tool_calls or [] %}}{{{{ c.function | tojson }}}}{{% endfor %}}"
    "{stop}{{% endfor %}}{{% if add_generation_prompt %}}assistant: {{% endif %}}"
)
TOOLS = [tool("f", s={"type": "string"})]


def model_of(choice: ParserChoice, stop: str, *added: str, more: Sequence[str] = ()) -> Model:
    """A model whose control tokens, stops included, are all special."""
    tokenizer = byte_tokenizer(*dict.fromkeys([stop, *more, *added]))
    stops = frozenset(index for index in map(tokenizer.token_to_id, [stop, *more]) if index is not None)
    text = ModelText("tiny", tokenizer, TEMPLATE.format(stop=stop), {"eos_token": stop}, stops)
    return build_model(text, parsers=choice)


def read(model: Model, text: str, *, one_by_one: bool = False) -> Reply:
    ids = model.codec.encode(text).tolist()
    reader = model.reply_text("assistant: ", True, (), lambda n: f"call_{n}", TOOLS)
    for piece in [[index] for index in ids] if one_by_one else [ids]:
        reader.push(piece)
    reader.finish()
    assert reader.consumed == len(ids)
    return join(reader.deltas)


@pytest.mark.parametrize("one_by_one", [False, True])
class TestIds:
    def test_gpt_oss_calls_end_with_their_stop_token(self, one_by_one: bool) -> None:
        choice = ParserChoice("gpt-oss", "gpt-oss")
        model = model_of(choice, "<|return|>", *GPT_OSS.markers, more=["<|call|>"])
        call = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"s": "x"}'
        text = f"<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant{call}"
        assert read(model, f"{text}<|call|>", one_by_one=one_by_one) == Reply(
            "", "Hm.", (ToolCall("call_0", "f", '{"s": "x"}'),)
        )
        cut = read(model, text, one_by_one=one_by_one)
        assert cut == Reply(f"<|start|>assistant{call}", "Hm.", ())
        final = "<|channel|>final<|message|>Sun.<|return|>"
        assert read(model, final, one_by_one=one_by_one) == Reply("Sun.", "", ())

    def test_a_stop_token_that_is_no_marker_leaves_no_trace(self, one_by_one: bool) -> None:
        choice = ParserChoice("gemma4", "gemma4")
        markers = ("<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>", "<channel|>")
        model = model_of(choice, "<turn|>", *markers, more=["<|tool_response>"])
        text = (
            '<|channel>thought\nHm.<channel|>I look.<|tool_call>call:f{s:<|"|>}<|"|>}<tool_call|><|tool_response>'
        )
        assert read(model, text, one_by_one=one_by_one) == Reply(
            "I look.", "Hm.", (ToolCall("call_0", "f", '{"s": "}"}'),)
        )

    def test_arguments_are_typed_by_the_requests_tools(self, one_by_one: bool) -> None:
        model = model_of(ParserChoice("qwen3_coder"), "<end>", "<tool_call>", "</tool_call>")
        call = "<tool_call><function=f><parameter=s>02134</parameter></function></tool_call>"
        [found] = read(model, f"{call}<end>", one_by_one=one_by_one).calls
        assert found.arguments == '{"s": "02134"}'

    @pytest.mark.parametrize("parts", [("[ARGS]",), ("[CALL_ID]abcdef123[ARGS]",)])
    def test_mistral_markers_are_shown_where_they_make_no_call(self, one_by_one: bool, parts: tuple[str]) -> None:
        model = model_of(ParserChoice("mistral"), "</s>", "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]")
        text = f'[TOOL_CALLS]f{parts[0]}{{"s": "x"}}'
        [found] = read(model, f"{text}</s>", one_by_one=one_by_one).calls
        assert (found.name, len(found.id)) == ("f", 9)
        assert read(model, text[:-1], one_by_one=one_by_one) == Reply(text[:-1], "", ())


def test_formats_that_contradict_each_other_are_refused_when_the_model_is_built() -> None:
    with pytest.raises(ValueError, match="gpt-oss goes with gpt-oss or none"):
        model_of(ParserChoice("gpt-oss", "qwen3"), "<end>")


def test_the_template_decides_by_default(qwen3: Model) -> None:
    def name(found: Any) -> str | None:
        return found.name if found is not None else None

    assert (name(qwen3.parsers.formats.tools), name(qwen3.parsers.formats.reasoning)) == ("hermes", "think")
