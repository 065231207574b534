"""Settings: flags win over `TITO_*` variables, those over the YAML file of `--config`, those over defaults.

Each setting is declared once, here; `cli.py` makes a flag of every field.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from adapters.models.selection import REASONING_PARSERS, TOOL_CALL_PARSERS, check_choice
from adapters.models.templates import TEMPLATE_NAMES
from sidecar.generation.sampling import check_pin
from sidecar.intercept.hosts import DEFAULT_HOSTS
from sidecar.layered_settings import LayeredSettings, load_layered
from sidecar.layered_settings import SettingsError as SettingsError
from sidecar.setting_values import (
    Duration,
    DurationOrOff,
    Patterns,
    Size,
    Words,
    name_value_pairs,
    on_or_off,
    template_of_ours,
    whole_number,
)
from sidecar.tito.modes import HistoryThinking, TokenBuildMode

_SECRETS = ("engine_api_key", "engine_admin_key", "control_token", "session_secret")


def default_state_dir() -> Path:
    """`$XDG_STATE_HOME/tito-sidecar`."""
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "tito-sidecar"


class Settings(LayeredSettings):
    """Settings of `tito-sidecar serve`. Times are in seconds."""

    model_config = SettingsConfigDict(env_prefix="TITO_", extra="forbid", validate_default=True)

    engine_url: str = Field("http://127.0.0.1:30000", description="SGLang server to send generations to")
    engine_api_key: str | None = Field(None, description="the engine's --api-key")
    engine_admin_key: str | None = Field(None, description="the engine's --admin-api-key, for aborts")
    tokenizer: str | None = Field(None, description="path or hub id (default: what the engine reports)")
    chat_template: Annotated[Path | None, BeforeValidator(template_of_ours)] = Field(
        None,
        description=f"Jinja file in place of the tokenizer's template, or one of ours: {', '.join(TEMPLATE_NAMES)}",
    )
    model_family: str = Field("auto", description="stop tokens and formats of a family: auto or its name")
    tool_call_parser: str = Field(
        "auto", description=f"format of tool calls (docs/parsers.md): {', '.join(TOOL_CALL_PARSERS)}"
    )
    reasoning_parser: str = Field("auto", description=f"format of reasoning: {', '.join(REASONING_PARSERS)}")
    listen: str = Field("127.0.0.1:8800", description="data plane, for agents")
    control_listen: str = Field("127.0.0.1:8801", description="control plane, for the trainer")
    control_token: str | None = Field(None, description="bearer of the control plane (default: made on first use)")
    health_listen: str | None = Field(None, description="address that serves /health and /ready alone")
    intercept: Words = Field(
        [],
        description="regular@PORT (HTTPS_PROXY), transparent@PORT (redirect-init), reverse:URL@PORT: for agents "
        "that cannot be configured",
    )
    intercept_hosts: Words = Field(
        list(DEFAULT_HOSTS), description="HOST, HOST:PORT or *.DOMAIN answered by the engine"
    )
    intercept_allow: Words = Field(
        [], description="hosts that intercepted agents reach undecrypted; all others are refused"
    )
    ca_dir: Path | None = Field(None, description="interception CA (default: <state-dir>/ca)")
    ca_bundle: Path | None = Field(
        None, description="file that gets what agents trust, and no key (default: <ca-dir>/ca-bundle.pem)"
    )
    store: str | None = Field(
        None, description="sqlite:///PATH or postgresql://... (docs/store.md; default: <state-dir>/tito.db)"
    )
    store_timeout: float = Field(10, gt=0, description="how long a write waits for a server that cannot be reached")
    retention: DurationOrOff = Field(
        86400, gt=0, description="how long a session is kept after it was drained, finalized or last used, or off"
    )
    session_timeout: Duration = Field(3600, gt=0, description="an unused session leaves memory, not the store")
    tombstones: Duration = Field(7 * 86400, ge=0, description="how long calls of a session that is gone get a 409")
    state_dir: Path = Field(default_factory=default_state_dir, description="tokens, CA and the default store")
    token_build_mode: TokenBuildMode = Field(
        "tito", description="tito appends to what was sampled; snapshot renders every request in full"
    )
    history_thinking: HistoryThinking = Field(
        "keep", description="keep sampled reasoning in its segment, or start one where the template drops it"
    )
    match: Literal["lenient", "exact"] = Field("lenient", description="how requests are matched to earlier steps")
    volatile_pattern: Patterns = Field(
        [], description="regular expression: text in system messages that changes and does not count for matching"
    )
    on_unstable_template: Literal["refuse", "segment"] = Field(
        "refuse", description="for templates without an exact delta"
    )
    special_tokens_in_content: Literal["text", "control"] = Field(
        "text", description="how control-token spellings in user and tool content are encoded"
    )
    context_window: int | None = Field(None, ge=2, description="tokens (default: what the engine reports)")
    max_output_tokens: int | None = Field(None, ge=1, description="upper bound for every reply")
    overflow_status: Annotated[Literal[400, 413], BeforeValidator(whole_number)] = Field(
        400, description="status when a prompt does not fit"
    )
    sampling_pin: Annotated[dict[str, Any], NoDecode, BeforeValidator(name_value_pairs)] = Field(
        {}, description="k=v,...: sampling that overrides what agents ask"
    )
    train_off_policy_sampling: bool = Field(False, description="train steps sampled with top_p, penalties, ...")
    drop_rejected: bool = Field(False, description="do not train delivered replies that the agent dropped")
    partial_rollout: bool = Field(
        True, description="a preempted step goes on from its tokens on new weights; else it starts over"
    )
    record_token_versions: bool = Field(True, description="record which weight version sampled each token")
    mask_nonlast_version_tokens: bool = Field(
        False, description="train only tokens of a sample's last weight version"
    )
    max_version_span: int | None = Field(
        None, ge=1, description="train only steps of a session's newest N weight versions"
    )
    use_rollout_routing_replay: bool = Field(
        False, description="record which experts processed each token, for slime's routing replay"
    )
    routing_replay_shape: Annotated[dict[str, int], NoDecode, BeforeValidator(name_value_pairs)] = Field(
        {}, description="layers=48,topk=8,experts=128 of the model (default: what its config.json says)"
    )
    session_id: str | None = Field(None, description="session of requests that name none")
    session_secret: str | None = Field(None, description="secret of session keys (default: made on first use)")
    data_auth: Literal["none", "session-key"] | None = Field(
        None, description="default: none on loopback, else session-key"
    )
    advertise_url: str | None = Field(
        None, description="where agents and other replicas reach --listen of this replica (default: from --listen)"
    )
    advertise_control_url: str | None = Field(
        None, description="where trainer and other replicas reach --control-listen (default: from it)"
    )
    lease_seconds: float = Field(10, ge=0.5, description="how long other replicas wait for one that is gone")
    max_body: Size = Field(8 * 2**20, ge=1024, description="largest request body, e.g. 8MiB")
    max_session_roots: int = Field(1024, ge=1, description="conversations that one session may begin")
    max_session_bytes: Size = Field(2**30, ge=2**16, description="what one session may store, e.g. 1GiB")
    max_total_bytes: Size = Field(
        4 * 2**30,
        ge=2**20,
        description="what all sessions may hold in memory before calls have to wait",
    )
    heartbeat_interval: float = Field(15, gt=0, description="between signs of life on a silent call")
    json_keepalive: Annotated[Literal["on", "off"], BeforeValidator(on_or_off)] = Field(
        "on", description="white space before a late JSON reply"
    )
    slow_reader: float = Field(300, gt=0, description="a blocked reader counts as gone after this long")
    retry_window: float = Field(60, ge=0, description="how long a step waits for the retry of its call")
    pause_lease_seconds: float = Field(120, gt=0, description="a pause ends by itself unless renewed")
    engine_retries: int = Field(3, ge=0, description="failed engine calls in a row before a call fails")
    engine_silence: float = Field(120, gt=0, description="silence after which the engine is asked if it lives")
    max_stalled_resumes: int = Field(20, ge=0, description="preemptions without a token before a call fails")
    drain_seconds: float = Field(20, ge=0, description="how long running steps may take at shutdown")

    @field_validator("listen", "control_listen", "health_listen")
    @classmethod
    def _check_address(cls, value: str | None) -> str | None:
        if value is not None:
            split_address(value)
        return value

    @field_validator("volatile_pattern")
    @classmethod
    def _check_patterns(cls, value: list[str]) -> list[str]:
        for pattern in value:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"{pattern!r} is no regular expression: {error}") from None
        return value

    @field_validator("tool_call_parser", "reasoning_parser")
    @classmethod
    def _check_parser(cls, value: str, info: ValidationInfo) -> str:
        known = TOOL_CALL_PARSERS if info.field_name == "tool_call_parser" else REASONING_PARSERS
        if value not in known:
            raise ValueError(f"{value!r} is no known format; choose from {', '.join(known)}")
        if info.field_name == "reasoning_parser":  # the other one comes first
            check_choice(info.data.get("tool_call_parser", ""), value)
        return value

    @field_validator("sampling_pin")
    @classmethod
    def _check_sampling_pin(cls, value: dict[str, Any]) -> dict[str, Any]:
        return check_pin(value, "sampling_pin")

    @field_validator("routing_replay_shape")
    @classmethod
    def _check_replay_shape(cls, value: dict[str, int]) -> dict[str, int]:
        unknown = value.keys() - {"layers", "topk", "experts"}
        if value and (unknown or not value.keys() >= {"layers", "topk"} or min(value.values()) < 1):
            raise ValueError("write layers=N,topk=N and, if it is known, experts=N, each at least 1")
        return value

    @field_validator("engine_url")
    @classmethod
    def _check_url(cls, value: str) -> str:
        if not re.match(r"https?://[^/]+", value):
            raise ValueError(f"{value!r} is no URL; write http://HOST:PORT")
        return value

    @model_validator(mode="after")
    def _check_versions(self) -> Settings:
        needs = {
            "--mask-nonlast-version-tokens": self.mask_nonlast_version_tokens,
            "--max-version-span": self.max_version_span is not None,
            "--no-partial-rollout": not self.partial_rollout,
        }
        asked = [flag for flag, wanted in needs.items() if wanted]
        if asked and not self.record_token_versions:
            raise ValueError(
                f"--no-record-token-versions leaves the version of every token unknown, which "
                f"{' and '.join(asked)} must know; leave recording on, or leave {' and '.join(asked)} out"
            )
        return self

    @model_validator(mode="after")
    def _fill_in(self) -> Settings:
        if self.data_auth is None:
            self.data_auth = "none" if is_loopback(self.listen) else "session-key"
        self.ca_dir = self.ca_dir or self.state_dir / "ca"
        self.store = self.store or f"sqlite:///{self.state_dir / 'tito.db'}"
        return self


def load_settings(flags: dict[str, Any], config: Path | None = None) -> Settings:
    """Settings of a command. `flags` holds only those that were given. Raises `SettingsError`."""
    return load_layered(Settings, flags, config, _describe)


def _describe(detail: Any) -> str:
    reason = str(detail["msg"]).removeprefix("Value error, ")
    if not detail["loc"]:  # about several settings, which the reason names; the input holds all, secrets included
        return reason
    name = str(detail["loc"][0])
    if detail["type"] == "extra_forbidden":
        return f"{name} is no setting; see tito-sidecar serve --help"
    shown = "not shown" if name in _SECRETS else repr(detail["input"])
    return f"--{name.replace('_', '-')} is {shown}: {reason}"


def split_address(address: str) -> tuple[str, int]:
    """`HOST:PORT`, `[::1]:PORT` or `:PORT` (all interfaces). Raises `ValueError`."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{address!r} is no address; write HOST:PORT")
    return host.strip("[]") or "0.0.0.0", int(port)


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach the address."""
    host, _ = split_address(address)
    return host in ("localhost", "::1") or host.startswith("127.")
