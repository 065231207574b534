"""What of a pod lets the agent's code around the sidecar: the threat model's refusals. Pure.

The policy is the adversary: it runs code in the agent's containers, and it must reach neither the sidecar's memory
and files (the engine's key is there) nor the network past it. docs/injection.md explains each rule.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from typing import Any

from sidecar.injection.choices import Choices
from sidecar.injection.container import SIDECAR_UID
from sidecar.injection.refusal import Problem

_AS_GOOD_AS_PRIVILEGED = frozenset(
    {"ALL", "BPF", "DAC_READ_SEARCH", "PERFMON", "SYS_ADMIN", "SYS_MODULE", "SYS_RAWIO"}
)
_OF_THE_NETWORK = frozenset({"NET_ADMIN", "NET_RAW"})
_OF_USERS = frozenset({"SETUID", "SETGID"})
_HOST_PATHS = (
    "/etc/kubernetes",
    "/proc",
    "/run",
    "/sys",
    "/var/lib/containerd",
    "/var/lib/containers",
    "/var/lib/docker",
    "/var/lib/kubelet",
    "/var/lib/rancher",
    "/var/log",
    "/var/run",
)
"""Places of a node from which another container's files, processes or sockets can be reached."""
_SYSTEM = (
    "/bin",
    "/boot",
    "/dev",
    "/etc",
    "/home",
    "/lib",
    "/lib64",
    "/opt/cni",
    "/root",
    "/sbin",
    "/usr",
    "/var/spool",
)
"""Places from which a container's root becomes the node's: its programs, jobs, keys, disks."""
_HARMLESS = (
    "/dev/infiniband",
    "/dev/kvm",
    "/dev/shm",
    "/etc/localtime",
    "/etc/pki/ca-trust",
    "/etc/ssl/certs",
    "/etc/timezone",
    "/lib/modules",
    "/usr/share",
    "/usr/src",
)
"""Places in those which pods do mount, and where nothing is run or let in from."""


def pod_problems(pod: dict[str, Any]) -> list[Problem]:
    """What is wrong with the pod as a whole, whoever its containers are for."""
    spec = pod["spec"]
    found: list[Problem] = []
    if spec.get("hostNetwork"):
        found.append(_shared("host_network", "hostNetwork", "the node's network is nobody's own to redirect"))
    if spec.get("hostPID"):
        found.append(_shared("host_pid", "hostPID", "the agent could read the sidecar's memory and environment"))
    if spec.get("shareProcessNamespace"):
        text = "the agent could read the sidecar's memory and environment"
        found.append(_shared("shared_processes", "shareProcessNamespace", text))
    if (spec.get("securityContext") or {}).get("runAsUser") == SIDECAR_UID:
        found.append(_sidecars_uid("spec.securityContext"))
    if (spec.get("os") or {}).get("name") == "windows":
        found.append(Problem("windows", "spec.os.name is 'windows': the sidecar needs Linux"))
    for volume in spec.get("volumes") or []:
        path = (volume.get("hostPath") or {}).get("path")
        if path is not None and _reaches_others(str(path)):
            text = f"spec.volumes {volume['name']!r} is hostPath {path!r}, from where other containers or the node"
            found.append(Problem("host_path", f"{text} can be reached; mount a narrower path"))
    return found


def container_problems(where: str, container: dict[str, Any], choices: Choices, *, agents: bool) -> list[Problem]:
    """What is wrong with one container that is not ours; `where` is its place, as in `spec.containers['main']`."""
    security = container.get("securityContext") or {}
    found: list[Problem] = []
    if security.get("privileged"):
        found.append(Problem("privileged", f"{where} is privileged, so it is root on the node; leave that out"))
    if security.get("runAsUser") == SIDECAR_UID:
        found.append(_sidecars_uid(f"{where}.securityContext"))
    unsafe = _AS_GOOD_AS_PRIVILEGED
    if agents:
        unsafe = unsafe | _OF_THE_NETWORK | (_OF_USERS if choices.transparent else frozenset())
    added = sorted(set(map(_plain, (security.get("capabilities") or {}).get("add") or [])) & unsafe)
    if added:
        text = f"{where} adds {', '.join(added)}, with which the agent gets past the sidecar; leave it out"
        found.append(Problem("capability", text))
    read = choices.secrets.intersection(_secrets_of(container))
    return found + [Problem("secret", f"{where} {_reads_secret(name)}") for name in sorted(read)]


def volume_problems(pod: dict[str, Any], choices: Choices) -> list[Problem]:
    """Volumes that bring the sidecar's Secret into the pod: some container could mount them."""
    return [
        Problem("secret", f"spec.volumes {volume['name']!r} {_reads_secret(name)}")
        for volume in pod["spec"].get("volumes") or []
        for name in sorted(choices.secrets & _secrets_of_volume(volume))
    ]


def hardening(choices: Choices) -> list[str]:
    """Capabilities that agents lose.

    NET_RAW and NET_ADMIN in every mode: container runtimes give root NET_RAW, with which it reads the engine's key
    from the sidecar's own packets. SETUID and SETGID where uids decide: with them root becomes uid 1337."""
    return sorted(_OF_THE_NETWORK | (_OF_USERS if choices.transparent else frozenset()))


def _reads_secret(name: str) -> str:
    return f"reads Secret {name!r}, which holds the engine's key; give agents a Secret of their own"


def _plain(capability: object) -> str:
    return str(capability).upper().removeprefix("CAP_")


def _shared(reason: Any, field: str, why: str) -> Problem:
    return Problem(reason, f"spec.{field} is true: {why}; leave it out")


def _sidecars_uid(where: str) -> Problem:
    text = f"{where}.runAsUser is {SIDECAR_UID}, the sidecar's own uid, whose traffic is not redirected"
    return Problem("uid_1337", f"{text}; choose another (Istio's proxy has it too: leave Istio's injection off)")


def _reaches_others(path: str) -> bool:
    if any(is_within(path, kept) or is_within(kept, path) for kept in _HOST_PATHS):
        return True
    return any(is_within(path, kept) for kept in _SYSTEM) and not any(is_within(path, kept) for kept in _HARMLESS)


def is_within(path: str, folder: str) -> bool:
    """Whether an absolute path is that folder or below it, however either is spelled."""
    path, folder = _clean(path), _clean(folder)
    return path == folder or folder == "/" or path.startswith(f"{folder}/")


def _clean(path: str) -> str:
    return "/" + posixpath.normpath("/" + path).lstrip("/")


def _secrets_of(container: dict[str, Any]) -> Iterator[str]:
    for entry in container.get("env") or []:
        reference = (entry.get("valueFrom") or {}).get("secretKeyRef")
        if reference:
            yield str(reference.get("name"))
    for source in container.get("envFrom") or []:
        if source.get("secretRef"):
            yield str(source["secretRef"].get("name"))


def _secrets_of_volume(volume: dict[str, Any]) -> set[str]:
    named = {str((volume.get("secret") or {}).get("secretName"))}
    for source in (volume.get("projected") or {}).get("sources") or []:
        named.add(str((source.get("secret") or {}).get("name")))
    for kind in ("csi", "flexVolume", "cephfs", "rbd", "iscsi", "scaleIO", "storageos", "azureFile"):
        found = volume.get(kind) or {}
        reference = found.get("nodePublishSecretRef") or found.get("secretRef") or {}
        named |= {str(reference.get("name")), str(found.get("secretName"))}
    return named
