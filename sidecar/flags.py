"""Command-line flags from the fields of `Settings`, so that each setting is declared once."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic.fields import FieldInfo

from sidecar.config import Settings
from sidecar.setting_values import duration_as_text, duration_in_seconds, duration_or_off

_REPEATABLE = {"intercept", "volatile_pattern"}


def with_settings_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Decorator: `command(flags, config)` becomes a typer command with one flag per setting and `--config`.

    `flags` holds only what was given on the command line. Environment and file are read by `load_settings`."""

    def run(**values: Any) -> None:
        config = values.pop("config")
        command({name: _plain(value) for name, value in values.items() if value not in (None, [])}, config)

    parameters = [_parameter(name, field) for name, field in Settings.model_fields.items()]
    option = typer.Option("--config", help="YAML file with any of these settings")
    parameters.append(
        inspect.Parameter(
            "config", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[Path | None, option]
        )
    )
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    return run


def _plain(value: Any) -> Any:
    return "\n".join(value) if isinstance(value, list) else value


def _parameter(name: str, field: FieldInfo) -> inspect.Parameter:
    flag = f"--{name.replace('_', '-')}"
    kind: Any = str | None
    names = [flag]
    if field.annotation is bool:
        kind, names = bool | None, [f"{flag}/--no-{name.replace('_', '-')}"]
    elif name in _REPEATABLE:
        kind = list[str] | None
    option = typer.Option(*names, help=_help(field), show_default=False, metavar=_metavar(field))
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option])


def _help(field: FieldInfo) -> str:
    default = field.default
    if isinstance(default, list):
        default = ",".join(default)
    if _is_duration(field):
        default = duration_as_text(field.default)
    shown = (
        default not in (None, "", {}, False)
        and not field.default_factory
        and "PydanticUndefined" not in repr(default)
    )
    return f"{field.description} [{default}]" if shown else str(field.description)


def _metavar(field: FieldInfo) -> str | None:
    choices = [
        repr(value).strip("'")
        for value in getattr(field.annotation, "__args__", ())
        if isinstance(value, str | int)
    ]
    if choices:
        return "|".join(choices)
    if _is_duration(field):
        return "TIME"
    if "int" in str(field.annotation):
        return "N"
    return "SECONDS" if field.annotation is float else "TEXT"


def _is_duration(field: FieldInfo) -> bool:
    parsers = [getattr(one, "func", None) for one in field.metadata]
    return duration_in_seconds in parsers or duration_or_off in parsers
