"""Which formats a model's replies are read by: what the operator says, else the engine, else the template. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from adapters.models.families.plain import GENERIC
from adapters.models.family import ModelFamily
from adapters.models.formats import REASONING_FORMATS, TOOL_FORMATS
from adapters.models.formats.base import ReasoningFormat, ToolFormat
from adapters.models.formats.gpt_oss import GPT_OSS
from adapters.models.formats.reasoning import GPT_OSS_ANALYSIS, reasoning_of
from adapters.models.parsers import ReplyFormats

TOOL_CALL_PARSERS = ("auto", "none", *sorted(TOOL_FORMATS))
REASONING_PARSERS = ("auto", "none", *sorted(REASONING_FORMATS))


@dataclass(frozen=True, slots=True)
class ParserChoice:
    """`tool_calls` and `reasoning` are settings, `reported_...` what the engine says it would use itself."""

    tool_calls: str = "auto"
    reasoning: str = "auto"
    reported_tool_calls: str | None = None
    reported_reasoning: str | None = None


def choose_formats(family: ModelFamily, chat_template: str, choice: ParserChoice) -> ReplyFormats:
    """The formats in force. Raises `ValueError` that names the setting, its value and what is known."""
    warnings: list[str] = []
    tools = _choose(
        "--tool-call-parser", choice.tool_calls, choice.reported_tool_calls, TOOL_FORMATS, family.tools, warnings
    )
    reasoning = _choose(
        "--reasoning-parser",
        choice.reasoning,
        choice.reported_reasoning,
        REASONING_FORMATS,
        family.reasoning or reasoning_of(chat_template),
        warnings,
    )
    if (tools is GPT_OSS and reasoning not in (None, GPT_OSS_ANALYSIS)) or (
        reasoning is GPT_OSS_ANALYSIS and tools not in (None, GPT_OSS)
    ):
        raise ValueError(
            f"--tool-call-parser comes to {tools and tools.name!r} and --reasoning-parser to "
            f"{reasoning and reasoning.name!r}; gpt-oss goes with gpt-oss or none, set both"
        )
    if tools is None and family is GENERIC and choice.tool_calls == "auto":
        warnings.append(
            "the chat template belongs to no known model family: tool calls stay in the content; "
            f"name their format with --tool-call-parser ({', '.join(TOOL_CALL_PARSERS)})"
        )
    return ReplyFormats(tools, reasoning, tuple(warnings))


def _choose[Format: (ToolFormat, ReasoningFormat)](
    flag: str,
    setting: str,
    reported: str | None,
    known: Mapping[str, Format],
    of_template: Format | None,
    warnings: list[str],
) -> Format | None:
    if setting == "none":
        return None
    if setting != "auto":
        if setting not in known:
            raise ValueError(f"{flag} is {setting!r}; known are auto, none, {', '.join(sorted(known))}")
        return known[setting]
    if reported is None:
        return of_template
    found = known.get(reported)
    template_name = of_template.name if of_template is not None else "none"
    if found is None:
        warnings.append(
            f"the engine uses the parser {reported!r}, which is not known here; {flag} is {template_name} "
            "as the chat template suggests"
        )
        return of_template
    if of_template is not None and found is not of_template:
        warnings.append(
            f"the engine uses the parser {reported!r}, the chat template suggests {template_name}; "
            f"{flag} is {found.name} as in the engine"
        )
    return found
