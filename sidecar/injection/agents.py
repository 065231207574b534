"""What changes in an agent's container: where its model is, whose certificates it trusts, what it loses. Pure."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

from sidecar.injection.choices import Choices
from sidecar.injection.container import CA_BUNDLE, CA_BUNDLE_DIR, CA_BUNDLE_VOLUME
from sidecar.injection.serve_settings import plain_env
from sidecar.injection.threats import hardening
from sidecar.intercept.trust import agent_variables

_BASE = "http://127.0.0.1:8800"
_PROXIES = frozenset({"http_proxy", "https_proxy", "all_proxy"})
_SHARED = "JAVA_TOOL_OPTIONS"
"""The one variable that holds a program's other options too, so that a container's own value wins."""


def agent_env(choices: Choices, key: str) -> list[dict[str, Any]]:
    """The agent's variables, as the official SDKs and most agents look for them. `key` is its session's key."""
    assert choices.session_id is not None, "injected pods have a session"
    if choices.transparent:
        found = agent_variables(PurePosixPath(CA_BUNDLE))
    else:
        found = {
            "OPENAI_BASE_URL": f"{_BASE}/v1",
            "OPENAI_API_BASE": f"{_BASE}/v1",  # openai < 1, litellm
            "OPENAI_API_KEY": key,
            "ANTHROPIC_BASE_URL": _BASE,
            "ANTHROPIC_API_KEY": key,
        }
    found["TITO_SESSION_ID"] = choices.session_id
    return [plain_env(name, value) for name, value in found.items()]


def with_agent_settings(
    container: dict[str, Any], choices: Choices, key: str, where: str
) -> tuple[dict[str, Any], list[str]]:
    """The container as the agent gets it, and warnings about what of its own it lost."""
    warnings: list[str] = []
    changed = dict(container)
    warnings += _proxy_warnings(changed.get("env") or [], choices, where)
    changed["env"] = _merged_env(changed.get("env") or [], agent_env(choices, key), where, warnings)
    if choices.transparent:
        mount = {"name": CA_BUNDLE_VOLUME, "mountPath": CA_BUNDLE_DIR, "readOnly": True}
        changed["volumeMounts"] = _with_mount(changed.get("volumeMounts") or [], mount)
    changed["securityContext"] = _hardened(changed.get("securityContext") or {}, choices, where, warnings)
    return changed, warnings


def _merged_env(
    own: list[dict[str, Any]], ours: list[dict[str, Any]], where: str, warnings: list[str]
) -> list[dict[str, Any]]:
    """Ours come first, so that the container's own may refer to them as $(NAME), and win over its own."""
    by_name = {entry["name"]: entry for entry in ours}
    java = next((entry for entry in own if entry["name"] == _SHARED), None)
    if _SHARED in by_name and java is not None and java != by_name[_SHARED]:
        warnings.append(f"{where}.env {_SHARED} stays as it is; add {by_name.pop(_SHARED)['value']}")
    replaced = [entry["name"] for entry in own if entry["name"] in by_name and entry != by_name[entry["name"]]]
    if replaced:
        warnings.append(f"{where}.env {', '.join(dict.fromkeys(replaced))} gave way to the sidecar's own value")
    return [*by_name.values(), *(entry for entry in own if entry["name"] not in by_name)]


def _proxy_warnings(own: list[dict[str, Any]], choices: Choices, where: str) -> list[str]:
    """A proxy of the agent's own comes before the sidecar: what it does not name as an exception goes there."""
    names = {entry["name"]: str(entry.get("value", "")) for entry in own}
    proxies = [name for name in names if name.lower() in _PROXIES]
    if not proxies:
        return []
    if choices.transparent:
        return [f"{where}.env {', '.join(proxies)}: calls through a proxy are refused in transparent mode"]
    excepted = f"{names.get('NO_PROXY', '')},{names.get('no_proxy', '')}".split(",")
    if "127.0.0.1" in [name.strip() for name in excepted] or "*" in excepted:
        return []
    return [f"{where}.env {', '.join(proxies)}: add 127.0.0.1 to NO_PROXY, or calls do not reach the sidecar"]


def _with_mount(own: list[dict[str, Any]], mount: dict[str, Any]) -> list[dict[str, Any]]:
    if any(found.get("mountPath") == mount["mountPath"] for found in own):
        return [{**found, **mount} if found.get("mountPath") == mount["mountPath"] else found for found in own]
    return [*own, mount]


def _hardened(own: dict[str, Any], choices: Choices, where: str, warnings: list[str]) -> dict[str, Any]:
    changed = dict(own)
    capabilities = dict(changed.get("capabilities") or {})
    dropped = list(capabilities.get("drop") or [])
    if "ALL" not in dropped:
        dropped += [name for name in hardening(choices) if name not in dropped]
        capabilities["drop"] = dropped
        changed["capabilities"] = capabilities
    if choices.transparent and changed.get("allowPrivilegeEscalation") is not False:
        if changed.get("allowPrivilegeEscalation"):
            warnings.append(f"{where}.securityContext.allowPrivilegeEscalation became false")
        changed["allowPrivilegeEscalation"] = False
    return changed
