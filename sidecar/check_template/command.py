"""What `tito-sidecar check-template` does: examine each path, print it, and tell the result as an exit code.

Settings are those of `serve`, so that the verdict is the one that `serve` would come to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import orjson
from rich.console import Console

from adapters.models.registry import find_family
from adapters.models.selection import ParserChoice
from sidecar.check_template.examine import TemplateReport, examine
from sidecar.check_template.output import print_report, print_summary, report_json
from sidecar.check_template.subjects import Reader, find_subject
from sidecar.config import Settings, SettingsError
from sidecar.model_files import ModelFilesError

GOOD, REFUSED, UNUSABLE = 0, 1, 2
"""Exit codes: all templates exact or stateful; at least one refused; a path that could not be examined."""


def check_paths(paths: Sequence[str], settings: Settings, *, as_json: bool, complain: Callable[[str], None]) -> int:
    """Print a report for each path, JSON as one line each; `complain` is told of paths that cannot be read.

    The exit code. Raises `SettingsError` for an unknown family."""
    if settings.model_family != "auto":
        _check_family(settings.model_family)
    console, reader = Console(highlight=False), Reader()
    reports: list[TemplateReport] = []
    for path in paths:
        try:
            subject = find_subject(path, settings.tokenizer)
            text = reader.read(subject)
        except ModelFilesError as error:
            complain(str(error))
            continue
        report = examine(
            subject,
            text,
            family_name=settings.model_family,
            parsers=ParserChoice(settings.tool_call_parser, settings.reasoning_parser).without_engine(),
            protect_content=settings.special_tokens_in_content == "text",
        )
        reports.append(report)
        if as_json:
            print(orjson.dumps(report_json(report)).decode(), flush=True)
        else:
            print_report(console, report)
    if len(paths) > 1 and not as_json:
        print_summary(console, reports)
    if len(reports) < len(paths):
        return UNUSABLE
    return REFUSED if any(report.verdict == "refused" for report in reports) else GOOD


def _check_family(name: str) -> None:
    try:
        find_family(name, "")
    except ValueError as error:
        raise SettingsError(str(error)) from None
