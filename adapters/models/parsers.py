"""Makes the parser of each reply. One object per model, immutable."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from adapters.models.engine_parser import EngineParser
from adapters.models.formats.base import ReasoningFormat, ToolFormat
from adapters.models.formats.gpt_oss import GPT_OSS
from adapters.models.formats.reasoning import GPT_OSS_ANALYSIS
from adapters.models.formats.schema import Tools
from adapters.models.harmony import HarmonyParser
from adapters.models.held import HeldForCalls, HeldForReasoning
from adapters.models.marks import Marks
from adapters.models.parser import Grammar, Parser, ReplyParser


@dataclass(frozen=True, slots=True)
class ReplyFormats:
    """How a model writes calls and reasoning; None: not at all, or in no way known here. `warnings` are for the
    operator: what was guessed, or will not work. What `engine` reads is None here."""

    tools: ToolFormat | None = None
    reasoning: ReasoningFormat | None = None
    warnings: tuple[str, ...] = ()
    engine: EngineParser | None = None

    @property
    def calls_name(self) -> str | None:
        """What the calls are read by, as the setting names it."""
        if self.engine is not None and self.engine.reads == "calls":
            return "engine"
        return None if self.tools is None else self.tools.name

    @property
    def reasoning_name(self) -> str | None:
        """What the reasoning is read by, as the setting names it."""
        if self.engine is not None and self.engine.reads == "reasoning":
            return "engine"
        return None if self.reasoning is None else self.reasoning.name

    @property
    def markers(self) -> tuple[str, ...]:
        """Spellings that belong to the formats."""
        own = (self.reasoning.opener, self.reasoning.closer) if self.reasoning is not None else ()
        return (*(self.tools.markers if self.tools is not None else ()), *own)


class Parsers:
    """`marks` are the tokenizer's."""

    def __init__(self, marks: Marks, formats: ReplyFormats) -> None:
        tools = formats.tools
        reader = tools.reader(marks) if tools is not None and tools.reader is not None else None
        shown = marks.of_spellings(formats.markers)
        self.formats = formats
        self._with_tools = Grammar(marks, reader, formats.reasoning, shown)
        self._without_tools = Grammar(marks, None, formats.reasoning, shown)
        self._for_the_engine = Grammar(marks, None, formats.reasoning, marks.special)
        self._marks = marks

    def reasoning_open(self, tail: str) -> bool:
        """Whether a prompt that ends in `tail` has opened the reasoning block for the model. Nothing but white
        space may follow the opener: an earlier one stands in somebody's message."""
        reasoning = self.formats.reasoning
        return reasoning is not None and bool(reasoning.opener) and tail.rstrip().endswith(reasoning.opener)

    def parser(
        self, tail: str, use_tools: bool, tools: Sequence[Mapping[str, Any]], new_id: Callable[[int], str]
    ) -> Parser:
        """A parser for one reply to a prompt that ends in `tail`. `tools` are the request's, `new_id(n)` names the
        n-th call if its format has no ids. It is a `HeldReply` where the engine has to be asked."""
        engine = self.formats.engine
        if engine is not None and engine.reads == "reasoning":
            opened = self._marks.opened_by(tail)
            return HeldForReasoning(
                engine, self._marks, opened, lambda: self._in_process("", use_tools, tools, new_id)
            )
        if engine is not None and use_tools:
            inner = ReplyParser(
                self._for_the_engine, Tools(()), reasoning_open=self.reasoning_open(tail), new_id=new_id
            )
            return HeldForCalls(engine, inner, tools, new_id)
        return self._in_process(tail, use_tools, tools, new_id)

    def _in_process(
        self, tail: str, use_tools: bool, tools: Sequence[Mapping[str, Any]], new_id: Callable[[int], str]
    ) -> Parser:
        formats = self.formats
        if formats.tools is GPT_OSS or formats.reasoning is GPT_OSS_ANALYSIS:
            return HarmonyParser(
                self._marks,
                use_tools=use_tools and formats.tools is GPT_OSS,
                split=formats.reasoning is GPT_OSS_ANALYSIS,
                new_id=new_id,
            )
        make_id = formats.tools.make_id if formats.tools is not None else str
        return ReplyParser(
            self._with_tools if use_tools else self._without_tools,
            Tools(tools),
            reasoning_open=self.reasoning_open(tail),
            new_id=lambda n: make_id(new_id(n)),
        )
