"""What a full collection costs in a process that holds many finished conversations.

`python -m benchmarks.held_sessions PLAN RESULT` (files of JSON) makes the objects that a sidecar holds of a session
between two calls (`Session`, with its trajectory and what it remembers of the last request) with the product's own
code, from conversations of a reply and a tool result in turn, and collects. What lives for ever is frozen before,
as in `serve`, which looks at the rest only when it is idle (`sidecar.garbage`).
"""

from __future__ import annotations

import gc
import sys
import time
from pathlib import Path
from typing import Any, cast

import numpy as np
import orjson

from benchmarks.conversation import TOOLS
from benchmarks.processes import resident_bytes
from sidecar.generation.controller import Controller
from sidecar.sessions.session import Session
from sidecar.sessions.step_counts import StepCounts
from sidecar.store.protocol import SessionRow, StoredSession
from sidecar.store.session_store import SessionStore
from sidecar.tito.fingerprint import MatchRules, digest
from sidecar.tito.model import Model
from sidecar.tito.reading import read
from sidecar.tito.records import StepRecord, VersionSpan

_CONTEXT, _OUTPUT = 50, 90
"""Tokens of a result and of a reply."""


def conversation(number: int, messages: int) -> list[dict[str, Any]]:
    """That many messages that no other conversation has."""
    made: list[dict[str, Any]] = [{"role": "user", "content": f"task {number}"}]
    for index in range(1, messages, 2):
        call = {"name": "run_command", "arguments": f'{{"command": "sed -n {index}p file-{number}"}}'}
        reply = {"role": "assistant", "content": None, "reasoning_content": f"Look at line {index} of {number}."}
        made.append({**reply, "tool_calls": [{"id": f"call_{index}", "type": "function", "function": call}]})
        made.append({"role": "tool", "tool_call_id": f"call_{index}", "content": f"line {index} of {number}\n" * 8})
    return made[:messages]


def hold(number: int, messages: int) -> Session:
    """A session as it is between two calls."""
    wire = conversation(number, messages)
    rules = MatchRules()
    row = SessionRow(f"session-{number}", None, None, {}, {}, "open", 0.0, 0.0)
    steps = [_step(number, turn, wire) for turn in range(messages // 2)]
    # neither of them is asked for anything
    parts = cast(SessionStore, None), cast(Controller, None), cast(Model, None)
    session = Session(StoredSession(row, steps), *parts, StepCounts())
    session.readings.keep(read({}, rules, session.readings.find(wire, {})))
    return session


def _step(number: int, turn: int, wire: list[dict[str, Any]]) -> StepRecord:
    def unique(name: str) -> bytes:
        return digest(f"{name} {number} {turn}".encode())

    return StepRecord(
        step_id=unique("step").hex(),
        session_id=f"session-{number}",
        begun=2 * turn,
        sequence=2 * turn + 1,
        parent_id=digest(f"step {number} {turn - 1}".encode()).hex() if turn else None,
        segment_reason=None if turn else "root",
        context_ids=np.arange(_CONTEXT, dtype=np.int32),
        output_ids=np.arange(_OUTPUT, dtype=np.int32),
        output_logprobs=np.full(_OUTPUT, -0.5, dtype=np.float32),
        version_spans=(VersionSpan(0, _OUTPUT, "1"),),
        finish_reason="tool_calls",
        stop_id=1,
        message_hashes=(unique("message"),),
        reply=orjson.dumps(wire[2 * turn + 1]),
        prompt_chain=unique("prompt chain"),
        prompt_exact_chain=unique("exact prompt chain"),
        chain=unique("chain"),
        exact_chain=unique("exact chain"),
        message_count=2 * turn + 2,
        system_hash=b"",
        tools_hash=digest(orjson.dumps(TOOLS)),
        template_sha256="template",
        tokenizer_sha256="tokenizer",
        tokenizer="policy",
        call_id=unique("call").hex(),
        body_hash=unique("body"),
        retry_count=0,
        sampling={"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0},
        state="committed",
        delivered=True,
        extra={"token_build_mode": "tito"},
    )


def main(arguments: list[str]) -> None:
    """See the module's docstring."""
    plan = orjson.loads(Path(arguments[0]).read_bytes())
    gc.collect()
    gc.freeze()
    before = resident_bytes()
    held = [hold(number, plan["messages"]) for number in range(plan["sessions"])]
    added = resident_bytes() - before
    gc.collect()  # the first one sorts out what can be no part of a cycle
    tracked = len(gc.get_objects())
    begun = time.perf_counter()
    gc.collect()
    took = time.perf_counter() - begun
    found = {
        "sessions": len(held),
        "messages": plan["messages"],
        "collection_ms": took * 1e3,
        "tracked": tracked,
        "resident_bytes": added,
    }
    Path(arguments[1]).write_bytes(orjson.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
