"""`tito-sidecar sessions ...`: looks at stored sessions, beside a running sidecar or without one, and ends them.

Settings are those of `serve`: flags win over `TITO_*` variables, those over `--config`.
"""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console

from sidecar.config import SettingsError
from sidecar.session_tools.options import (
    Config,
    ControlUrl,
    Json,
    SessionId,
    SessionIds,
    StateDir,
    Store,
    control_client,
    settings_of,
    store_url,
)
from sidecar.setting_values import duration_in_seconds

sessions = typer.Typer(
    help="Look at stored sessions, beside a running sidecar or without one, and end them.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@sessions.command()
def ls(
    state: Annotated[
        str | None,
        typer.Option(
            help="only these: open, finalized, discarded, expired", show_default=False, metavar="STATE,..."
        ),
    ] = None,
    unread: Annotated[bool, typer.Option("--unread", help="only finalized ones that nobody has drained")] = False,
    instance_id: Annotated[str | None, typer.Option(help="only of this instance", show_default=False)] = None,
    run_id: Annotated[str | None, typer.Option(help="only of this run", show_default=False)] = None,
    limit: Annotated[int, typer.Option(min=1, help="at most so many", metavar="N")] = 100,
    store: Store = None,
    state_dir: StateDir = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """List sessions, newest first. --json prints an object per line."""
    from sidecar.session_tools.listing import STATES, find_sessions, print_sessions, summary_json
    from sidecar.store.listing import SessionFilter

    states = tuple(one.strip() for one in state.split(",")) if state else ()
    for one in states:
        if one not in STATES:
            raise SettingsError(f"--state is {one!r}; choose from {', '.join(STATES)}")
    chosen = SessionFilter(states, instance_id=instance_id, run_id=run_id, unread=unread)
    settings = settings_of(config, store=store, state_dir=state_dir)
    found, total = asyncio.run(find_sessions(store_url(settings), chosen, limit))
    if as_json:
        for summary in found:
            typer.echo(orjson.dumps(summary_json(summary)))
    else:
        print_sessions(Console(highlight=False), found, total, time.time())


@sessions.command()
def show(
    session_id: SessionId,
    store: Store = None,
    state_dir: StateDir = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Show a session with its steps and segments."""
    from sidecar.session_tools.showing import print_session, session_json
    from sidecar.session_tools.stored import read_session

    settings = settings_of(config, store=store, state_dir=state_dir)
    shown = session_json(asyncio.run(read_session(store_url(settings), session_id)))
    if as_json:
        _print_json(shown)
    else:
        print_session(Console(highlight=False), shown, time.time())


@sessions.command()
def drift(
    session_id: SessionId,
    tokenizer: Annotated[
        str | None, typer.Option(help="path or hub id (default: what each step recorded)", show_default=False)
    ] = None,
    store: Store = None,
    state_dir: StateDir = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """What decoding a session's replies and encoding them again would have changed."""
    from sidecar.session_tools import drift as report
    from sidecar.session_tools.drift_view import print_drift
    from sidecar.session_tools.stored import read_session
    from sidecar.session_tools.tokenizers import Tokenizers

    settings = settings_of(config, tokenizer=tokenizer, store=store, state_dir=state_dir)
    stored = asyncio.run(read_session(store_url(settings), session_id))
    found = report.session_drift(stored, Tokenizers(settings.tokenizer).of)
    if as_json:
        _print_json(report.as_json(found))
    else:
        print_drift(Console(highlight=False), found)


@sessions.command()
def finalize(
    session_id: SessionId,
    reward: Annotated[float | None, typer.Option(help="terminal reward", show_default=False)] = None,
    label: Annotated[str | None, typer.Option(help="recorded with its segments", show_default=False)] = None,
    instance_id: Annotated[str | None, typer.Option(help="its instance", show_default=False)] = None,
    anchor_step_id: Annotated[
        str | None, typer.Option(help="the step whose segment carries the reward", show_default=False)
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(min=0, help="seconds for calls in flight [60]", show_default=False)
    ] = None,
    control_url: ControlUrl = None,
    state_dir: StateDir = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Close a session for training, in the running sidecar."""
    with control_client(settings_of(config, state_dir=state_dir), control_url) as control:
        reply: Any = control.finalize_session(
            session_id,
            reward=reward,
            label=label,
            instance_id=instance_id,
            anchor_step_id=anchor_step_id,
            timeout_seconds=timeout,
        )
    if as_json:
        _print_json(reply)
        return
    typer.echo(f"{session_id}: finalized; {reply['num_segments']} segments of {reply['num_steps']} steps")
    if reply["aborted_step_ids"]:
        typer.echo(f"{len(reply['aborted_step_ids'])} of its steps were aborted and do not train")


@sessions.command()
def discard(
    session_ids: SessionIds,
    control_url: ControlUrl = None,
    state_dir: StateDir = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Abort sessions and forget their steps, in the running sidecar."""
    with control_client(settings_of(config, state_dir=state_dir), control_url) as control:
        for session_id in session_ids:
            reply: Any = control.discard_session(session_id)
            if as_json:
                typer.echo(orjson.dumps({"session_id": session_id, **reply}))
            elif reply["session_removed"]:
                typer.echo(f"{session_id}: discarded")
            else:
                typer.echo(f"{session_id}: there was nothing to discard")


@sessions.command()
def rm(
    session_ids: SessionIds,
    unread: Annotated[
        bool, typer.Option("--unread", help="also if it is finalized and nobody has read it")
    ] = False,
    store: Store = None,
    state_dir: StateDir = None,
    config: Config = None,
) -> None:
    """Remove sessions from the store that no running sidecar has open."""
    from sidecar.session_tools.removal import remove_sessions

    settings = settings_of(config, store=store, state_dir=state_dir)
    asyncio.run(remove_sessions(store_url(settings), session_ids, unread_too=unread, say=typer.echo))


@sessions.command("wait-drained")
def wait_drained(
    timeout: Annotated[str, typer.Option(help="give up after this long", metavar="TIME")] = "10m",
    interval: Annotated[str, typer.Option(help="between two looks", metavar="TIME")] = "1s",
    ignore_open: Annotated[
        bool, typer.Option("--ignore-open", help="do not wait for sessions that nobody finalizes")
    ] = False,
    control_url: ControlUrl = None,
    store: Store = None,
    state_dir: StateDir = None,
    config: Config = None,
) -> None:
    """Wait until every trajectory has been read and no call is in flight.

    Exit code 0: so it is. 1: it took longer than --timeout."""
    from sidecar.session_tools import draining

    times = {"timeout": _seconds("--timeout", timeout), "interval": _seconds("--interval", interval)}
    settings = settings_of(config, store=store, state_dir=state_dir)
    with control_client(settings, control_url) as control:

        def calls() -> int:
            return control.trajectory_stats()["under_way"]

        drained = asyncio.run(
            draining.wait_drained(
                store_url(settings),
                calls,
                **times,
                ignore_open=ignore_open,
                say=lambda text: typer.echo(text, err=True),
            )
        )
    if not drained:
        typer.echo(f"tito-sidecar: not drained within {timeout}", err=True)
        raise typer.Exit(1)


def _seconds(flag: str, text: str) -> float:
    try:
        seconds: float = duration_in_seconds(text)
    except ValueError as error:
        raise SettingsError(f"{flag} is {text!r}: {error}") from None
    return seconds


def _print_json(value: Any) -> None:
    typer.echo(orjson.dumps(value, option=orjson.OPT_INDENT_2))
