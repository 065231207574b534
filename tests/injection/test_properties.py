"""Any pod of a generated family: what is injected validates and is left alone afterwards; what is refused says why.

The family has up to three containers and init containers, native ones among them, with variables, mounts, ports and
security settings that the threat model allows; and a list of dangers, each with the reason it must be refused for.
"""

from __future__ import annotations

import copy
import json
from typing import Any

import jsonpatch
from hypothesis import given
from hypothesis import strategies as st

from sidecar.injection.inject import inject
from sidecar.injection.patch import json_patch
from sidecar.injection.quantity import quantity, same_amount
from sidecar.injection.refusal import RefusalError
from tests.injection.kubernetes import VERSIONS, invalid, patched, with_defaults
from tests.injection.pods import agent_pod, settings

NAMES = ("main", "tool", "helper")
OURS = ("tito-sidecar", "tito-redirect")
VARIABLES = ("PATH", "OPENAI_BASE_URL", "OPENAI_API_KEY", "SSL_CERT_FILE", "JAVA_TOOL_OPTIONS", "TASK")

variables = st.lists(
    st.one_of(
        st.builds(lambda name, value: {"name": name, "value": value}, st.sampled_from(VARIABLES), st.text()),
        st.builds(
            lambda name: {"name": name, "valueFrom": {"secretKeyRef": {"name": "own", "key": "k"}}},
            st.sampled_from(VARIABLES),
        ),
    ),
    max_size=4,
)
securities = st.fixed_dictionaries(
    {},
    optional={
        "runAsUser": st.sampled_from([0, 1000]),
        "privileged": st.just(False),
        "allowPrivilegeEscalation": st.booleans(),
        "readOnlyRootFilesystem": st.booleans(),
        "capabilities": st.fixed_dictionaries(
            {},
            optional={
                "add": st.just(["SYS_PTRACE"]),
                "drop": st.lists(st.sampled_from(["ALL", "NET_RAW", "MKNOD", "SETUID"]), unique=True),
            },
        ),
    },
)
fields = {
    "env": variables,
    "securityContext": securities,
    "ports": st.just([{"containerPort": 9000, "protocol": "TCP"}]),
    "volumeMounts": st.just([{"name": "work", "mountPath": "/work"}]),
    "resources": st.just({"requests": {"cpu": "1"}}),
}


def container(name: str) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({"name": st.just(name), "image": st.just("image:1")}, optional=fields)


def init_container(name: str) -> st.SearchStrategy[dict[str, Any]]:
    native = st.sampled_from([{}, {}, {"restartPolicy": "Always"}])
    return st.builds(lambda made, kind: made | kind, container(name), native)


def some(names: tuple[str, ...], make: Any, least: int) -> st.SearchStrategy[list[dict[str, Any]]]:
    counts = st.integers(least, len(names))
    return counts.flatmap(lambda count: st.tuples(*(make(name) for name in names[:count])).map(list))


annotations = st.fixed_dictionaries(
    {},
    optional={
        "tito.dev/mode": st.sampled_from(["base_url", "transparent"]),
        "tito.dev/containers": st.sampled_from(["main", "main, "]),
        "tito.dev/ephemeral-store": st.sampled_from(["true", "false"]),
        "tito.dev/session-id": st.sampled_from(["rollout-7", "a b", "ü" * 256]),
        "tito.dev/secret": st.just("other"),
        "tito.dev/settings": st.sampled_from(["{}", '{"context_window": 1024}', '{"match": "exact"}']),
        "other.dev/note": st.text(),
    },
)


@st.composite
def pods(draw: st.DrawFn) -> dict[str, Any]:
    """A pod that may be injected."""
    spec: dict[str, Any] = {
        "containers": draw(some(NAMES, container, 1)),
        "volumes": [{"name": "work", "emptyDir": {}}, {"name": "data", "hostPath": {"path": "/mnt/data"}}],
    }
    inits = draw(some(("clone", "warm", "proxy"), init_container, 0))
    if inits or draw(st.booleans()):
        spec["initContainers"] = inits
    if draw(st.booleans()):
        spec["terminationGracePeriodSeconds"] = draw(st.sampled_from([0, 30, 700]))
    if draw(st.booleans()):
        spec["securityContext"] = draw(st.sampled_from([{}, {"runAsNonRoot": True}, {"runAsUser": 1000}]))
    pod = agent_pod(draw(annotations), **spec)
    if "initContainers" not in spec:
        del pod["spec"]["initContainers"]
    if draw(st.booleans()):
        del pod["metadata"]["annotations"]
    return with_defaults(pod) if draw(st.booleans()) else pod


def add_capability(pod: dict[str, Any]) -> None:
    pod["spec"]["containers"][0]["securityContext"] = {"capabilities": {"add": ["SYS_ADMIN"]}}


def set_uid(pod: dict[str, Any]) -> None:
    pod["spec"]["securityContext"] = {"runAsUser": 1337}


def add_privileged_init(pod: dict[str, Any]) -> None:
    made = {"name": "sysctl", "image": "s", "securityContext": {"privileged": True}}
    pod["spec"].setdefault("initContainers", []).append(made)


