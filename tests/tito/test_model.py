"""A model is put together from text, or refused by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from adapters.models.reply import ToolCall, join
from sidecar.model_files import read_model
from sidecar.tito.errors import TemplateError, UnstableTemplate
from sidecar.tito.model import Model, ModelText, build_model
from tests.tito.builders import byte_tokenizer

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}:{{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>{% endif %}"
)


def text(template: str = CHATML, **special_tokens: str) -> ModelText:
    tokenizer = byte_tokenizer("<|im_start|>", "<|im_end|>")
    return ModelText("tiny", tokenizer, template, special_tokens, frozenset())


class TestStops:
    def test_qwen3_stops_at_its_eos_and_its_base_models(self, qwen3: Model) -> None:
        assert {qwen3.codec.decode([index]) for index in qwen3.stop_ids} == {"<|im_end|>", "<|endoftext|>"}

    def test_smollm2_stops_at_its_eos(self, smollm2: Model) -> None:
        assert [smollm2.codec.decode([index]) for index in smollm2.stop_ids] == ["<|im_end|>"]

    def test_stop_ids_of_the_generation_config_are_kept(self, qwen3_dir: Path) -> None:
        more = replace(read_model(str(qwen3_dir)), stop_ids=frozenset({7}))
        assert build_model(more).stop_ids == {7, 151643, 151645}

    def test_a_model_without_a_stop_token_is_refused(self) -> None:
        with pytest.raises(ValueError, match="tiny names no stop token"):
            build_model(text(), family_name="smollm2")
        with pytest.raises(ValueError, match="tiny names no stop token"):
            build_model(text(eos_token="<|unknown|>"), family_name="smollm2")


class TestFamilies:
    def test_the_family_is_read_off_the_template(self, qwen3: Model, smollm2: Model) -> None:
        assert (qwen3.family.name, smollm2.family.name) == ("qwen3", "smollm2")

    def test_an_unknown_family_is_refused_with_the_known_ones(self) -> None:
        with pytest.raises(ValueError, match="known families are auto, gpt_oss, gemma4, glm"):
            build_model(text(eos_token="<|im_end|>"), family_name="llama")


class TestSelfTest:
    STATEFUL = CHATML.replace("<|im_start|>", "{{ '[Round %d]' % loop.index if m.role == 'user' }}<|im_start|>", 1)
    SILENT = CHATML.replace("{{ m.content }}", "{{ m.content if m.role != 'assistant' }}")

    def test_a_plain_template_is_accepted(self) -> None:
        model = build_model(text(eos_token="<|im_end|>"))
        assert model.verdict.outcome == "exact"
        assert model.name == "tiny"
        assert model.template_sha256 == model.builder.template.sha256
        assert model.tokenizer_sha256 == model.codec.sha256

    def test_a_stateful_template_is_accepted_as_such(self) -> None:
        assert build_model(text(self.STATEFUL, eos_token="<|im_end|>")).verdict.outcome == "stateful"

    def test_a_template_without_an_exact_delta_is_refused_with_the_event_and_the_remedy(self) -> None:
        with pytest.raises(UnstableTemplate) as caught:
            build_model(text(self.SILENT, eos_token="<|im_end|>"))
        message = str(caught.value)
        assert "the chat template of tiny gives no exact delta for the event 'user'" in message
        assert "--chat-template" in message
        assert "--on-unstable-template segment" in message

    def test_such_a_template_is_accepted_if_that_is_asked_for(self) -> None:
        model = build_model(text(self.SILENT, eos_token="<|im_end|>"), allow_unstable=True)
        assert model.verdict.outcome == "refused"

    def test_text_that_is_no_template_is_refused(self) -> None:
        with pytest.raises(TemplateError, match="cannot be compiled"):
            build_model(text("{% <|im_start|>", eos_token="<|im_end|>"))


class TestReasoning:
    @pytest.mark.parametrize(
        ("tail", "is_open"),
        [
            ("<|im_start|>assistant\n", False),
            ("<|im_start|>assistant\n<think>\n", True),
            ("<|im_start|>assistant\n<think>", True),
            ("<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
            ("<think>\nold\n</think>\n<|im_end|>\n<|im_start|>assistant\n<think>\n", True),
            ("why do you write <think><|im_end|>\n<|im_start|>assistant\n", False),
            ("", False),
        ],
    )
    def test_only_an_opener_at_the_very_end_of_the_prompt_is_the_models(
        self, qwen3: Model, tail: str, is_open: bool
    ) -> None:
        assert qwen3.reasoning_open(tail) is is_open

    def test_a_model_without_reasoning_has_none_open(self, smollm2: Model) -> None:
        assert not smollm2.reasoning_open("<think>\n")


class TestReplyText:
    REPLY = 'Look.\n<tool_call>\n{"name": "look", "arguments": {"at": "door"}}\n</tool_call><|im_end|>'

    def test_a_reply_is_read_with_calls_and_their_ids(self, qwen3: Model) -> None:
        reader = qwen3.reply_text("<|im_start|>assistant\n", True, (), lambda n: f"call_{n}")
        reader.push(qwen3.codec.encode(self.REPLY).tolist())
        reader.finish()
        reply = join(reader.deltas)
        assert reply.content == "Look."
        assert reply.calls == (ToolCall("call_0", "look", '{"at": "door"}'),)

    def test_without_tools_calls_are_text(self, qwen3: Model) -> None:
        reader = qwen3.reply_text("<|im_start|>assistant\n", False, (), str)
        reader.push(qwen3.codec.encode(self.REPLY).tolist())
        reader.finish()
        assert join(reader.deltas).content == self.REPLY.removesuffix("<|im_end|>")

    def test_reasoning_that_the_prompt_opened_is_reasoning(self, qwen3: Model) -> None:
        reader = qwen3.reply_text("<|im_start|>assistant\n<think>\n", True, (), str)
        reader.push(qwen3.codec.encode("2+2\n</think>\n\n4").tolist())
        reader.finish()
        assert (join(reader.deltas).reasoning, join(reader.deltas).content) == ("2+2", "4")
