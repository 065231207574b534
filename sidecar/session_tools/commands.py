"""`tito-sidecar sessions ...`: looks at stored sessions, beside a running sidecar or without one.

Settings are those of `serve`: flags win over `TITO_*` variables, those over `--config`.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import orjson
import typer
from rich.console import Console

from sidecar.config import load_settings

sessions = typer.Typer(
    help="Look at stored sessions; the sidecar may be running.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@sessions.callback()
def _sessions() -> None:
    """Keeps `drift` a command of its own as long as there is no other."""


@sessions.command()
def drift(
    session_id: Annotated[str, typer.Argument(help="the session's id", metavar="ID")],
    tokenizer: Annotated[
        str | None, typer.Option(help="path or hub id (default: what each step recorded)", show_default=False)
    ] = None,
    store: Annotated[
        str | None, typer.Option(help="sqlite:///PATH (default: <state-dir>/tito.db)", show_default=False)
    ] = None,
    state_dir: Annotated[
        Path | None, typer.Option(help="the sidecar's --state-dir, for the default store", show_default=False)
    ] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file with any of serve's settings")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object, with every stretch")] = False,
) -> None:
    """What decoding a session's replies and encoding them again would have changed."""
    from sidecar.session_tools import drift as report
    from sidecar.session_tools.drift_view import print_drift
    from sidecar.session_tools.stored import read_session
    from sidecar.session_tools.tokenizers import Tokenizers

    given = {"tokenizer": tokenizer, "store": store, "state_dir": state_dir}
    settings = load_settings({name: value for name, value in given.items() if value is not None}, config)
    assert settings.store is not None
    stored = asyncio.run(read_session(settings.store, session_id))
    found = report.session_drift(stored, Tokenizers(settings.tokenizer).of)
    if as_json:
        typer.echo(orjson.dumps(report.as_json(found), option=orjson.OPT_INDENT_2))
    else:
        print_drift(Console(highlight=False), found)
