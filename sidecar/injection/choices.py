"""What a pod asks for: its `tito.dev/*` annotations over the webhook's settings. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sidecar.injection.refusal import Problem, RefusalError
from sidecar.injection.serve_settings import check_serve_settings
from sidecar.injection.settings import InjectionSettings, Mode, check_engine_url, check_object_name

INJECT_LABEL = "tito.dev/inject"
MODE = "tito.dev/mode"
ENGINE_URL = "tito.dev/engine-url"
CONTAINERS = "tito.dev/containers"
SESSION_ID = "tito.dev/session-id"
SECRET = "tito.dev/secret"
EPHEMERAL_STORE = "tito.dev/ephemeral-store"
SETTINGS = "tito.dev/settings"
INSTANCE_ID = "tito.dev/instance-id"
"""Written by trainer_hooks' `kubernetes` launcher, for people: the session has its instance in the store."""

INJECTED = "tito.dev/injected"
"""Status: written by the webhook. Its presence is no proof of anything: every pass makes the sidecar anew."""

LONGEST_ID = 256

ANNOTATIONS = (MODE, ENGINE_URL, CONTAINERS, SESSION_ID, SECRET, EPHEMERAL_STORE, SETTINGS)


@dataclass(frozen=True, slots=True)
class Choices:
    """All that the injected containers are made from. `containers` None: every container is an agent's.

    `usual_secret` is that of pods that name none: a pod with another one shares its namespace with it."""

    mode: Mode
    engine_url: str
    image: str
    image_pull_policy: str = "IfNotPresent"
    secret: str = "tito-sidecar"
    usual_secret: str = "tito-sidecar"
    ephemeral_store: bool = False
    session_id: str | None = None
    containers: tuple[str, ...] | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    resources: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def secrets(self) -> set[str]:
        """Secrets that agents must not read: both hold an engine's key."""
        return {self.secret, self.usual_secret}

    @property
    def transparent(self) -> bool:
        """Whether agents are intercepted; else they are pointed at the sidecar."""
        return self.mode == "transparent"


def wants_sidecar(pod: dict[str, Any]) -> bool:
    """Whether the pod asks for a sidecar. The webhook's objectSelector asks the same first."""
    return (pod["metadata"].get("labels") or {}).get(INJECT_LABEL) == "true"


def was_injected(pod: dict[str, Any]) -> bool:
    """Whether this is a later pass over the same pod, so that containers with our names are ours."""
    return INJECTED in (pod["metadata"].get("annotations") or {})


def choices_of(pod: dict[str, Any], settings: InjectionSettings, new_session: str) -> Choices:
    """The pod's choices; `new_session` is the session of pods that name none. Raises `RefusalError`."""
    given = {
        name: str(value)
        for name, value in (pod["metadata"].get("annotations") or {}).items()
        if name.startswith("tito.dev/")
    }
    reader = _Reader(given)
    reader.refuse_unknown()
    engine_url = reader.read(ENGINE_URL, check_engine_url, settings.engine_url)
    choices = Choices(
        mode=reader.read(MODE, _mode, settings.mode),
        engine_url=engine_url or "",
        image=settings.image,
        image_pull_policy=settings.image_pull_policy,
        secret=reader.read(SECRET, check_object_name, settings.secret),
        usual_secret=settings.secret,
        ephemeral_store=reader.read(EPHEMERAL_STORE, _truth, settings.ephemeral_store),
        session_id=reader.read(SESSION_ID, _session_id, new_session),
        containers=reader.read(CONTAINERS, _names, None),
        settings={**settings.settings, **reader.read(SETTINGS, _settings, {})},
        resources=settings.resources,
    )
    if not engine_url and ENGINE_URL not in given:
        reader.problems.append(
            Problem("engine_url", f"the pod names no engine: annotate it {ENGINE_URL}: http://HOST:PORT")
        )
    if reader.problems:
        raise RefusalError(reader.problems)
    return choices


class _Reader:
    """Reads annotations one by one and collects what is wrong with them."""

    def __init__(self, given: dict[str, str]) -> None:
        self._given = given
        self.problems: list[Problem] = []

    def refuse_unknown(self) -> None:
        for name in sorted(self._given.keys() - {*ANNOTATIONS, INSTANCE_ID, INJECTED}):
            known = ", ".join(ANNOTATIONS)
            self.problems.append(Problem("annotation", f"annotation {name} is not known; there are {known}"))

    def read[T](self, name: str, parse: Callable[[str], T], default: T) -> T:
        if name not in self._given:
            return default
        try:
            return parse(self._given[name])
        except ValueError as error:
            text = f"annotation {name} is {_short(self._given[name])}: {error}"
            self.problems.append(Problem("annotation", text))
            return default


def _mode(text: str) -> Mode:
    if text == "base_url":
        return "base_url"
    if text == "transparent":
        return "transparent"
    raise ValueError("write base_url or transparent")


def _truth(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError('write "true" or "false"')
    return text == "true"


def _session_id(text: str) -> str:
    """The rule of sidecar/sessions/registry.py, whose imports (the tokenizer's) this process does without."""
    if not 1 <= len(text) <= LONGEST_ID or not text.isprintable() or "/" in text:
        raise ValueError(f"send 1 to {LONGEST_ID} printable characters without /")
    return text


def _names(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not names:
        raise ValueError("write names of containers with commas between them, or leave it out for all")
    return names


def _settings(text: str) -> dict[str, Any]:
    try:
        given = json.loads(text)
    except ValueError as error:
        raise ValueError(f'it is no JSON ({error}); write {{"context_window": 32768}}') from None
    return check_serve_settings(given)


def _short(text: str) -> str:
    shown = repr(text)
    return shown if len(shown) <= 80 else f"{shown[:76]}...'"
