"""One template with one tokenizer, loaded as `serve` would, and what its self-test found. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from adapters.models.selection import ParserChoice
from sidecar.check_template.subjects import Subject
from sidecar.check_template.thinking import Earlier, earlier_reasoning
from sidecar.tito import probes
from sidecar.tito.delta import Conversation
from sidecar.tito.errors import TemplateError, TitoError
from sidecar.tito.model import AUTO, Model, ModelText, build_model
from sidecar.tito.selftest import EventResult, Outcome


@dataclass(frozen=True, slots=True)
class Finding:
    """What is known of a template that could be loaded.

    `closers`: the id that closes a reply (None: nothing that is printed does) -> the events that follow it.
    `prompt_opens_reasoning`: the generation prompt ends inside a reasoning block."""

    model: Model
    closers: dict[int | None, list[str]]
    earlier_reasoning: Earlier
    prompt_opens_reasoning: bool

    @property
    def results(self) -> tuple[EventResult, ...]:
        """What was found for each event."""
        return self.model.verdict.results


@dataclass(frozen=True, slots=True)
class TemplateReport:
    """The verdict on one subject, and why it is not `exact`. `finding` is None if the template cannot be loaded."""

    subject: Subject
    verdict: Literal["exact", "stateful", "refused"]
    reason: str | None
    finding: Finding | None


def examine(
    subject: Subject,
    text: ModelText,
    *,
    family_name: str = "auto",
    parsers: ParserChoice = AUTO,
    protect_content: bool = True,
) -> TemplateReport:
    """Load the template and test it. The settings are those of `build_model`."""
    try:
        model = build_model(
            text,
            family_name=family_name,
            parsers=parsers,
            protect_content=protect_content,
            allow_unstable=True,
        )
    except (TemplateError, ValueError) as error:
        return TemplateReport(subject, "refused", str(error), None)
    finding = Finding(
        model,
        _closers(model.verdict.results),
        earlier_reasoning(model.builder.template, tools=model.verdict.tools),
        _prompt_opens_reasoning(model),
    )
    match model.verdict.outcome:
        case "exact":
            return TemplateReport(subject, "exact", None, finding)
        case "stateful":
            return TemplateReport(subject, "stateful", _first(model, "stateful"), finding)
        case _:
            return TemplateReport(subject, "refused", _first(model, "refused"), finding)


def _first(model: Model, outcome: Outcome) -> str:
    """The first event that made the verdict what it is; any, if the template takes none of them."""
    results = model.verdict.results
    result = next((result for result in results if result.outcome == outcome), results[0])
    return f"{result.event.name}: {result.reason}"


def _closers(results: tuple[EventResult, ...]) -> dict[int | None, list[str]]:
    closers: dict[int | None, list[str]] = {}
    for result in results:
        if result.delta is not None:
            closers.setdefault(result.delta.close_id, []).append(result.event.name)
    return closers


def _prompt_opens_reasoning(model: Model) -> bool:
    for opening in probes.OPENINGS:
        try:
            return model.reasoning_open(model.builder.full(opening, Conversation(None, {}, probes.CLOCK)).tail)
        except TitoError:
            continue
    return False
