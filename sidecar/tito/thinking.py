"""Earlier reasoning where the template decides on it (`--history-thinking template`). Pure.

Told by text, never by ids: sampled ids may spell their text in another way than the tokenizer would, and a call's
arguments may be spaced otherwise than the template prints them. Neither is a change of reasoning.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import replace

from sidecar.tito.messages import Message
from sidecar.tito.trajectory import Node


def restored(messages: Sequence[Message], parent: Node | None) -> list[Message]:
    """A request's messages with the reasoning of the session's own replies among them, whatever the client replays
    of it. `parent` is the step that the request continues, so its lineage's replies stand where they stood."""
    whole = list(messages)
    lineage = parent.lineage() if parent is not None else []
    for node in lineage:  # from the root on: a reply that a later step went on with stands where that step's does
        position = node.record.message_count - 1
        reasoning = Message.from_json(node.record.reply).reasoning
        whole[position] = replace(whole[position], reasoning=reasoning)
    return whole


def first_changed(messages: Sequence[Message], stream: str, printed: str) -> int | None:
    """Index of the first of `messages` whose reasoning stands more or less often in the text `stream` than in
    `printed`, what the template prints of them; None if all of it stands in both.

    White space around a reasoning does not count (templates strip it), nor does an empty reasoning block."""
    if stream == printed:
        return None
    stream, printed = _composed(stream), _composed(printed)
    for index, message in enumerate(messages):
        reasoning = _composed((message.reasoning or "").strip())
        if reasoning and stream.count(reasoning) != printed.count(reasoning):
            return index
    return None


def _composed(text: str) -> str:
    """Tokenizers such as Qwen3's compose characters (NFC) when they encode, and what is sampled is not composed."""
    return unicodedata.normalize("NFC", text)
