"""Every template against the oracle: one row each, worked out in parallel processes.

Tool-capable is a template that prints a call's arguments and the text of its result, in some form of the messages
that an OpenAI client could send.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from adapters.models.marks import Marks
from adapters.models.parsers import Parsers
from adapters.models.registry import find_family
from adapters.models.selection import choose_formats
from sidecar.tito.chat_template import ChatTemplate
from sidecar.tito.delta import PromptBuilder
from sidecar.tito.errors import TemplateError
from sidecar.tito.messages import normalise
from sidecar.tito.model import AUTO, Model
from sidecar.tito.selftest import check_template
from tests.conformance.conversations import Case, cases
from tests.conformance.corpus import Sample
from tests.conformance.oracle import Printed, is_closed, judge, printed
from tests.conformance.product import Sent, sent
from tests.conformance.renderer import Renderer
from tests.conformance.settings import Setting, Vocabularies, settings_of
from tests.conformance.stop_tokens import known_stops
from tests.conformance.traits import Traits, traits_of
from tests.tito.builders import CLOCK

_TASK = 40
"""Templates per task of a process."""


@dataclass(frozen=True, slots=True)
class Row:
    """What was found for one template. `cases` maps a case to "" where the product is right, to "-" and the reason
    where the template itself refuses it, and to what is wrong otherwise."""

    sample: Sample
    family: str
    vocabulary: str
    stops: tuple[str, ...]
    tools: bool
    says_tools: bool
    """The self-test's opinion on `tools`."""
    outcome: str
    reasons: dict[str, str]
    """Event of the self-test -> why it is not exact."""
    unsupported: dict[str, str]
    """Event -> what the template said when it refused."""
    cases: dict[str, str]
    roots: bool
    """A whole conversation is rendered as transformers renders it, in the first form that the template takes."""
    traits: Traits


def rows(samples: Sequence[Sample], processes: int = 2) -> list[Row]:
    """All rows in the order of `samples`. A family's templates go together: its vocabulary is loaded once."""
    by_family: dict[str, list[Sample]] = {}
    for sample in samples:
        known = known_stops(sample.source)
        by_family.setdefault(known.family if known else "other", []).append(sample)
    tasks = [group[start : start + _TASK] for group in by_family.values() for start in range(0, len(group), _TASK)]
    tasks.sort(key=len, reverse=True)
    # a thread of tokenizers or of pytest must not be forked in the middle of its work
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes, _start, ([sample.source for sample in samples],)) as pool:
        found = {row.sample.name: row for group in pool.imap_unordered(_rows_of, tasks) for row in group}
    return [found[sample.name] for sample in samples]


_WORKER: list[Vocabularies] = []
"""The process's own, set by `_start`."""


def _start(sources: Iterable[str]) -> None:
    _WORKER[:] = [Vocabularies(sources)]


def _rows_of(task: Sequence[Sample]) -> list[Row]:
    return [row_of(sample, _WORKER[0]) for sample in task]


def row_of(sample: Sample, vocabularies: Vocabularies) -> Row:
    """The verdict of the start-up self-test, and each case by the oracle."""
    setting, expected = next(
        (setting, found)
        for setting in settings_of(sample)
        if vocabularies.fits(setting, _printed(found := _expected(setting)))
    )
    stops = vocabularies.stops(setting, _printed(expected))
    model = model_of(setting, stops, vocabularies)
    verdict, trial = model.verdict, Trial(model, stops)
    return Row(
        sample=sample,
        family=setting.family,
        vocabulary=setting.vocabulary,
        stops=tuple(stops),
        tools=isinstance(expected["tool"], Printed) or isinstance(expected["parallel"], Printed),
        says_tools=verdict.tools,
        outcome=verdict.outcome,
        reasons={r.event.name: r.reason for r in verdict.results if r.outcome in ("stateful", "refused")},
        unsupported={r.event.name: r.reason for r in verdict.results if r.outcome == "unsupported"},
        cases={case.name: trial.judged(case, expected[case.name]) for case in cases()},
        roots=all(
            trial.renders(case, found) for case in cases() if isinstance(found := expected[case.name], Printed)
        ),
        traits=traits_of(Renderer(sample.source, setting.special), model, expected),
    )


