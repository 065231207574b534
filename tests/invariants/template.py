"""What the model's chat template prints, told by transformers' own renderer over full histories.

Shares no code with the sidecar: messages are normalised here again, by the design's words. Pure.
"""

import json
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

Message = dict[str, Any]
_MARK = "⟦the reply⟧"


class Template:
    """Qwen3's tokenizer and chat template, read from `directory`."""

    def __init__(self, directory: Path) -> None:
        config = json.loads((directory / "tokenizer_config.json").read_text())
        self.tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self.control = set(self.tokenizer.get_added_tokens_decoder())
        self._source = config["chat_template"]
        self._renderer = PreTrainedTokenizerFast(tokenizer_object=self.tokenizer)

    def prompt(self, messages: Sequence[Message], tools: Any, kwargs: Mapping[str, Any]) -> str:
        """The whole prompt of normalised messages."""
        text = self._renderer.apply_chat_template(
            list(messages),
            tools=tools,
            chat_template=self._source,
            tokenize=False,
            add_generation_prompt=True,
            **kwargs,
        )
        assert isinstance(text, str)
        return text

    def after_reply(self, messages: Sequence[Message], depth: int, tools: Any, kwargs: Mapping[str, Any]) -> str:
        """What stands behind the text of the reply `messages[depth - 1]`, its stop token first."""
        marked = [*messages[: depth - 1], {"role": "assistant", "content": _MARK}, *messages[depth:]]
        before, found, after = self.prompt(marked, tools, kwargs).rpartition(_MARK)
        assert found, before
        return after

    def text(self, ids: Sequence[int]) -> str:
        """Ids as text, control tokens included."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False))

    def ids(self, text: str) -> list[int]:
        """Text as ids, control tokens by their spelling."""
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def same_text(self, left: str, right: str) -> bool:
        """Equal but for what this tokenizer's normaliser changes (NFC)."""
        return unicodedata.normalize("NFC", left) == unicodedata.normalize("NFC", right)


def normalised(wire: Sequence[Message]) -> list[Message]:
    """A request's messages as `design/tito.md` normalises them before rendering."""
    messages = [_normal_message(message) for message in wire]
    leading = 0
    while leading < len(messages) and messages[leading]["role"] == "system":
        leading += 1
    if leading > 1:
        text = "\n\n".join(message["content"] for message in messages[:leading])
        messages[:leading] = [{"role": "system", "content": text}]
    index = 0
    while index < len(messages):
        end = index
        while end < len(messages) and messages[end]["role"] == "tool":
            end += 1
        if end > index and all(message.get("tool_call_id") for message in messages[index:end]):
            order = [bare(call["id"]) for call in messages[index - 1].get("tool_calls", ())]
            messages[index:end] = sorted(
                messages[index:end], key=lambda message: order.index(bare(message["tool_call_id"]))
            )
        index = end + 1
    return messages


def bare(call_id: str) -> str:
    """A call id without punctuation."""
    return "".join(character for character in call_id if character.isascii() and character.isalnum())


def _normal_message(message: Message) -> Message:
    role = "system" if message["role"] == "developer" else message["role"]
    content = message.get("content") or ""
    if isinstance(content, list):
        content = "".join(part["text"] for part in content)
    normal: Message = {"role": role, "content": content}
    if message.get("reasoning_content"):
        normal["reasoning_content"] = message["reasoning_content"]
    if message.get("tool_calls"):
        normal["tool_calls"] = [
            {
                "id": call["id"],
                "type": "function",
                "function": {
                    "name": call["function"]["name"],
                    "arguments": parsed_arguments(call["function"]["arguments"]),
                    "raw": call["function"]["arguments"],  # for exact matching; the template does not print it
                },
            }
            for call in message["tool_calls"]
        ]
    if message.get("tool_call_id"):
        normal["tool_call_id"] = message["tool_call_id"]
    return normal


def parsed_arguments(text: str) -> Any:
    """An object if the text is JSON for one and means one thing only, else the text."""
    try:
        parsed = json.loads(text)
        json.dumps(parsed, allow_nan=False).encode()
        json.dumps(parsed, ensure_ascii=False).encode()
    except ValueError:
        return text
    return parsed if isinstance(parsed, dict) else text
