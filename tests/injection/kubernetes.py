"""What a Kubernetes API server does around the webhook, without one: strict schemas, patches, defaults, reviews.

The schemas are those of PyPI's kubernetes-validate, one per version; they are read once per process.
"""

from __future__ import annotations

import base64
import functools
import json
import re
from typing import Any

import jsonpatch
import jsonschema
from kubernetes_validate.utils import schema_contents
from referencing import Registry, Resource

VERSIONS = tuple(f"1.{minor}" for minor in range(29, 38))


@functools.cache
def _validator(version: str) -> jsonschema.Draft202012Validator:
    folder = f"kubernetes-json-schema/v{version}.0-local-strict"
    schema = schema_contents(f"{folder}/pod-v1.json", version)
    definitions = Resource.from_contents(schema_contents(f"{folder}/_definitions.json", version))
    registry = definitions @ (Resource.from_contents(schema) @ Registry())
    return jsonschema.Draft202012Validator(schema, registry=registry)


def invalid(pod: dict[str, Any], version: str) -> list[str]:
    """What the strict schema of a Kubernetes version has against a pod, and what API servers check beyond it."""
    found = [f"{version}: {error.json_path}: {error.message}" for error in _validator(version).iter_errors(pod)]
    return found + _beyond_the_schema(pod)


def _beyond_the_schema(pod: dict[str, Any]) -> list[str]:
    """Rules of the API server's validation that a patch could break: names are there once, mounts have a volume."""
    spec = pod["spec"]
    found: list[str] = []
    inits = spec.get("initContainers", [])
    containers = [*inits, *spec["containers"]]
    _once("container", [entry["name"] for entry in containers], found)
    names = [volume["name"] for volume in spec.get("volumes", [])]
    _once("volume", names, found)
    for container in containers:
        mounts = container.get("volumeMounts", [])
        _once(f"mount path of {container['name']}", [mount["mountPath"] for mount in mounts], found)
        found += [f"no volume {mount['name']}" for mount in mounts if mount["name"] not in names]
        security = container.get("securityContext", {})
        if security.get("runAsNonRoot") and security.get("runAsUser") == 0:
            found.append(f"{container['name']} is root and must not be")
    for container in inits:
        probes = {"startupProbe", "readinessProbe", "livenessProbe", "lifecycle"} & container.keys()
        if container.get("restartPolicy") != "Always" and probes:
            found.append(f"init container {container['name']} has {probes}")
    return found


def _once(kind: str, names: list[str], found: list[str]) -> None:
    found += [f"{kind} {name} is there twice" for name in sorted({name for name in names if names.count(name) > 1})]


def patched(pod: dict[str, Any], patch: list[dict[str, Any]]) -> dict[str, Any]:
    """The pod after the patch, by an implementation of RFC 6902 that is not ours.

    Through JSON: a copy would keep what is one object in two places one object."""
    result: dict[str, Any] = jsonpatch.apply_patch(json.loads(json.dumps(pod)), patch)
    return result


def expanded(env: list[dict[str, Any]]) -> dict[str, str]:
    """Variables as the process gets them: the kubelet puts in `$(NAME)` of earlier ones, and reads `$$` as `$`."""
    found: dict[str, str] = {}
    for entry in env:
        text = str(entry.get("value", "of a Secret"))
        found[entry["name"]] = re.sub(
            r"\$\$|\$\(([^)]*)\)", lambda at: "$" if at[1] is None else found.get(at[1], at[0]), text
        )
    return found


def with_defaults(pod: dict[str, Any]) -> dict[str, Any]:
    """The pod as the API server shows it to a webhook: defaults filled in, amounts in their canonical form."""
    pod = json.loads(json.dumps(pod))
    spec = pod["spec"]
    defaults = {"restartPolicy": "Always", "dnsPolicy": "ClusterFirst", "schedulerName": "default-scheduler"}
    defaults |= {"terminationGracePeriodSeconds": 30, "securityContext": {}, "enableServiceLinks": True}
    for name, value in defaults.items():
        spec.setdefault(name, value)
    for container in [*spec.get("initContainers", []), *spec["containers"]]:
        container.setdefault("terminationMessagePath", "/dev/termination-log")
        container.setdefault("terminationMessagePolicy", "File")
        container.setdefault("imagePullPolicy", "IfNotPresent")
        container.setdefault("resources", {})
        for given in container["resources"].values():
            for name, amount in given.items():
                given[name] = {"1024Mi": "1Gi", "0.25": "250m", "2048Mi": "2Gi"}.get(amount, amount)
        for entry in container.get("ports", []):
            entry.setdefault("protocol", "TCP")
        for name in ("startupProbe", "readinessProbe", "livenessProbe"):
            if name in container:
                probe = container[name]
                for field, value in _PROBE.items():
                    probe.setdefault(field, value)
                probe.get("httpGet", {}).setdefault("scheme", "HTTP")
    return pod


_PROBE = {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}


def review(pod: dict[str, Any], uid: str = "705ab4f5-6393-11e8-b7cc-42010a800002", **request: Any) -> bytes:
    """An AdmissionReview as an API server sends it for a new pod."""
    pods = {"group": "", "version": "v1", "resource": "pods"}
    kind = {"group": "", "version": "v1", "kind": "Pod"}
    body = {
        "uid": uid,
        "kind": kind,
        "resource": pods,
        "requestKind": kind,
        "requestResource": pods,
        "name": pod.get("metadata", {}).get("name", ""),
        "namespace": "rollouts",
        "operation": "CREATE",
        "userInfo": {"username": "system:serviceaccount:trainer:launcher", "groups": ["system:authenticated"]},
        "object": pod,
        "oldObject": None,
        "dryRun": False,
        "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
        **request,
    }
    return json.dumps({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": body}).encode()


def patch_of(reply: dict[str, Any]) -> list[dict[str, Any]]:
    """The patch in an AdmissionReview's reply; it must be one that API servers accept."""
    assert (reply["kind"], reply["apiVersion"]) == ("AdmissionReview", "admission.k8s.io/v1")
    response = reply["response"]
    assert response["allowed"] is True, response
    if "patch" not in response:
        assert "patchType" not in response
        return []
    assert response["patchType"] == "JSONPatch"
    patch: list[dict[str, Any]] = json.loads(base64.b64decode(response["patch"]))
    return patch
