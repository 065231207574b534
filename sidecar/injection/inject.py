"""From a pod and the webhook's settings to the patch that gives the pod its sidecar. Pure.

Every pass makes the whole pod as it should be and compares: a second one finds nothing to do, and one after another
webhook's change finds just that change. So `reinvocationPolicy: IfNeeded` restores the order of init containers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from sidecar.injection.agents import with_agent_settings
from sidecar.injection.choices import (
    CONTAINERS,
    INJECT_LABEL,
    INJECTED,
    MODE,
    SESSION_ID,
    Choices,
    choices_of,
    wants_sidecar,
    was_injected,
)
from sidecar.injection.container import (
    CA_BUNDLE_DIR,
    CA_BUNDLE_VOLUME,
    CONTAINER_NAMES,
    GRACE_SECONDS,
    INTERCEPT_PORT,
    PORTS,
    init_containers,
    volumes,
)
from sidecar.injection.patch import json_patch
from sidecar.injection.refusal import Problem, RefusalError
from sidecar.injection.restore import restored
from sidecar.injection.settings import InjectionSettings, Mode
from sidecar.injection.threats import container_problems, is_within, pod_problems, volume_problems
from sidecar.sessions.keys import session_key

_VOLUME_NAMES = ("tito-state", "tito-tmp", "tito-no-token", "tito-ca", CA_BUNDLE_VOLUME)
_SHORTEST_GRACE = 30
"""Seconds. Running steps have 20 at shutdown (`--drain-seconds`); the rest is for writing them."""


@dataclass(frozen=True, slots=True)
class Injection:
    """What to do with a pod that asked: a JSON patch (empty: nothing), and what its author should know."""

    patch: list[dict[str, Any]]
    warnings: list[str]
    mode: Mode
    session_id: str


def inject(pod: dict[str, Any], settings: InjectionSettings, new_session: str) -> Injection | None:
    """The injection of a pod (a `v1` Pod as JSON); None if it does not ask for one.

    `new_session` is the session of a pod that names none; the first pass writes it down for the others.
    Raises `RefusalError`; `pod` stays as it is."""
    _check_shape(pod)
    if not wants_sidecar(pod):
        return None
    choices = choices_of(pod, settings, new_session)
    problems = [*pod_problems(pod), *volume_problems(pod, choices)]
    problems += [problem for place in _places(pod, choices) for problem in _place_problems(place, pod, choices)]
    problems += _unknown_names(pod, choices) + _taken_volumes(pod)
    if problems:
        raise RefusalError(problems)
    made, warnings = _injected(pod, choices, settings)
    if not was_injected(pod):
        warnings = [*_first_warnings(pod, choices), *warnings]
    assert choices.session_id is not None
    return Injection(json_patch(pod, made), warnings, choices.mode, choices.session_id)


@dataclass(frozen=True, slots=True)
class _Place:
    """A container that is not ours. `beside`: it runs while the sidecar does; `agents`: it is an agent's."""

    where: str
    container: dict[str, Any]
    beside: bool
    agents: bool


def _places(pod: dict[str, Any], choices: Choices) -> Iterator[_Place]:
    chosen = choices.containers
    for container in pod["spec"].get("initContainers") or []:
        name = container["name"]
        if was_injected(pod) and name in CONTAINER_NAMES:
            continue
        beside = container.get("restartPolicy") == "Always"
        agents = beside and chosen is not None and name in chosen
        yield _Place(f"spec.initContainers[{name!r}]", container, beside, agents)
    for container in pod["spec"]["containers"]:
        name = container["name"]
        yield _Place(f"spec.containers[{name!r}]", container, True, chosen is None or name in chosen)


def _place_problems(place: _Place, pod: dict[str, Any], choices: Choices) -> list[Problem]:
    container = place.container
    problems = container_problems(place.where, container, choices, agents=place.agents)
    if container["name"] in CONTAINER_NAMES:
        text = f"{place.where} has the name of the sidecar's own container; give it another one, or, where the pod"
        problems.append(Problem("container", f"{text} brings its own sidecar, leave the label {INJECT_LABEL} out"))
    if place.beside:
        taken = [*PORTS, INTERCEPT_PORT] if choices.transparent else [*PORTS]
        problems += [
            Problem("port", f"{place.where} listens on port {port}, which is the sidecar's; choose another")
            for port in sorted({entry.get("containerPort") for entry in container.get("ports") or []} & {*taken})
        ]
    for mount in container.get("volumeMounts") or []:
        ours = mount.get("name") == CA_BUNDLE_VOLUME and mount.get("mountPath") == CA_BUNDLE_DIR
        if ours and mount.get("readOnly") is True:
            continue
        if mount.get("name") in _VOLUME_NAMES:
            text = f"{place.where} mounts {mount['name']!r}, a volume of the sidecar; leave that out"
            problems.append(Problem("volume", text))
        elif choices.transparent and is_within(str(mount.get("mountPath")), CA_BUNDLE_DIR):
            text = f"{place.where} mounts something at {CA_BUNDLE_DIR}, where certificates come; mount it elsewhere"
            problems.append(Problem("volume", text))
    return problems