def _expected(setting: Setting) -> dict[str, Printed | Exception]:
    renderer = Renderer(setting.sample.source, setting.special)
    found: dict[str, Printed | Exception] = {}
    refusal: Exception | None = None
    for case in cases():  # begins with a tool's result and with two
        if refusal is not None and case.reply.get("tool_calls"):
            found[case.name] = refusal
            continue
        found[case.name] = printed(renderer, case)
        if case.name == "parallel":
            refused = [one for one in found.values() if isinstance(one, Exception)]
            refusal = refused[0] if len(refused) == len(found) else None
    return found


def _printed(expected: dict[str, Printed | Exception]) -> list[Printed]:
    return [found for found in expected.values() if isinstance(found, Printed)]


def model_of(setting: Setting, stops: Sequence[str], vocabularies: Vocabularies) -> Model:
    """What `build_model` makes; the codec is shared, and the stop tokens are those given and no others."""
    source, codec = setting.sample.source, vocabularies.codec(setting.vocabulary)
    family = find_family("auto", source)
    marks = Marks(codec.control, codec.special)
    stop_ids = frozenset(index for index in map(codec.token_id, stops) if index is not None)
    closers = frozenset(family.closers)
    builder = PromptBuilder(ChatTemplate(source, setting.special), codec, stop_ids, closers=closers)
    parsers = Parsers(marks, choose_formats(family, source, AUTO))
    verdict = check_template(builder)
    return Model(setting.sample.name, family, codec, marks, builder, stop_ids, verdict, parsers, codec.vocab_size)


@dataclass(frozen=True, slots=True)
class Trial:
    """The product with one template. `stops` are the tokens at which its engine stops."""

    model: Model
    stops: Sequence[str]

    def judged(self, case: Case, found: Printed | Exception) -> str:
        """Nothing if the product is right whichever stop token the reply ended in, else what is wrong."""
        if isinstance(found, Exception):
            return f"-{found}"
        if self.model.verdict.outcome == "refused":
            return "refused"
        endings: list[str | None] = [None] if case.cut else [*self.stops]
        return next(filter(None, (self._judged_after(case, found, stop) for stop in endings)), "")

    def renders(self, case: Case, found: Printed) -> bool:
        """Whether the product prints the whole conversation so. A clock has another time on each side."""
        template = self.model.builder.template
        if "strftime_now" in template.source:
            return True
        messages = normalise([*found.messages, *case.appended])
        return template.render(messages, case.tools, {}, CLOCK) == found.whole

    def _judged_after(self, case: Case, found: Printed, stop: str | None) -> str:
        stop_id = None if stop is None else self.model.codec.token_id(stop)
        result = sent(self.model, found.messages, case, stop_id)
        if isinstance(result, TemplateError):
            return f"the product refuses what the template takes: {result}"
        if result.boundary not in (None, "stop_trimmed"):
            return f"a new segment: {result.boundary}"
        wrong = judge(found, result.text, with_calls=bool(case.reply.get("tool_calls")), stops=self.stops)
        if wrong is not None:
            return wrong
        went_on = stop is None or result.text.startswith(stop)
        if went_on != (result.boundary is None):
            return f"stopped with {stop!r}, and the segment's boundary is {result.boundary}"
        return self._judged_ids(found, result) if is_closed(found, result.text, self.stops) else ""

    def _judged_ids(self, found: Printed, result: Sent) -> str:
        """Against the tokenizer of the plain library."""
        words = self.model.codec._tokenizer
        whole = words.encode(found.whole, add_special_tokens=False).ids
        before = found.whole[: len(found.whole) - len(result.text)]
        if whole == words.encode(before, add_special_tokens=False).ids + result.ids:
            return ""
        return f"other ids than the tokenizer's: {result.ids}"
