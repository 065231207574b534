"""What a policy samples in the load benchmarks: a few replies that differ, as ids, text and parts. Deterministic.

An agent has its whole reply if it equals one of them, part by part: ids that are lost, doubled or of another
agent's stream leave none of them. No I/O but reading the tokenizer.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from benchmarks.conversation import words

STOP = "<|im_end|>"


@dataclass(frozen=True, slots=True)
class Reply:
    """One reply. `ids` end with the stop id; `pieces[i]` is the text of `ids[i]` as the engine sends it.

    `command` is the argument of its only tool call, or None without one."""

    ids: list[int]
    pieces: list[str]
    reasoning: str
    content: str
    command: str | None


def make_replies(tokenizer: Path, count: int, tokens: int, *, calls: bool) -> list[Reply]:
    """`count` replies of about `tokens` ids, a third of it reasoning; with `calls` each ends in a tool call."""
    encoder = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    return [_make(encoder, number, tokens, calls=calls) for number in range(count)]


def _make(encoder: Tokenizer, number: int, tokens: int, *, calls: bool) -> Reply:
    source = random.Random(f"reply {number}")
    # one id per word, but for the markers and the call
    spare = tokens - (38 if calls else 6)
    reasoning = f"{number} " + words(source, max(1, spare // 3))
    content = words(source, max(1, spare - spare // 3))
    command = words(source, 4) if calls else None
    text = f"<think>\n{reasoning}\n</think>\n\n{content}"
    if command is not None:
        text += f'\n\n<tool_call>\n{{"name": "run_command", "arguments": {{"command": "{command}"}}}}\n</tool_call>'
    ids = encoder.encode(text + STOP, add_special_tokens=False).ids
    return Reply(ids, [encoder.decode([one], skip_special_tokens=True) for one in ids], reasoning, content, command)


def parts(reply: Reply) -> tuple[str, str, str | None]:
    """What an agent is shown of it."""
    return reply.reasoning, reply.content, reply.command


def to_wire(replies: Sequence[Reply]) -> list[dict[str, Any]]:
    """As JSON, for the engine's process."""
    return [{"ids": reply.ids, "pieces": reply.pieces} for reply in replies]
