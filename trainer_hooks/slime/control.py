"""Clients of the control plane for the slime hooks: which sidecars, with which token.

`TITO_CONTROL_URL` (a comma list) and `TITO_CONTROL_TOKEN`, or the same keys in slime's `--custom-config-path`.
A client per use: an async one belongs to one event loop, and slime's hooks run in several. Functions without
state; safe from any thread.
"""

from __future__ import annotations

from trainer_hooks.client import AsyncControlClient, ControlClient
from trainer_hooks.slime.errors import SettingError
from trainer_hooks.slime.settings import list_setting, text_setting


def control_urls(args: object) -> list[str]:
    """The sidecars' control planes. Raises `SettingError` where none is named."""
    urls = list_setting(args, "TITO_CONTROL_URL")
    if not urls:
        raise SettingError("TITO_CONTROL_URL is not set: name the sidecars' control planes, http://host:8801,...")
    for url in urls:
        if not url.startswith(("http://", "https://")):
            raise SettingError(f"TITO_CONTROL_URL names {url!r}: it must start with http:// or https://")
    return urls


def control_token(args: object) -> str:
    """The token of the control planes. Raises `SettingError` where it is not set."""
    token = text_setting(args, "TITO_CONTROL_TOKEN")
    if token is None:
        raise SettingError(
            "TITO_CONTROL_TOKEN is not set: give the token the sidecars were started with, or the one in their "
            "state directory's control-token file"
        )
    return token


def open_control(args: object, url: str | None = None) -> ControlClient:
    """A blocking client of `url`, or of the first sidecar; close it."""
    return ControlClient(url or control_urls(args)[0], control_token(args))


def open_control_async(args: object, url: str) -> AsyncControlClient:
    """An asyncio client of `url`; close it."""
    return AsyncControlClient(url, control_token(args))
