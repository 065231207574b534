"""What the commands of `tito-sidecar sessions` share: where the store is, and how a running sidecar is reached.

Settings are those of `serve`: flags win over `TITO_*` variables, those over `--config`. Only reads files.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sidecar.config import Settings, SettingsError, load_settings, split_address

if TYPE_CHECKING:
    from trainer_hooks.client import ControlClient

SessionId = Annotated[str, typer.Argument(help="the session's id", metavar="ID", show_default=False)]
SessionIds = Annotated[list[str], typer.Argument(help="ids of sessions", metavar="ID...", show_default=False)]
Store = Annotated[
    str | None, typer.Option(help="as for serve (default: <state-dir>/tito.db)", show_default=False, metavar="URL")
]
StateDir = Annotated[
    Path | None,
    typer.Option(help="the sidecar's --state-dir: default store, token", show_default=False, metavar="DIR"),
]
Config = Annotated[Path | None, typer.Option(help="YAML file with any of serve's settings", metavar="FILE")]
ControlUrl = Annotated[
    str | None,
    typer.Option(
        help="control plane, also TITO_CONTROL_URL (default: from --control-listen)",
        show_default=False,
        metavar="URL",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="print JSON")]


def settings_of(config: Path | None, **flags: Any) -> Settings:
    """The settings in force; `flags` that are None were not given. Raises `SettingsError`."""
    return load_settings({name: value for name, value in flags.items() if value is not None}, config)


def store_url(settings: Settings) -> str:
    """The URL of the sidecar's store."""
    assert settings.store is not None
    return settings.store


@contextmanager
def control_client(settings: Settings, url: str | None) -> Iterator[ControlClient]:
    """A client of the running sidecar's control plane. Raises `SettingsError` where URL or token cannot be told."""
    from trainer_hooks.client import ControlClient

    where = url or os.environ.get("TITO_CONTROL_URL") or _listened(settings.control_listen)
    try:
        client = ControlClient(where, settings.control_token or _token(settings.state_dir / "control-token"))
    except ValueError as error:
        raise SettingsError(f"--control-url is {where!r}: {error}") from None
    with client:
        yield client


def _listened(address: str) -> str:
    host, port = split_address(address)
    if host == "0.0.0.0":
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _token(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError as error:
        raise SettingsError(
            f"the control plane needs its token, and {path} cannot be read ({error.strerror}); set "
            "TITO_CONTROL_TOKEN, or name the sidecar's --state-dir"
        ) from None
