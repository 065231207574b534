"""The delta against the libraries that two makers publish for their own models: Mistral's and OpenAI's."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sidecar.tito.messages import normalise
from sidecar.tito.model import Model
from tests.conformance.conversations import TOOLS
from tests.conformance.real_models import loaded
from tests.support.pypi import pypi_package
from tests.tito.builders import conversation

pytestmark = [pytest.mark.npm, pytest.mark.timeout(300)]

_MISTRAL_NEEDS = {
    "mistral-common": "1.13.1", "tiktoken": "0.14.0", "jsonschema": "4.26.0", "referencing": "0.37.0",
    "jsonschema-specifications": "2025.9.1", "rpds-py": "2026.9.1", "attrs": "26.1.0", "pillow": "13.0.0",
    "pydantic-extra-types": "2.11.1", "pycountry": "26.2.16",
}  # fmt: skip
"""What it imports and the project does not have."""

Ids = dict[str, list[int]]
"""Event -> ids of its whole conversation."""
QUESTION = {"role": "user", "content": "Which one has stripes? 🦓"}
ANSWER = {"role": "assistant", "content": "It is the zebra"}
MORE = {"role": "user", "content": "Tell me more, größer."}


def asks(*identifiers: str) -> dict[str, Any]:
    """A reply with calls."""
    function = {"name": "dictionary", "arguments": '{"word": "zebra"}'}
    calls = [{"id": identifier, "type": "function", "function": function} for identifier in identifiers]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def gives(identifier: str, text: str) -> dict[str, Any]:
    """A tool's result."""
    return {"role": "tool", "tool_call_id": identifier, "name": "dictionary", "content": text}


EVENTS: dict[str, tuple[list[dict[str, Any]], dict[str, Any], list[dict[str, Any]], Any]] = {
    "user": ([QUESTION], ANSWER, [MORE], None),
    "user_later": ([QUESTION, ANSWER, MORE], ANSWER, [MORE], None),
    "tool": ([QUESTION], asks("abcdefgh1"), [gives("abcdefgh1", "an equid")], TOOLS),
    "parallel": (
        [QUESTION],
        asks("abcdefgh1", "abcdefgh2"),
        [gives("abcdefgh1", "an equid"), gives("abcdefgh2", "it grazes")],
        TOOLS,
    ),
}


def appended(model: Model, event: str) -> list[int]:
    """The token that closes the reply and what the sidecar appends."""
    history, reply, following, tools = EVENTS[event]
    messages = normalise([*history, reply, *following])
    position = len(history)
    delta = model.builder.delta(
        messages[:position], messages[position], messages[position + 1 :], conversation(tools)
    )
    assert delta.close_id is not None
    return [delta.close_id, *delta.ids.tolist()]


@pytest.fixture(scope="module")
def mistral_ids() -> Ids:
    """What mistral-common encodes each event's whole conversation to."""
    packages = {name: pypi_package(name, version) for name, version in _MISTRAL_NEEDS.items()}
    vocabulary = packages["mistral-common"] / "mistral_common" / "data" / "tekken_240911.json"
    requests = [
        {"messages": [*history, reply, *following], **({"tools": tools} if tools else {})}
        for history, reply, following, tools in EVENTS.values()
    ]
    answered = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("mistral_oracle.py")), str(vocabulary)],
        input="".join(json.dumps(request) + "\n" for request in requests),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, packages.values()))},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert answered.returncode == 0, answered.stderr[-2000:]
    return dict(zip(EVENTS, map(json.loads, answered.stdout.splitlines()), strict=True))


class TestMistral:
    @pytest.mark.parametrize("event", ["user", "user_later"])
    def test_a_user_message_is_appended_as_mistral_does(self, mistral_ids: Ids, event: str) -> None:
        model, _ = loaded("mistral_nemo")
        expected = appended(model, event)
        assert mistral_ids[event][-len(expected) :] == expected

    @pytest.mark.parametrize("event", ["tool", "parallel"])
    def test_tool_results_are_appended_as_the_template_does_and_mistral_quotes_them(
        self, mistral_ids: Ids, event: str
    ) -> None:
        model, _ = loaded("mistral_nemo")
        expected = model.codec.decode(appended(model, event))
        quoted = model.codec.decode(mistral_ids[event])
        for text in ("an equid", "it grazes"):
            expected = expected.replace(f'"content": {text}', f'"content": "{text}"')
        assert quoted.endswith(expected)

    @pytest.mark.parametrize("event", EVENTS)
    def test_the_rebuilt_vocabulary_encodes_as_mistral_does(self, mistral_ids: Ids, event: str) -> None:
        model, words = loaded("mistral_nemo")
        assert (
            words.encode(model.codec.decode(mistral_ids[event]), add_special_tokens=False).ids == mistral_ids[event]
        )


@pytest.fixture(scope="module")
def harmony(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """OpenAI's encoding, its vocabulary out of another package instead of the network."""
    litellm = pypi_package("litellm", "1.110.2") / "litellm" / "litellm_core_utils" / "tokenizers"
    folder = tmp_path_factory.mktemp("harmony")
    shutil.copy(litellm / "fb374d419588a4632f3f557e76b4b70aebbca790", folder / "o200k_base.tiktoken")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TIKTOKEN_ENCODINGS_BASE", str(folder))
        patched.syspath_prepend(str(pypi_package("openai-harmony", "0.0.8")))
        import openai_harmony

        name = openai_harmony.HarmonyEncodingName.HARMONY_GPT_OSS
        yield openai_harmony, openai_harmony.load_harmony_encoding(name)


class TestGptOss:
    def rendered(self, harmony: Any, event: str) -> list[int]:
        """The event's conversation in OpenAI's own words, up to the next generation."""
        library, encoding = harmony
        role, message = library.Role, library.Message.from_role_and_content
        history, reply, following, _ = EVENTS[event]
        told = []
        for one in [*history, reply, *following]:
            if one["role"] == "tool":
                author = library.Author.new(role.TOOL, "functions.dictionary")
                result = library.Message.from_author_and_content(author, json.dumps(one["content"]))
                told.append(result.with_recipient("assistant").with_channel("commentary"))
            elif one.get("tool_calls"):
                call = message(role.ASSISTANT, one["tool_calls"][0]["function"]["arguments"])
                told.append(call.with_channel("commentary").with_recipient("functions.dictionary"))
            elif one["role"] == "assistant":
                told.append(message(role.ASSISTANT, one["content"]).with_channel("final"))
            else:
                told.append(message(role.USER, one["content"]))
        return list(
            encoding.render_conversation_for_completion(library.Conversation.from_messages(told), role.ASSISTANT)
        )

    @pytest.mark.parametrize("event", ["user", "user_later", "tool"])
    def test_what_is_appended_is_what_openai_encodes(self, harmony: Any, event: str) -> None:
        model, _ = loaded("gpt_oss")
        expected = appended(model, event)
        assert self.rendered(harmony, event)[-len(expected) :] == expected

    def test_the_stop_tokens_are_openais(self, harmony: Any) -> None:
        model, _ = loaded("gpt_oss")
        _, encoding = harmony
        assert set(encoding.stop_tokens_for_assistant_actions()) <= model.stop_ids
        closing = appended(model, "user")[0]
        assert model.codec.decode([closing]) == "<|end|>"
        assert closing not in model.stop_ids
