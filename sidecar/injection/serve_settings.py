"""Further settings of `tito-sidecar serve` that a pod or the webhook's own settings may give, and their variables.

They are checked as `serve` would check them: a pod that is admitted with a wrong one would only fail later, in a
crash loop. Pure.
"""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from sidecar.config import Settings

FIXED = {
    "engine_url": "tito.dev/engine-url",
    "session_id": "tito.dev/session-id",
    "intercept": "tito.dev/mode",
    "store": "key store-url of the Secret, or tito.dev/ephemeral-store",
    "engine_api_key": "key engine-api-key of the Secret",
    "engine_admin_key": "key engine-admin-key of the Secret",
    "control_token": "key control-token of the Secret",
    "session_secret": "key session-secret of the Secret",
    "listen": None,
    "control_listen": None,
    "health_listen": None,
    "state_dir": None,
    "data_auth": None,
    "ca_dir": None,
    "ca_bundle": None,
}
"""Settings that injection decides, and what to use instead; None: nothing."""


class _Alone(Settings):
    """`Settings` from what is given and nothing else: this process's own `TITO_*` are not the sidecar's."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)


def check_serve_settings(given: Any) -> dict[str, Any]:
    """The settings themselves. Raises `ValueError` that names the setting, its value and the remedy."""
    if not isinstance(given, dict):
        raise ValueError('write an object of settings of serve: {"context_window": 32768}')
    for name in given:
        if name in FIXED:
            instead = FIXED[name]
            remedy = f"use {instead}" if instead else "leave it out"
            raise ValueError(f"{name} is set by the injection; {remedy}")
    texts: dict[str, Any] = {name: settings_text(value) for name, value in given.items()}
    try:
        _Alone(**texts)
    except ValidationError as error:
        detail = error.errors()[0]
        if detail["type"] == "extra_forbidden":
            raise ValueError(f"{detail['loc'][0]} is no setting of tito-sidecar serve") from None
        reason = str(detail["msg"]).removeprefix("Value error, ")
        where = f"{detail['loc'][0]} is {detail['input']!r}: " if detail["loc"] else ""
        raise ValueError(f"{where}{reason}") from None
    return dict(given)


def settings_env(settings: dict[str, Any]) -> list[dict[str, str]]:
    """Settings as environment variables of a container, by name."""
    return [plain_env(f"TITO_{name.upper()}", settings_text(settings[name])) for name in sorted(settings)]


def plain_env(name: str, value: str) -> dict[str, str]:
    """A variable of a container with just this value: Kubernetes reads `$(NAME)` in it, and `$$` as one `$`."""
    return {"name": name, "value": value.replace("$", "$$")}


def settings_text(value: Any) -> str:
    """A value as flags and the environment have it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "\n".join(str(part) for part in value)
    if isinstance(value, dict):
        return ",".join(f"{name}={part}" for name, part in value.items())
    return str(value)
