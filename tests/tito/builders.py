"""Messages, steps and small tokenizers for the tests of the token core. Pure builders."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from sidecar.tito.chat_template import ChatTemplate
from sidecar.tito.codec import Codec
from sidecar.tito.delta import Conversation, PromptBuilder
from sidecar.tito.messages import Call, Message, parse_arguments
from sidecar.tito.records import StepRecord, VersionSpan

CLOCK = datetime(2026, 5, 6, 7, 8, 9)

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "description": "Look at «it».",
            "parameters": {"type": "object", "properties": {"at": {"type": "string"}}},
        },
    }
]


def call(identifier: str = "call_1", arguments: str = '{"at": "door"}', name: str = "look") -> Call:
    """A tool call with its arguments parsed."""
    return Call(identifier, name, arguments, parse_arguments(arguments))


def wire_call(identifier: str | None, arguments: str | None = "{}", name: str = "look") -> dict[str, Any]:
    """A tool call as a client sends it."""
    return {"id": identifier, "type": "function", "function": {"name": name, "arguments": arguments}}


def user(text: str) -> Message:
    """A user's message."""
    return Message("user", text)


def assistant(text: str = "", *calls: Call, reasoning: str | None = None) -> Message:
    """An assistant's message."""
    return Message("assistant", text, reasoning, calls)


def result(text: str, call_id: str | None = "call_1") -> Message:
    """A tool's result."""
    return Message("tool", text, call_id=call_id)


def conversation(tools: Sequence[dict[str, Any]] | None = None, **template_kwargs: Any) -> Conversation:
    """What the template is given besides the messages, at a fixed time."""
    return Conversation(tools=tools, template_kwargs=template_kwargs, clock=CLOCK)


def step(step_id: str = "a", parent_id: str | None = None, **changes: Any) -> StepRecord:
    """A committed and delivered step; a root unless `parent_id` is given."""
    output = np.asarray(changes.pop("output_ids", [7, 8]), dtype=np.int32)
    values: dict[str, Any] = {
        "step_id": step_id,
        "session_id": "s",
        "begun": changes.get("sequence") or 0,
        "sequence": 0,
        "parent_id": parent_id,
        "segment_reason": "root" if parent_id is None else None,
        "context_ids": np.asarray(changes.pop("context_ids", [1, 2, 3]), dtype=np.int32),
        "output_ids": output,
        "output_logprobs": np.asarray([-(i + 1) / 4 for i in range(len(output))], dtype=np.float32),
        "version_spans": (VersionSpan(0, len(output), "v1"),) if len(output) else (),
        "finish_reason": "stop",
        "stop_id": int(output[-1]) if len(output) else None,
        "message_hashes": (),
        "reply": b'{"role":"assistant","content":"r"}',
        "prompt_chain": step_id.encode().ljust(16, b"?"),
        "prompt_exact_chain": step_id.encode().ljust(16, b"-"),
        "chain": step_id.encode().ljust(16, b"."),
        "exact_chain": step_id.encode().ljust(16, b"!"),
        "message_count": 2,
        "system_hash": b"main agent......",
        "tools_hash": None,
        "template_sha256": "t",
        "tokenizer_sha256": "k",
        "tokenizer": "./model",
        "call_id": f"call of {step_id}",
        "body_hash": f"body of {step_id}".encode(),
        "retry_count": 0,
        "sampling": {},
        "state": "committed",
        "delivered": True,
    }
    return StepRecord(**(values | changes))


def byte_tokenizer(*added: str, vocab: Sequence[str] = (), merges: Sequence[tuple[str, str]] = ()) -> Tokenizer:
    """A byte-level BPE tokenizer with an id per byte, `vocab` and `merges` on top, and `added` control tokens."""
    names = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *vocab]
    tokenizer = Tokenizer(models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(added))
    return tokenizer


def builder_for(template: str, tokenizer: Tokenizer, *stops: str) -> PromptBuilder:
    """A prompt builder over a template and tokenizer of our own."""
    codec = Codec(tokenizer)
    stop_ids = frozenset(index for index in map(codec.token_id, stops) if index is not None)
    assert len(stop_ids) == len(stops)
    return PromptBuilder(ChatTemplate(template, {}), codec, stop_ids)
