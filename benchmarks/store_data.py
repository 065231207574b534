"""Steps as tool conversations leave them: ids of real text by Qwen3's tokenizer, messages, logprobs.

The text is this repository's own: results are pieces of its sources, replies pieces of its documents. Logprobs have
the shape of a model's: most near 0, float32 noise below. Deterministic but for the repository's content.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from tokenizers import Tokenizer

from sidecar.store.protocol import SessionRow
from sidecar.tito.records import StepRecord, VersionSpan

ROOT = Path(__file__).resolve().parents[1]
_RESULT_CHARACTERS = (400, 1500, 4000, 8000)
_REPLY_CHARACTERS = (300, 800, 1400)
_CALL = '\n<tool_call>\n{"name": "run_command", "arguments": {"command": "sed -n 80,140p src/x.py"}}\n</tool_call>'


@dataclass(frozen=True, slots=True)
class Turn:
    """What one step adds. `result` is the message before it."""

    context_ids: Any
    output_ids: Any
    logprobs: Any
    result: bytes
    reply: bytes

    @property
    def tokens(self) -> int:
        """Ids of context and reply."""
        return len(self.context_ids) + len(self.output_ids)

    @property
    def plain_bytes(self) -> int:
        """Ids, logprobs and messages as they are."""
        arrays = self.context_ids.nbytes + self.output_ids.nbytes + self.logprobs.nbytes
        return int(arrays) + len(self.result) + len(self.reply)


def make_turns(tokenizer: Path, count: int) -> list[Turn]:
    """Turns of conversations, all different."""
    encode = Tokenizer.from_file(str(tokenizer / "tokenizer.json")).encode
    source, noise = random.Random(0), np.random.default_rng(0)
    code = [path.read_text() for path in sorted((ROOT / "sidecar").rglob("*.py"))]
    code = [text for text in code if len(text) > 2 * min(_RESULT_CHARACTERS)]
    prose = "\n".join(path.read_text() for path in sorted((ROOT / "docs").glob("*.md")))
    turns = []
    for _ in range(count):
        result = _piece(source, source.choice(code), source.choice(_RESULT_CHARACTERS))
        thought = _piece(source, prose, source.choice(_REPLY_CHARACTERS))
        context = f"<|im_end|>\n<|im_start|>user\n<tool_response>\n{result}\n</tool_response><|im_end|>\n"
        output = np.array(encode(f"<think>\n{thought}\n</think>\n{_CALL}<|im_end|>").ids, dtype=np.int32)
        turns.append(
            Turn(
                np.array(encode(f"{context}<|im_start|>assistant\n").ids, dtype=np.int32),
                output,
                -noise.gamma(0.3, 1.2, len(output)).astype(np.float32),
                orjson.dumps(
                    {"role": "tool", "tool_call_id": f"call_{source.getrandbits(96):x}", "content": result}
                ),
                orjson.dumps({"role": "assistant", "reasoning_content": thought, "content": _CALL}),
            )
        )
    return turns


def make_session(session_id: str, **changes: Any) -> SessionRow:
    """An open session."""
    row = SessionRow(session_id, "instance", "run", {"task": "fix the parser"}, {}, "open", 1.8e9, 1.8e9)
    return replace(row, **changes)


def make_step(session_id: str, number: int, turn: Turn) -> tuple[StepRecord, dict[bytes, bytes]]:
    """Step `number` of a session, which goes on where the one before it ended, and its blobs."""
    key = _hash(session_id, number, "result")
    record = StepRecord(
        step_id=_hash(session_id, number).hex(),
        session_id=session_id,
        begun=2 * number,
        sequence=2 * number + 1,
        parent_id=_hash(session_id, number - 1).hex() if number else None,
        segment_reason=None if number else "root",
        context_ids=turn.context_ids,
        output_ids=turn.output_ids,
        output_logprobs=turn.logprobs,
        version_spans=(VersionSpan(0, len(turn.output_ids), "7"),),
        finish_reason="tool_calls",
        stop_id=int(turn.output_ids[-1]),
        message_hashes=(key,),
        reply=turn.reply,
        prompt_chain=_hash(session_id, number, "prompt"),
        prompt_exact_chain=_hash(session_id, number, "exact prompt"),
        chain=_hash(session_id, number, "chain"),
        exact_chain=_hash(session_id, number, "exact chain"),
        message_count=2 * number + 2,
        system_hash=_hash("system"),
        tools_hash=None,
        template_sha256="5d" * 32,
        tokenizer_sha256="a7" * 32,
        tokenizer="Qwen/Qwen3-8B",
        call_id=_hash(session_id, number, "call").hex(),
        body_hash=hashlib.sha256(key).digest()[:16],
        retry_count=0,
        sampling={"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "max_new_tokens": 32768},
        state="committed",
        delivered=False,
        created_at=1.8e9 + number,
        extra={"token_build_mode": "tito", "history_thinking": "keep"},
    )
    return record, {key: turn.result}


def _piece(source: random.Random, text: str, length: int) -> str:
    start = source.randrange(max(1, len(text) - length))
    return text[start : start + length]


def _hash(*parts: object) -> bytes:
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).digest()
