"""What the scripted model says to mini-swe-agent: turns in Qwen3's format that repair a project of two files.

The ids are not those that the tokenizer makes of the text, so only a token-exact history gives them back. Pure.
"""

from __future__ import annotations

import json
import re

from tokenizers import Tokenizer

from tests.fake_sglang import FakeSGLang, Reply

TASK = "check.py fails. Repair celsius.py, not the check."
BROKEN = '"""Temperatures."""\n\n\ndef celsius(fahrenheit):\n    return fahrenheit - 32 * 5 / 9\n'
CHECK = 'from celsius import celsius\n\nassert celsius(212) == 100, f"212 °F are 100 °C, not {celsius(212)}"\n'
REPAIR = (
    "sed -i 's/fahrenheit - 32 \\* 5/(fahrenheit - 32) * 5/' celsius.py && python check.py && echo \"fits: °C\""
)
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


def with_calls(thought: str, text: str, *commands: str) -> str:
    """A turn as Qwen3 writes it: reasoning, text, and calls of mini-swe-agent's one tool."""
    calls = [json.dumps({"name": "bash", "arguments": {"command": one}}, ensure_ascii=False) for one in commands]
    blocks = [text, *(f"<tool_call>\n{call}\n</tool_call>" for call in calls)]
    return f"<think>\n{thought}\n</think>\n\n" + "\n".join(blocks)


def with_code_block(thought: str, text: str, command: str) -> str:
    """A turn in the form that mini-swe-agent asks of models without tool calls."""
    return f"<think>\n{thought}\n</think>\n\nTHOUGHT: {text}\n\n```mswea_bash_command\n{command}\n```"


TURNS = [
    with_calls("First, what is there?", "I look around.", "ls && cat celsius.py"),
    with_calls("Two things at once.", "I see the failure.", "python check.py", "grep -n return celsius.py"),
    with_calls("Operator precedence! 32 * 5 / 9 binds first.", "Brackets are missing 🎉", REPAIR),
    with_calls("It passes.", "Done.", SUBMIT),
]


def unusual_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """Ids of `text` cut after every third character, special tokens whole: a model may sample such splits, and
    nobody gets them back from the text."""
    ids: list[int] = []
    for part in re.split(r"(</?think>|</?tool_call>)", text):
        pieces = [part] if part.startswith("<") else [part[at : at + 3] for at in range(0, len(part), 3)]
        ids += [one for piece in pieces for one in tokenizer.encode(piece, add_special_tokens=False).ids]
    return ids


def scripted(engine: FakeSGLang, turns: list[str]) -> list[Reply]:
    """Replies that say `turns`, in ids that are not the tokenizer's own for that text."""
    tokenizer = engine.vocabulary.tokenizer
    assert tokenizer is not None
    replies = []
    for turn in turns:
        ids = unusual_ids(tokenizer, turn)
        assert decoded(engine, ids) == turn
        assert ids != tokenizer.encode(turn, add_special_tokens=False).ids
        replies.append(Reply(ids=ids))
    return replies


def decoded(engine: FakeSGLang, ids: list[int]) -> str:
    """The text of `ids`, special tokens as they are spelled."""
    assert engine.vocabulary.tokenizer is not None
    return engine.vocabulary.tokenizer.decode(ids, skip_special_tokens=False)
