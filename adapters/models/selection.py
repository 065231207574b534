"""Which formats a model's replies are read by: what the operator says, else the engine, else the template. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from adapters.models.engine_parser import EngineParser
from adapters.models.families.plain import GENERIC
from adapters.models.family import ModelFamily
from adapters.models.formats import REASONING_FORMATS, TOOL_FORMATS
from adapters.models.formats.base import ReasoningFormat, ToolFormat
from adapters.models.formats.gpt_oss import GPT_OSS
from adapters.models.formats.reasoning import GPT_OSS_ANALYSIS, reasoning_of
from adapters.models.parsers import ReplyFormats

ENGINE = "engine"
"""The setting that leaves a part of the replies to the engine's own parser."""
TOOL_CALL_PARSERS = ("auto", "none", ENGINE, *sorted(TOOL_FORMATS))
REASONING_PARSERS = ("auto", "none", ENGINE, *sorted(REASONING_FORMATS))


@dataclass(frozen=True, slots=True)
class ParserChoice:
    """`tool_calls` and `reasoning` are settings, `reported_...` what the engine says it would use itself."""

    tool_calls: str = "auto"
    reasoning: str = "auto"
    reported_tool_calls: str | None = None
    reported_reasoning: str | None = None

    def without_engine(self) -> ParserChoice:
        """The same where there is no engine to ask: what it would read stays as the model wrote it."""
        return replace(
            self,
            tool_calls="none" if self.tool_calls == ENGINE else self.tool_calls,
            reasoning="none" if self.reasoning == ENGINE else self.reasoning,
        )


def check_choice(tool_calls: str, reasoning: str) -> None:
    """Raises `ValueError` if the engine would have to be asked twice in a step."""
    if tool_calls == reasoning == ENGINE:
        raise ValueError(
            "--tool-call-parser and --reasoning-parser cannot both be 'engine': a step asks the engine once at "
            "most; set --reasoning-parser to auto, none or a name"
        )


def choose_formats(family: ModelFamily, chat_template: str, choice: ParserChoice) -> ReplyFormats:
    """The formats in force. Raises `ValueError` that names the setting, its value and what is known."""
    warnings: list[str] = []
    engine = _engine_parser(choice, warnings)
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
    formats = ReplyFormats(tools, reasoning, tuple(warnings), engine)
    names = formats.calls_name, formats.reasoning_name
    if (tools is GPT_OSS or reasoning is GPT_OSS_ANALYSIS) and not {*names} <= {None, GPT_OSS.name}:
        raise ValueError(
            f"--tool-call-parser comes to {names[0]!r} and --reasoning-parser to {names[1]!r}; "
            "gpt-oss goes with gpt-oss or none, set both"
        )
    if tools is None and family is GENERIC and choice.tool_calls == "auto":
        warnings.append(
            "the chat template belongs to no known model family: tool calls stay in the content; "
            f"name their format with --tool-call-parser ({', '.join(TOOL_CALL_PARSERS)})"
        )
    return replace(formats, warnings=tuple(warnings))


def _engine_parser(choice: ParserChoice, warnings: list[str]) -> EngineParser | None:
    """The parser of the engine that a setting asks for, under the name that the engine reports."""
    check_choice(choice.tool_calls, choice.reasoning)
    if choice.tool_calls == ENGINE:
        return _reported("--tool-call-parser", choice.reported_tool_calls, TOOL_FORMATS, warnings)
    if choice.reasoning == ENGINE:
        return _reported("--reasoning-parser", choice.reported_reasoning, REASONING_FORMATS, warnings)
    return None


def _reported(
    flag: str,
    reported: object,
    known: Mapping[str, ToolFormat] | Mapping[str, ReasoningFormat],
    warnings: list[str],
) -> EngineParser:
    if not isinstance(reported, str) or not reported.strip():
        raise ValueError(
            f"{flag} is 'engine', but the engine names no parser of its own ({reported!r} in /model_info): "
            f"start SGLang with {flag} NAME, or set {flag} to auto, none or a name here"
        )
    if reported in known:
        warnings.append(
            f"{flag} is engine, whose parser {reported!r} is known here too: with auto no reply would need a "
            "call of the engine"
        )
    return EngineParser("calls" if flag == "--tool-call-parser" else "reasoning", reported)


def _choose[Format: (ToolFormat, ReasoningFormat)](
    flag: str,
    setting: str,
    reported: str | None,
    known: Mapping[str, Format],
    of_template: Format | None,
    warnings: list[str],
) -> Format | None:
    if setting in ("none", ENGINE):
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
