"""One of our containers as an earlier pass left it, brought back to what we want. Pure.

Between two passes the API server fills in defaults and writes amounts its own way, and other webhooks may add
variables or mounts to every container. Those stay, so that a pass over a pod that is as we want it changes nothing.
All else goes: the annotation that says a pod was injected proves nothing, and a container of our name is made ours.
"""

from __future__ import annotations

from typing import Any

from sidecar.injection.quantity import same_amount

_STAYS = frozenset(
    {
        "appArmorProfile",
        "resizePolicy",
        "resources",  # of a LimitRange, where we ask for none
        "seLinuxOptions",
        "terminationMessagePath",
        "terminationMessagePolicy",
    }
)
"""Fields that others may set as they like."""

_DEFAULTS = {
    "failureThreshold": 3,
    "periodSeconds": 10,
    "procMount": "Default",
    "protocol": "TCP",
    "scheme": "HTTP",
    "successThreshold": 1,
    "timeoutSeconds": 1,
}
"""What the API server fills in (Kubernetes 1.29 to 1.37) where nothing is said."""

_LISTS = {"env": "name", "volumeMounts": "mountPath"}
"""Lists that others may add to, and by what their entries are told apart."""

_AMOUNTS = frozenset({"limits", "requests"})


def restored(found: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
    """`wanted`, with what may stay of `found`, at every depth; fields keep the order of `found`."""
    kept = {
        name: _restored_field(name, value, wanted[name]) if name in wanted else value
        for name, value in found.items()
        if name in wanted or name in _STAYS or (name in _DEFAULTS and _DEFAULTS[name] == value)
    }
    return kept | {name: value for name, value in wanted.items() if name not in kept}


def _restored_field(name: str, found: Any, wanted: Any) -> Any:
    if isinstance(found, dict) and isinstance(wanted, dict):
        return _restored_amounts(found, wanted) if name in _AMOUNTS else restored(found, wanted)
    if isinstance(found, list) and isinstance(wanted, list):
        if name in _LISTS:
            return _restored_list(found, wanted, _LISTS[name])
        if len(found) == len(wanted) and all(isinstance(entry, dict) for entry in [*found, *wanted]):
            return [restored(*pair) for pair in zip(found, wanted, strict=True)]
    return wanted


def _restored_list(found: list[Any], wanted: list[Any], key: str) -> list[Any]:
    """Ours first and as we want them; those of others behind, but no setting of the sidecar."""
    old = {entry[key]: entry for entry in found}
    ours = [restored(old[entry[key]], entry) if entry[key] in old else entry for entry in wanted]
    names = {entry[key] for entry in wanted}
    return [*ours, *(entry for entry in found if entry[key] not in names and not entry[key].startswith("TITO_"))]


def _restored_amounts(found: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
    return found | {
        name: found[name] if same_amount(found.get(name), value) else value for name, value in wanted.items()
    }
