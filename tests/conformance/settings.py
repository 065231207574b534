"""With which tokenizer and stop tokens a template is tried: its model's own where they can be had."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from tokenizers import Tokenizer

from sidecar.tito.codec import Codec
from tests.conformance.corpus import Sample
from tests.conformance.oracle import Printed, printed_stops
from tests.conformance.renderer import CONTROL
from tests.conformance.stop_tokens import Stops, known_stops
from tests.conformance.vocabularies import BY_FAMILY, SPECIAL, substitute, vocabulary

SUBSTITUTE = "substitute"
_UNSPELLED = (
    "<eos:6124c78e>",
    *(f"<｜hy_{name}{suffix}｜>" for name in ("eos", "User", "Assistant") for suffix in ("", ":opensource")),
)
"""Control tokens that templates put together from parts."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A template with a tokenizer; `special` is what it may print by name, `known` its family's stop tokens."""

    sample: Sample
    family: str
    vocabulary: str
    special: dict[str, str]
    known: Stops | None


def settings_of(sample: Sample) -> list[Setting]:
    """The real tokenizer of the template's family, if there is one, and the substitute."""
    known = known_stops(sample.source)
    family = known.family if known else "other"
    special = {"unk_token": "<unk>", "sep_token": "<sep>", "bos_token": "<s>"}
    special["eos_token"] = known.tokens[0] if known else "</s>"
    found = [Setting(sample, family, SUBSTITUTE, special, known)]
    real = BY_FAMILY.get(family)
    return [Setting(sample, family, real, SPECIAL[real], known), *found] if real else found


class Vocabularies:
    """Tokenizers by name, each loaded once per process. `sources` are the corpus's templates: the substitute knows
    every control token that any of them spells."""

    def __init__(self, sources: Iterable[str]) -> None:
        spelled = {token for source in sources for token in CONTROL.findall(source)}
        self._spelled = {*spelled, *_UNSPELLED, "<s>", "</s>", "<unk>"}
        self.tokenizer = cache(self._load)
        self.codec = cache(lambda name: Codec(self.tokenizer(name)))
        self.control = cache(self._control)

    def _load(self, name: str) -> Tokenizer:
        return substitute(self._spelled) if name == SUBSTITUTE else vocabulary(name)

    def _control(self, name: str) -> frozenset[str]:
        """Spellings of its added tokens."""
        return frozenset(token.content for token in self.tokenizer(name).get_added_tokens_decoder().values())

    def fits(self, setting: Setting, found: Iterable[Printed]) -> bool:
        """Whether the vocabulary has every control token that the template prints."""
        if setting.vocabulary == SUBSTITUTE:
            return True
        return {token for one in found for token in CONTROL.findall(one.whole)} <= self.control(setting.vocabulary)

    def stops(self, setting: Setting, found: Sequence[Printed]) -> list[str]:
        """The known family's stop tokens that the vocabulary has, else what the template prints behind a reply."""
        known = self.control(setting.vocabulary)
        if setting.known is not None:
            return [token for token in setting.known.tokens if token in known]
        printed = {stop for one in found for stop in printed_stops(one, known)}
        return sorted(printed | {setting.special["eos_token"]})