def add_mode(pod: dict[str, Any]) -> None:
    pod["metadata"].setdefault("annotations", {})["tito.dev/mode"] = "none"


DANGERS: dict[str, Any] = {
    "host_network": lambda pod: pod["spec"].update(hostNetwork=True),
    "host_pid": lambda pod: pod["spec"].update(hostPID=True),
    "shared_processes": lambda pod: pod["spec"].update(shareProcessNamespace=True),
    "uid_1337": set_uid,
    "privileged": add_privileged_init,
    "capability": add_capability,
    "host_path": lambda pod: pod["spec"]["volumes"].append({"name": "root", "hostPath": {"path": "/"}}),
    "volume": lambda pod: pod["spec"]["volumes"].append({"name": "tito-state", "emptyDir": {}}),
    "container": lambda pod: pod["spec"]["containers"].append({"name": "tito-sidecar", "image": "x"}),
    "port": lambda pod: pod["spec"]["containers"][0].update(ports=[{"containerPort": 8800}]),
}


def order(pod: dict[str, Any]) -> list[str]:
    return [entry["name"] for entry in pod["spec"].get("initContainers", [])]


@given(pods(), st.sampled_from(VERSIONS))
def test_what_is_injected_validates_and_a_second_pass_is_empty(pod: dict[str, Any], version: str) -> None:
    assert invalid(pod, version) == [], "the family is of valid pods"
    before = copy.deepcopy(pod)
    first = inject(pod, settings(), "pod-1")
    assert first is not None
    assert pod == before
    once = patched(pod, first.patch)
    assert invalid(once, version) == []
    ours = OURS if first.mode == "transparent" else OURS[:1]
    assert order(once) == [*order(pod), *ours]
    for seen in (once, with_defaults(once)):
        second = inject(seen, settings(), "pod-2")
        assert second is not None
        assert second.patch == []
        assert second.session_id == first.session_id


@given(pods(), st.data())
def test_a_pass_after_other_webhooks_restores_the_order_and_is_the_last_one(
    pod: dict[str, Any], data: st.DataObject
) -> None:
    first = inject(pod, settings(), "pod-1")
    assert first is not None
    changed = with_defaults(patched(pod, first.patch))
    changed["spec"]["initContainers"].insert(
        data.draw(st.integers(0, len(order(changed)))), {"name": "late", "image": "late:1"}
    )
    for entry in [*changed["spec"]["initContainers"], *changed["spec"]["containers"]]:
        if data.draw(st.booleans()):
            entry.setdefault("env", []).insert(0, {"name": "CLUSTER", "value": "blue"})
    theirs = [name for name in order(changed) if name not in OURS]
    second = inject(changed, settings(), "pod-2")
    assert second is not None
    twice = patched(changed, second.patch)
    assert order(twice)[: len(theirs)] == theirs
    assert tuple(order(twice)[len(theirs) :]) == (OURS if first.mode == "transparent" else OURS[:1])
    assert invalid(twice, "1.37") == []
    third = inject(with_defaults(twice), settings(), "pod-3")
    assert third is not None
    assert third.patch == []


@given(pods(), st.lists(st.sampled_from(sorted(DANGERS)), min_size=1, max_size=4, unique=True))
def test_a_pod_with_dangers_is_refused_for_each_of_them(pod: dict[str, Any], dangers: list[str]) -> None:
    for danger in dangers:
        DANGERS[danger](pod)
    try:
        inject(pod, settings(), "pod-1")
    except RefusalError as error:
        assert {problem.reason for problem in error.problems} == set(dangers)
        assert all(len(problem.text) > 20 for problem in error.problems)
    else:
        raise AssertionError(f"injected with {dangers}")


values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-2, 2), st.text(max_size=3)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.sampled_from(["name", "a/b", "c~d", "", "e"]), inner)
    ),
    max_leaves=12,
)


@given(values, values)
def test_a_patch_turns_the_old_value_into_the_new_one(old: Any, new: Any) -> None:
    def as_json(value: Any) -> str:  # in which 1 and true differ
        return json.dumps(value, sort_keys=True)

    patch = json_patch({"at": old}, {"at": new})
    assert as_json(jsonpatch.apply_patch({"at": copy.deepcopy(old)}, patch)) == as_json({"at": new})
    assert (patch == []) == (as_json(old) == as_json(new))


@given(st.integers(0, 10**6), st.sampled_from([("m", 1000), ("Ki", None), ("k", None), ("", None)]))
def test_amounts_are_equal_however_they_are_written(count: int, unit: tuple[str, int | None]) -> None:
    suffix, parts = unit
    if parts is not None:
        assert same_amount(f"{count * parts}{suffix}", count)
    assert same_amount(f"{count * 1024}Ki", f"{count}Mi")
    assert quantity(f"{count}k") == count * 1000
    assert not same_amount(f"{count}Mi", f"{count + 1}Mi")
    assert not same_amount("Mi", "Mi")