def _unknown_names(pod: dict[str, Any], choices: Choices) -> list[Problem]:
    places = {place.container["name"]: place for place in _places(pod, choices)}
    found: list[Problem] = []
    for name in choices.containers or ():
        if name not in places:
            known = ", ".join(name for name, place in places.items() if place.beside)
            found.append(Problem("annotation", f"annotation {CONTAINERS} names {name!r}; the pod has {known}"))
        elif not places[name].beside:
            text = f"annotation {CONTAINERS} names {name!r}, which ends before the sidecar starts"
            found.append(Problem("annotation", f"{text}; name containers that run beside it"))
    return found


def _taken_volumes(pod: dict[str, Any]) -> list[Problem]:
    names = [] if was_injected(pod) else [volume["name"] for volume in pod["spec"].get("volumes") or []]
    text = "has the name of a volume of the sidecar; give it another one"
    return [Problem("volume", f"spec.volumes {name!r} {text}") for name in names if name in _VOLUME_NAMES]


def _injected(
    pod: dict[str, Any], choices: Choices, settings: InjectionSettings
) -> tuple[dict[str, Any], list[str]]:
    assert choices.session_id is not None
    key = session_key(choices.session_id, settings.session_secret.encode())
    warnings: list[str] = []
    agents = {place.where for place in _places(pod, choices) if place.agents}

    def as_agent(kind: str, container: dict[str, Any]) -> dict[str, Any]:
        where = f"spec.{kind}[{container['name']!r}]"
        if where not in agents:
            return container
        changed, more = with_agent_settings(container, choices, key, where)
        warnings.extend(more)
        return changed

    spec = dict(pod["spec"])
    given = spec.get("initContainers") or []
    found = {entry["name"]: entry for entry in given if entry["name"] in CONTAINER_NAMES}
    theirs = [as_agent("initContainers", entry) for entry in given if entry["name"] not in CONTAINER_NAMES]
    ours = [restored(found.get(entry["name"], {}), entry) for entry in init_containers(choices)]
    spec["initContainers"] = [*theirs, *ours]
    spec["containers"] = [as_agent("containers", entry) for entry in spec["containers"]]
    spec["volumes"] = _with_volumes(spec.get("volumes") or [], volumes(choices))
    _lengthen_grace(spec, choices, warnings)
    return {**pod, "metadata": _with_status(pod["metadata"], choices), "spec": spec}, warnings


def _with_volumes(found: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> list[dict[str, Any]]:
    ours = {volume["name"]: volume for volume in wanted}
    kept = [
        restored(volume, ours[volume["name"]]) if volume["name"] in ours else volume
        for volume in found
        if volume["name"] in ours or volume["name"] not in _VOLUME_NAMES
    ]
    there = {volume["name"] for volume in kept}
    return [*kept, *(volume for name, volume in ours.items() if name not in there)]


def _lengthen_grace(spec: dict[str, Any], choices: Choices, warnings: list[str]) -> None:
    needed = GRACE_SECONDS if choices.ephemeral_store else _SHORTEST_GRACE
    given = spec.get("terminationGracePeriodSeconds")
    if (30 if given is None else given) < needed:  # Kubernetes' default
        spec["terminationGracePeriodSeconds"] = needed
        if given not in (None, 30):
            warnings.append(f"spec.terminationGracePeriodSeconds was {given}, is {needed}: the sidecar needs it")


def _with_status(metadata: dict[str, Any], choices: Choices) -> dict[str, Any]:
    annotations = dict(metadata.get("annotations") or {})
    assert choices.session_id is not None
    annotations[SESSION_ID] = choices.session_id
    annotations[INJECTED] = json.dumps({"mode": choices.mode, "version": version("tito-sidecar")})
    return {**metadata, "annotations": annotations}


def _first_warnings(pod: dict[str, Any], choices: Choices) -> list[str]:
    warnings: list[str] = []
    if choices.transparent:
        text = "tito-redirect needs NET_ADMIN and NET_RAW; where Pod Security forbids them"
        warnings.append(f"{text}, annotate the pod {MODE}: base_url")
    others = [place.where for place in _places(pod, choices) if place.beside and not place.agents]
    if others:
        text = f"not hardened, as {CONTAINERS} leaves them out"
        warnings.append(f"{', '.join(others)}: {text}; agents' code must not run there")
    if choices.ephemeral_store:
        warnings.append("ephemeral store: what is not read when the pod's grace period ends is lost")
    if pod["spec"].get("automountServiceAccountToken") is not False:
        text = "agents may get a service-account token; set automountServiceAccountToken: false unless they need it"
        warnings.append(text)
    return warnings


def _check_shape(pod: Any) -> None:
    """What the code here relies on. The API server sends nothing else."""
    problem = Problem("malformed", "the object is no Pod: it needs metadata, and spec with named containers")
    if not isinstance(pod, dict) or not all(isinstance(pod.get(part), dict) for part in ("metadata", "spec")):
        raise RefusalError([problem])
    spec = pod["spec"]
    lists = [spec.get("containers"), spec.get("initContainers") or [], spec.get("volumes") or []]
    named = all(
        isinstance(entries, list)
        and all(isinstance(entry, dict) and isinstance(entry.get("name"), str) for entry in entries)
        for entries in lists
    )
    if not named or not spec["containers"]:
        raise RefusalError([problem])
