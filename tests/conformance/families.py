"""`docs/families.md`: the matrix as a document. Rows in, Markdown out; its head is `families_head.md`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path

from tests.conformance.conversations import cases as all_cases
from tests.conformance.matrix import Row

_COLUMNS = (
    *("verdict", "closes a reply", "closes one with calls", "reasoning", "prompt", "parsers", "template refuses"),
    "templates",
)
_HEAD = Path(__file__).with_name("families_head.md")


def document(rows: Sequence[Row]) -> str:
    """The whole text."""
    parts = [
        _HEAD.read_text(encoding="utf-8").format(count=len(rows)),
        "## In numbers\n\n" + _numbers(rows),
        "## Templates\n\n" + _templates(rows),
        "## Stateful, and by what\n\n" + _reasons(row for row in rows if row.outcome == "stateful"),
        "## Refused, and why\n\n" + _reasons(row for row in rows if row.outcome == "refused"),
    ]
    return "\n".join(parts)


def _numbers(rows: Sequence[Row]) -> str:
    table = ["| templates | exact | stateful | refused | all |", "|---|---|---|---|---|"]
    for label, tools in (("that print calls and their results", True), ("others", False)):
        counts = Counter(row.outcome for row in rows if row.tools is tools)
        cells = [str(counts[outcome]) for outcome in ("exact", "stateful", "refused")]
        table.append(f"| {label} | {' | '.join(cells)} | {counts.total()} |")
    head = "| case | templates | right | the template refuses it | the self-test refuses the template | wrong |"
    cases = [head, "|---|---|---|---|---|---|"]
    for case in all_cases():
        able = [row for row in rows if row.tools or not case.reply.get("tool_calls")]
        found = Counter(_kind(row.cases[case.name]) for row in able)
        cells = [str(found[kind]) for kind in ("right", "template", "refused", "wrong")]
        cases.append(f"| {case.name.replace('_', ' ')} | {len(able)} | {' | '.join(cells)} |")
    tokenizers = Counter(row.vocabulary for row in rows)
    used = ", ".join(f"{name} {count}" for name, count in sorted(tokenizers.items(), key=lambda one: -one[1]))
    return "\n".join([*table, "", *cases, "", f"Tokenizers: {used}.", ""])


def _kind(case: str) -> str:
    if not case:
        return "right"
    if case.startswith("-"):
        return "template"
    return "refused" if case == "refused" else "wrong"


def _templates(rows: Sequence[Row]) -> str:
    """One table per family; templates that agree in everything share a line."""
    sections = []
    ordered = sorted(rows, key=lambda row: (row.family == "other", row.family.lower()))
    for family, members in groupby(ordered, key=lambda row: row.family):
        lines: dict[tuple[str, ...], list[str]] = {}
        group = list(members)
        for row in group:
            lines.setdefault(_cells(row), []).append(_name(row))
        table = [f"| {' | '.join(_COLUMNS)} |", "|---" * len(_COLUMNS) + "|"]
        for cells, names in sorted(lines.items(), key=lambda line: (-len(line[1]), line[0])):
            listed = ", ".join(sorted(names, key=str.lower))
            table.append(f"| {' | '.join(cells)} | {listed} |")
        title = "Others" if family == "other" else family
        sections.append(f"### {title} ({len(group)})\n\n" + "\n".join(table) + "\n")
    return "\n".join(sections)


def _cells(row: Row) -> tuple[str, ...]:
    traits = row.traits
    return (
        row.outcome,
        _end(row, "text"),
        _end(row, "calls") if row.tools else "no calls",
        traits.thinking + ("; text of a call turn repeated" if traits.repeats_text else ""),
        traits.prompt,
        " + ".join(filter(None, traits.parsers)) or "none",
        ", ".join(_refusals(row)),
    )


def _end(row: Row, kind: str) -> str:
    close = row.traits.ends.get(kind)
    if close is None:
        return ""
    if not close:
        return "nothing"
    note = ""
    if close not in row.stops:
        note = f" for {_code(row.stops[0])}"
    elif row.traits.openers.get(kind):
        note = " (next opener)"
    return _code(close) + note


def _refusals(row: Row) -> list[str]:
    """What of the cases the template itself takes no conversation for."""
    refused = {name for name, found in row.cases.items() if found.startswith("-")}
    wanted = {"user": "another user message"}
    if row.tools:
        wanted |= {"parallel": "parallel calls", "mixed": "a user message behind a result"}
    return [words for name, words in wanted.items() if name in refused]


def _reasons(rows: Iterable[Row]) -> str:
    """Templates by the first reason that the self-test gave."""
    grouped: dict[str, list[str]] = {}
    for row in rows:
        event, reason = next(iter((row.reasons or row.unsupported).items()))
        grouped.setdefault(f"`{event}`: {_shortened(reason)}", []).append(_name(row))
    lines = [f"- {reason}\n  ({', '.join(names)})" for reason, names in sorted(grouped.items())]
    return "\n".join(lines) + "\n"


def _shortened(reason: str, limit: int = 300) -> str:
    flat = " ".join(reason.replace("|", "\\|").split())
    return flat if len(flat) <= limit else flat[:limit] + " …"


def _name(row: Row) -> str:
    """Repository, the template's name where that tells more, and how many other repositories have the very same."""
    sample = row.sample
    spelled = sample.repository.replace("/", "-")
    name = sample.repository
    if sample.name != spelled:
        name += sample.name.removeprefix(spelled) if sample.name.startswith(spelled) else f": {sample.name}"
    return name + (f" (+{sample.aliases})" if sample.aliases else "")


def _code(token: str) -> str:
    return f"`{token}`".replace("|", "\\|")
