"""A tool conversation as agents hold it: a task, then reply and result in turn. Deterministic, pure.

The sampled reply is the same in every turn (reasoning and one call); results differ, so that no cache of a
tokenizer or of the operating system sees the same text twice.
"""

from __future__ import annotations

import random
from typing import Any

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"{name.replace('_', ' ')} in the repository's working tree",
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string"}, "command": {"type": "string"}},
                "required": ["command"],
            },
        },
    }
    for name in ("run_command", "read_file", "write_file", "search_files")
]

REPLY = (
    "<think>\nThe failing test names the parser, and the traceback ends in the branch that handles escaped quotes. "
    "Before I change it I want to see which callers rely on the present behaviour, and whether the fixture file "
    "covers them. A search over the package is the quickest way to find out.\n</think>\n\n"
    "Let me look at the callers first.\n\n"
    '<tool_call>\n{"name": "run_command", "arguments": {"path": "src/parser", "command": '
    '"grep -rn \\"unescape(\\" src tests | head -40 && sed -n 80,140p src/parser/tokens.py"}}\n</tool_call>'
)
"""What the model samples, as text with its control tokens."""

_TEXT = """
assert async await bytes cache class config cursor decode def dict else encode error except false field file final
float for from handler if import index int is item key lambda length line list log match module name none not object
offset open option or parse path pattern pass position prefix raise read result return row self session size slice
source start state str suffix table test text token true try tuple type value while with write yield
"""
_WORDS = _TEXT.split()


def words(source: random.Random, count: int) -> str:
    """`count` words of code, with a space between them; about one token each."""
    return " ".join(source.choices(_WORDS, k=count))


class Conversation:
    """`messages` grow with each turn. `result_words` is the size of a tool result; about 1.6 tokens each."""

    def __init__(self, seed: int, result_words: int) -> None:
        self.messages: list[dict[str, Any]] = [
            {"role": "system", "content": "You are a coding agent. Work step by step and use the tools."},
            {"role": "user", "content": "The parser drops escaped quotes. Find out why, fix it, and add a test."},
        ]
        self._random = random.Random(seed)
        self._result_words = result_words

    def body(self) -> dict[str, Any]:
        """The request for the next reply."""
        return {"messages": self.messages, "model": "policy", "tools": TOOLS}

    def answer(self, reply: dict[str, Any]) -> None:
        """Add an assistant message as the SDK gives it back, and the results of its calls."""
        self.messages.append({key: reply[key] for key in ("role", "content", "tool_calls") if reply.get(key)})
        for call in reply["tool_calls"]:
            self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": self._result()})

    def _result(self) -> str:
        lines, words = [], self._result_words
        while words > 0:
            count = self._random.randint(3, 9)
            code = " ".join(self._random.choice(_WORDS) for _ in range(count))
            lines.append(f"{self._random.randint(1, 999):>4}: {'    ' * self._random.randint(0, 3)}{code}")
            words -= count
        return "\n".join(lines)
