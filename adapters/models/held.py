"""Replies that a parser of the engine reads: nothing of them is shown before its answer is known. One per reply.

The engine can be asked only about the whole text, and what an agent was sent cannot be taken back. So pieces are
kept; once the reply is complete, its step asks `question()` and gets the reply from `settle()`. No I/O: the call
itself is `sidecar.generation.engine_parsing`. Without an answer the text is content, as the model wrote it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from adapters.models.engine_parser import Answer, EngineParser, Question
from adapters.models.marks import Marks
from adapters.models.parser import Parser
from adapters.models.reply import Delta, Reply, ToolCall, join


class HeldReply(ABC):
    """A `Parser` that gives no deltas."""

    @abstractmethod
    def feed(self, text: str) -> list[Delta]:
        """Keep `text`."""

    @abstractmethod
    def finish(self) -> list[Delta]:
        """The text is complete."""

    @abstractmethod
    def question(self, cut: bool) -> Question | None:
        """What to ask about the complete text; None if the reply is known without. `cut`: the length limit ended
        it."""

    @abstractmethod
    def settle(self, answer: Answer | None) -> Reply:
        """The reply; None: nothing was asked, or the engine could not answer."""


class HeldForCalls(HeldReply):
    """The engine reads the calls. `inner` splits off the reasoning and shows all control tokens."""

    def __init__(
        self,
        parser: EngineParser,
        inner: Parser,
        tools: Sequence[Mapping[str, Any]],
        new_id: Callable[[int], str],
    ) -> None:
        self._parser = parser
        self._inner = inner
        self._tools = tools
        self._new_id = new_id
        self._deltas: list[Delta] = []

    def feed(self, text: str) -> list[Delta]:
        """Keep `text`."""
        self._deltas += self._inner.feed(text)
        return []

    def finish(self) -> list[Delta]:
        """The text is complete."""
        self._deltas += self._inner.finish()
        return []

    def question(self, cut: bool) -> Question | None:
        """Nothing is asked about a reply that was cut: SGLang drops a call without its end, or guesses the end."""
        text = join(self._deltas).content
        return Question(self._parser, text, self._tools) if text.strip() and not cut else None

    def settle(self, answer: Answer | None) -> Reply:
        """Without calls the content is the model's own text: of a malformed call SGLang's parsers leave nothing."""
        written = join(self._deltas)
        if answer is None or not answer.calls:
            return written
        calls = (
            ToolCall(self._new_id(number), call.name, call.arguments) for number, call in enumerate(answer.calls)
        )
        return Reply(content=answer.content.strip(), reasoning=written.reasoning, calls=tuple(calls))


class HeldForReasoning(HeldReply):
    """The engine reads the reasoning; the rest is read by the parser that `of_rest` makes.

    `opened` is the marker with which the prompt has opened the reasoning, `""` if it has not, or with none that
    can be told: SGLang is not shown the prompt."""

    def __init__(self, parser: EngineParser, marks: Marks, opened: str, of_rest: Callable[[], Parser]) -> None:
        self._parser = parser
        self._marks = marks
        self._opened = opened
        self._of_rest = of_rest
        self._pieces: list[str] = []

    def feed(self, text: str) -> list[Delta]:
        """Keep `text`."""
        self._pieces.append(self._marks.spelled(text))
        return []

    def finish(self) -> list[Delta]:
        """The text is complete."""
        return []

    def question(self, cut: bool) -> Question | None:
        """Cut reasoning is reasoning, so a cut reply is asked about like any other."""
        text = "".join(self._pieces)
        return Question(self._parser, self._opened + text) if text.strip() else None

    def settle(self, answer: Answer | None) -> Reply:
        """Control tokens are told by their spelling in what the engine gives back."""
        if answer is None:
            return Reply(content="".join(self._pieces), reasoning="", calls=())
        rest = answer.content if answer.reasoning else answer.content.removeprefix(self._opened)
        parser = self._of_rest()
        deltas = parser.feed(self._marks.marked(rest.lstrip("\n") if answer.reasoning else rest))
        return replace(join(deltas + parser.finish()), reasoning=answer.reasoning.lstrip("\n").rstrip())
