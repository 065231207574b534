"""The end of a reply that the engine's own parser reads: one question, once the text is complete.

Runs in the step's task, after the generation and before the commit. The step never fails of it: without a usable
answer the text is content, as the model wrote it, and the reason is logged and recorded on the step.
"""

from __future__ import annotations

import logging
from typing import Any

from adapters.engines.base import EngineError
from adapters.models.held import HeldReply
from adapters.models.reply import Reply
from sidecar.generation.engine_parsing import EngineParsing

log = logging.getLogger(__name__)


async def settle_reply(
    held: HeldReply, parsing: EngineParsing, *, cut: bool, session_id: str, step_id: str
) -> tuple[Reply, dict[str, Any]]:
    """The reply, and what the step's `extra` says of it: `engine_parser` is `{reads, name}`, and `failure` where
    the engine could not answer; nothing where it was not asked. `cut`: the length limit ended the text."""
    question = held.question(cut)
    if question is None:
        return held.settle(None), {}
    note = {"reads": question.parser.reads, "name": question.parser.name}
    try:
        answer = await parsing.ask(question)
    except EngineError as error:
        log.warning(
            "the engine's parser %r gives no answer, the text stays content: session_id=%s step_id=%s: %s",
            question.parser.name, session_id, step_id, error,
        )  # fmt: skip
        return held.settle(None), {"engine_parser": {**note, "failure": str(error)}}
    return held.settle(answer), {"engine_parser": note}
