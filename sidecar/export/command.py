"""`tito-sidecar export`: flags to an export, and its outcome to words and an exit code.

Settings are those of `serve`: flags win over `TITO_*` variables, those over `--config`.
"""

from __future__ import annotations

import asyncio
import time
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from sidecar.config import SettingsError, load_settings
from sidecar.setting_values import duration_in_seconds, size_in_bytes

_LEAST_PART = 4096


def export(
    to: Annotated[str, typer.Option(help="a folder: a path, or a URL such as s3://BUCKET/FOLDER", metavar="URL")],
    form: Annotated[str, typer.Option("--format", help="parquet or jsonl", metavar="NAME")] = "parquet",
    store: Annotated[
        str | None, typer.Option(help="as for serve (default: <state-dir>/tito.db)", show_default=False)
    ] = None,
    state_dir: Annotated[
        Path | None, typer.Option(help="the sidecar's --state-dir, for the default store", show_default=False)
    ] = None,
    since: Annotated[
        str | None, typer.Option(help="changed since: 24h ago, or 2026-01-31T12:00Z", show_default=False)
    ] = None,
    instance_id: Annotated[str | None, typer.Option(help="only of this instance", show_default=False)] = None,
    run_id: Annotated[str | None, typer.Option(help="only of this run", show_default=False)] = None,
    session_id: Annotated[str | None, typer.Option(help="only this session", show_default=False)] = None,
    include_unfinished: Annotated[
        bool, typer.Option("--include-unfinished", help="open sessions too, as they are now")
    ] = False,
    part_size: Annotated[str, typer.Option(help="bytes per part, before compression", metavar="SIZE")] = "128MiB",
    to_option: Annotated[
        list[str] | None,
        typer.Option(help="NAME=VALUE for the storage, such as endpoint_url=http://HOST:PORT; may be repeated"),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file with any of serve's settings")] = None,
) -> None:
    """Write stored segments as a data set; a repeat adds only what is new. The sidecar may be running.

    Exit code 0: all was written. 1: some sessions could not be read. 2: it cannot be done as asked."""
    from sidecar.export.formats import format_of
    from sidecar.export.progress import progress
    from sidecar.export.run import export as run
    from sidecar.export.target import Target
    from sidecar.store.listing import SessionFilter

    given = {"store": store, "state_dir": state_dir}
    settings = load_settings({name: value for name, value in given.items() if value is not None}, config)
    assert settings.store is not None
    chosen = SessionFilter(
        states=("finalized", "open") if include_unfinished else ("finalized",),
        session_id=session_id,
        instance_id=instance_id,
        run_id=run_id,
        since=None if since is None else _since(since, time.time()),
    )
    chosen_form = format_of(form)
    target = Target(to, chosen_form, _options(to_option or []))
    console = Console(stderr=True, highlight=False)
    totals = asyncio.run(
        run(
            settings.store,
            target,
            chosen_form,
            chosen,
            part_bytes=_part_bytes(part_size),
            show=partial(progress, console),
        )
    )
    for failure in totals.failed:
        typer.echo(f"tito-sidecar: not exported: {failure}", err=True)
    typer.echo(
        f"{totals.segments} new segments of {totals.sessions} sessions in {totals.parts} parts to {target.shown}; "
        f"{totals.unchanged} sessions had nothing new"
    )
    raise typer.Exit(1 if totals.failed else 0)


def _since(text: str, now: float) -> float:
    """Unix seconds. A time without a zone is this machine's."""
    try:
        seconds: float = duration_in_seconds(text)
        return now - seconds
    except ValueError:
        pass
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise SettingsError(f"--since is {text!r}; write 90m, 24h, 7d, or a time as 2026-01-31T12:00Z") from None


def _part_bytes(text: str) -> int:
    try:
        size: int = size_in_bytes(text)
    except ValueError as error:
        raise SettingsError(f"--part-size is {text!r}: {error}") from None
    if size < _LEAST_PART:
        raise SettingsError(f"--part-size is {text!r}; take at least {_LEAST_PART} bytes")
    return size


def _options(pairs: list[str]) -> dict[str, Any]:
    options = {}
    for number, pair in enumerate(pairs, 1):
        name, equals, value = pair.partition("=")
        if not equals or not name.isidentifier():  # the value may be a secret
            raise SettingsError(f"--to-option number {number} is no NAME=VALUE")
        options[name] = value
    return options
