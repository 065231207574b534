"""Everything the sidecar knows of the served model, made once at start-up from plain text. Immutable."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

from adapters.models.family import ModelFamily
from adapters.models.marks import Marks
from adapters.models.parsers import Parsers
from adapters.models.registry import find_family
from adapters.models.selection import ParserChoice, choose_formats
from sidecar.tito.chat_template import ChatTemplate
from sidecar.tito.codec import Codec
from sidecar.tito.delta import PromptBuilder
from sidecar.tito.errors import UnstableTemplate
from sidecar.tito.reply_text import Detokenizer, ReplyText
from sidecar.tito.selftest import Verdict, check_template


@dataclass(frozen=True, slots=True)
class ModelText:
    """A model's tokenizer and template as read from files; see `sidecar.model_files`."""

    name: str
    tokenizer: Tokenizer
    chat_template: str
    special_tokens: Mapping[str, str]
    """`bos_token`, `eos_token`, ... as templates print them."""
    stop_ids: frozenset[int]
    """From the generation config; the tokenizer's `eos_token` is added by `build_model`."""
    vocab_size: int | None = None
    """Rows of the model's embedding table, from its config; None where that is not said."""


@dataclass(frozen=True, slots=True)
class Model:
    """The served model's text side."""

    name: str
    family: ModelFamily
    codec: Codec
    marks: Marks
    builder: PromptBuilder
    stop_ids: frozenset[int]
    verdict: Verdict
    parsers: Parsers
    vocab_size: int
    """Ids below it are known to the tokenizer and, as far as its config says, to the model."""

    @property
    def template_sha256(self) -> str:
        """Hash of the template's text."""
        return self.builder.template.sha256

    @property
    def tokenizer_sha256(self) -> str:
        """Hash of the tokenizer's state, see `Codec`."""
        return self.codec.sha256

    def reasoning_open(self, tail: str) -> bool:
        """Whether a prompt that ends in `tail` has opened the reasoning block for the model."""
        return self.parsers.reasoning_open(tail)

    def reply_text(
        self,
        tail: str,
        use_tools: bool,
        stop_strings: Iterable[str],
        new_id: Callable[[int], str],
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> ReplyText:
        """A fresh pipeline from ids to reply for one step. `tools` are the request's: they type arguments."""
        parser = self.parsers.parser(tail, use_tools, tools, new_id)
        # the text to search has control tokens as marks; a model may also spell them out
        stops = {form: None for stop in stop_strings for form in (stop, self.marks.marked(stop))}
        # a stop token that is one of the format's markers (`<|call|>` of gpt-oss) tells the parser something
        markers = self.parsers.formats.markers
        unseen = frozenset(index for index in self.stop_ids if self.codec.control.get(index) not in markers)
        return ReplyText(Detokenizer(self.codec, self.marks), parser, unseen, tuple(stops))


AUTO = ParserChoice()
"""The parsers that the chat template suggests."""


def build_model(
    text: ModelText,
    *,
    family_name: str = "auto",
    parsers: ParserChoice = AUTO,
    protect_content: bool = True,
    allow_unstable: bool = False,
) -> Model:
    """Put a model together and run the start-up self-test.

    Raises `ValueError` for an unknown family or parser or a model without a stop token, `UnstableTemplate` if the
    delta is inexact and not `allow_unstable`, `TemplateError` if the template cannot be compiled."""
    family = find_family(family_name, text.chat_template)
    formats = choose_formats(family, text.chat_template, parsers)
    codec = Codec(text.tokenizer, text.chat_template)
    marks = Marks(codec.control, codec.special)
    spellings = [text.special_tokens.get("eos_token"), *family.stop_tokens]
    found = [codec.token_id(spelling) for spelling in spellings if spelling]
    stop_ids = text.stop_ids | {index for index in found if index is not None}
    if not stop_ids:
        raise ValueError(f"{text.name} names no stop token: its tokenizer_config.json has no eos_token")
    template = ChatTemplate(text.chat_template, text.special_tokens)
    closers = frozenset(family.closers)
    builder = PromptBuilder(template, codec, stop_ids, closers=closers, protect_content=protect_content)
    verdict = check_template(builder)
    if verdict.outcome == "refused" and not allow_unstable:
        event, failure = next(iter(verdict.failures.items()))
        raise UnstableTemplate(
            f"the chat template of {text.name} gives no exact delta for the event {event!r}: {failure}. "
            "Pin another template with --chat-template, or accept a new segment per turn with "
            "--on-unstable-template segment"
        )
    vocab_size = min(codec.vocab_size, text.vocab_size or codec.vocab_size)
    return Model(text.name, family, codec, marks, builder, stop_ids, verdict, Parsers(marks, formats), vocab_size)
