"""Settings of `tito-sidecar inject-webhook`: flags win over `TITO_*`, those over the YAML file of `--config`.

Each is checked when the process starts, so that no pod meets a bad one.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator
from pydantic_settings import SettingsConfigDict

from sidecar.config import split_address
from sidecar.injection.quantity import quantity
from sidecar.injection.serve_settings import check_serve_settings
from sidecar.layered_settings import LayeredSettings, load_layered

Mode = Literal["base_url", "transparent"]

_DEFAULT_RESOURCES = {"requests": {"cpu": "250m", "memory": "1Gi"}, "limits": {"memory": "2Gi"}}


class InjectionSettings(LayeredSettings):
    """What the webhook listens on, and what it injects unless a pod's annotations say otherwise."""

    model_config = SettingsConfigDict(env_prefix="TITO_", extra="forbid", validate_default=True)

    listen: str = Field("0.0.0.0:8443", description="HTTPS address of the webhook")
    tls_cert: Path = Field(description="certificate chain (PEM), read again when it changes")
    tls_key: Path = Field(description="its key (PEM)")
    tls_reload_seconds: float = Field(5, gt=0, description="how often both files are looked at")
    session_secret: str = Field(min_length=16, description="secret of session keys: the one the sidecars have")
    image: str = Field(min_length=1, description="image of the sidecar")
    image_pull_policy: Literal["IfNotPresent", "Always", "Never"] = Field("IfNotPresent")
    engine_url: str | None = Field(None, description="engine of pods without tito.dev/engine-url")
    mode: Mode = Field("base_url", description="mode of pods without tito.dev/mode")
    secret: str = Field("tito-sidecar", description="Secret, in the pod's namespace, with keys and store URL")
    ephemeral_store: bool = Field(False, description="store into SQLite in the pod unless the pod says otherwise")
    settings: dict[str, Any] = Field({}, description="further settings of serve, by name")
    resources: dict[str, dict[str, str]] = Field(_DEFAULT_RESOURCES, description="resources of the sidecar")

    @field_validator("listen")
    @classmethod
    def _check_address(cls, value: str) -> str:
        split_address(value)
        return value

    @field_validator("engine_url")
    @classmethod
    def _check_url(cls, value: str | None) -> str | None:
        return check_engine_url(value) if value else None

    @field_validator("secret")
    @classmethod
    def _check_name(cls, value: str) -> str:
        return check_object_name(value)

    @field_validator("settings", mode="before")
    @classmethod
    def _check_settings(cls, value: Any) -> Any:
        return check_serve_settings({} if value is None else value)

    @field_validator("resources", mode="before")
    @classmethod
    def _check_resources(cls, value: Any) -> Any:
        if not isinstance(value, dict) or not value.keys() <= {"requests", "limits"}:
            raise ValueError("write {requests: {cpu: ..., memory: ...}, limits: {...}}")
        checked = {
            kind: {name: str(amount) for name, amount in (given or {}).items()} for kind, given in value.items()
        }
        for given in checked.values():
            for amount in given.values():
                quantity(amount)
        return checked


def load_injection_settings(flags: dict[str, Any], config: Path | None = None) -> InjectionSettings:
    """Settings of the command. `flags` holds only those that were given. Raises `SettingsError`."""
    return load_layered(InjectionSettings, flags, config, _describe)


def check_engine_url(value: str) -> str:
    """Raises `ValueError` for what is no URL of a server."""
    if not re.fullmatch(r"https?://[^/\s]+\S*", value):
        raise ValueError(f"{value!r} is no URL; write http://HOST:PORT")
    return value


def check_object_name(value: str) -> str:
    """Raises `ValueError` for what cannot name a Secret (a DNS subdomain: RFC 1123, as Kubernetes has it)."""
    label = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
    if len(value) > 253 or not re.fullmatch(rf"{label}(\.{label})*", value):
        raise ValueError(f"{value!r} names no Secret; write lower-case letters, digits, - and .")
    return value


def _describe(detail: Any) -> str:
    name = str(detail["loc"][0]) if detail["loc"] else "settings"
    reason = str(detail["msg"]).removeprefix("Value error, ")
    if detail["type"] == "extra_forbidden":
        return f"{name} is no setting; see tito-sidecar inject-webhook --help"
    if detail["type"] == "missing":
        return f"{_shown(name)} is missing; give {_remedy(name)}"
    shown = "not shown" if name == "session_secret" else repr(detail["input"])
    return f"{_shown(name)} is {shown}: {reason}"


def _shown(name: str) -> str:
    flags = {"listen", "tls_cert", "tls_key"}
    return f"--{name.replace('_', '-')}" if name in flags else name


def _remedy(name: str) -> str:
    if name in ("tls_cert", "tls_key"):
        return f"--{name.replace('_', '-')} FILE or TITO_{name.upper()}"
    return f"TITO_{name.upper()}" + ("" if name == "session_secret" else f", or {name} in the file of --config")
