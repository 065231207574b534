"""A template's report as JSON for machines, and as a table of 80 columns for people. Stateless."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sidecar.check_template.examine import Finding, TemplateReport
from sidecar.terminal import quoted, quoted_lines, safe, visible
from sidecar.tito.codec import Codec
from sidecar.tito.selftest import Difference, EventResult

_MEANINGS = {
    "exact": "what is appended is what the template prints",
    "stateful": "exact too, but only with the whole history rendered at every turn",
    "refused": "serve does not start with it",
}
_STYLES = {"exact": "green", "stateful": "yellow", "refused": "bold red", "unsupported": "dim"}
_AROUND = 24
"""Characters or ids shown of a difference."""


def report_json(report: TemplateReport) -> dict[str, Any]:
    """`template`, `tokenizer`, `verdict`, `reason` and `events` are there for every template, the rest if it could
    be loaded."""
    found = report.finding
    return {
        "template": report.subject.path,
        "tokenizer": report.subject.tokenizer,
        "verdict": report.verdict,
        "reason": report.reason,
        **({} if found is None else _facts(found)),
        "events": [] if found is None else [_event(result, found.model.codec) for result in found.results],
    }


def _facts(found: Finding) -> dict[str, Any]:
    model = found.model
    formats = model.parsers.formats
    return {
        "template_sha256": model.template_sha256,
        "tokenizer_sha256": model.tokenizer_sha256,
        "family": model.family.name,
        "tool_call_parser": None if formats.tools is None else formats.tools.name,
        "reasoning_parser": None if formats.reasoning is None else formats.reasoning.name,
        "warnings": list(formats.warnings),
        "prints_calls": model.verdict.tools,
        "closed_by": [{**_token(index, model.codec), "events": events} for index, events in found.closers.items()],
        "earlier_reasoning": found.earlier_reasoning,
        "prompt_opens_reasoning": found.prompt_opens_reasoning,
    }


def _token(index: int | None, codec: Codec) -> dict[str, Any]:
    return {"id": index, "text": None if index is None else codec.decode([index])}


def _event(result: EventResult, codec: Codec) -> dict[str, Any]:
    delta, difference = result.delta, result.difference
    return {
        "name": result.event.name,
        "outcome": result.outcome,
        "reason": result.reason or None,
        "closed_by": None if delta is None else _token(delta.close_id, codec),
        "delta": None if delta is None else delta.text,
        "ids": None if delta is None else delta.ids.tolist(),
        "difference": None if difference is None else _difference(difference),
    }


def _difference(difference: Difference) -> dict[str, Any]:
    position = difference.position
    return {
        "unit": difference.unit,
        "position": position,
        "expected": difference.expected[position:],
        "found": difference.found[position:],
    }


def print_report(console: Console, report: TemplateReport) -> None:
    """Print verdict, facts, and each event with its delta as text and ids."""
    subject, found = report.subject, report.finding
    console.print(Text(visible(subject.path), style="bold"))
    facts = Table(box=None, padding=(0, 2, 0, 0), show_header=False, show_edge=False)
    facts.add_column(style="dim")
    facts.add_column(overflow="fold")
    verdict = (report.verdict, _STYLES[report.verdict])
    facts.add_row("verdict", Text.assemble(verdict, f": {_MEANINGS[report.verdict]}"))
    if found is None and report.reason is not None:  # else the events say why
        facts.add_row("reason", Text(safe(report.reason)))
    if subject.file is not None:
        facts.add_row("tokenizer", Text(visible(subject.tokenizer)))
    if found is not None:
        for name, value in _fact_lines(found):
            facts.add_row(name, Text(value))
    console.print(facts)
    if found is not None:
        console.print()
        console.print(_event_table(found))
    console.print()


def _fact_lines(found: Finding) -> list[tuple[str, str]]:
    model = found.model
    formats = model.parsers.formats
    calls = "none" if formats.tools is None else formats.tools.name
    reasoning = "none" if formats.reasoning is None else formats.reasoning.name
    thinking = f"earlier reasoning is {found.earlier_reasoning}"
    if found.prompt_opens_reasoning:
        thinking += "; the prompt opens the reasoning block"
    return [
        ("template", f"sha256 {model.template_sha256[:16]}"),
        ("family", model.family.name),
        ("parsers", f"tool calls {calls}, reasoning {reasoning}"),
        ("thinking", thinking),
        ("boundary", "\n".join(_closer_lines(found))),
        *(("note", warning) for warning in formats.warnings),
    ]


def _closer_lines(found: Finding) -> list[str]:
    codec, several = found.model.codec, len(found.closers) > 1
    lines = []
    for index, events in found.closers.items():
        closer = "no token" if index is None else f"{visible(codec.decode([index]))} {index}"
        closer += " closes a reply"
        lines.append(f"{closer} before {', '.join(events)}" if several else closer)
    return lines


def _event_table(found: Finding) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False)
    table.add_column("event", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("appended behind the reply: text, ids", overflow="fold")
    rows: dict[tuple[str, str], list[EventResult]] = {}
    for result in found.results:
        rows.setdefault((result.outcome, _delta(result).plain), []).append(result)
    for (outcome, _), alike in rows.items():
        names = "\n".join(result.event.name for result in alike)
        table.add_row(names, Text(outcome, style=_STYLES[outcome]), _delta(alike[0]))
    return table


def _delta(result: EventResult) -> Text:
    shown = Text("\n").join(_delta_lines(result))
    shown.rstrip()
    return shown


def _delta_lines(result: EventResult) -> Iterator[Text]:
    if result.delta is not None:
        yield Text(quoted_lines(result.delta.text))
        yield Text(" ".join(map(str, result.delta.ids.tolist())), style="dim")
    difference = result.difference
    if difference is not None:
        what = ", with a short history" if result.outcome == "stateful" else ""
        yield Text(f"first difference{what}: {difference.unit} {difference.position}", _STYLES[result.outcome])
        yield Text(f"expected {_part(difference.expected, difference.position)}")
        yield Text(f"found    {_part(difference.found, difference.position)}")
    elif result.reason:
        yield Text(safe(result.reason), style=_STYLES[result.outcome])


def _part(whole: str | tuple[int, ...], position: int) -> str:
    if isinstance(whole, str):
        return quoted(whole[position : position + _AROUND])
    return " ".join(map(str, whole[position : position + _AROUND]))


def print_summary(console: Console, reports: Sequence[TemplateReport]) -> None:
    """One line on several templates."""
    counts = Counter[str](report.verdict for report in reports)
    parts = [f"{counts[verdict]} {verdict}" for verdict in _MEANINGS if counts[verdict]]
    console.print(f"{len(reports)} templates: {', '.join(parts)}")
