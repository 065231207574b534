"""What a pod gets: the sidecar, the agent's variables, the order. A later pass changes only what it must."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from sidecar.injection.inject import inject
from sidecar.injection.refusal import RefusalError
from sidecar.sessions.keys import session_of
from tests.injection.kubernetes import VERSIONS, expanded, invalid, patched, with_defaults
from tests.injection.pods import ENGINE, SECRET, agent_pod, container, env_of, injected, settings

TRANSPARENT = {"tito.dev/mode": "transparent"}
SESSION = "tito.dev/session-id"


def again(pod: dict[str, Any], **given: Any) -> list[dict[str, Any]]:
    injection = inject(pod, settings(**given), "pod-2")
    assert injection is not None
    assert injection.warnings == [] or not injection.patch
    return injection.patch


def names(pod: dict[str, Any]) -> list[str]:
    return [entry["name"] for entry in pod["spec"]["initContainers"]]


def test_a_pod_that_does_not_ask_is_left_alone() -> None:
    pod = agent_pod()
    for labels in ({}, {"tito.dev/inject": "false"}, None):
        pod["metadata"]["labels"] = labels
        assert inject(pod, settings(), "pod-1") is None


def test_the_pod_that_was_given_stays_as_it_was() -> None:
    pod = agent_pod(TRANSPARENT)
    before = copy.deepcopy(pod)
    injected(pod)
    assert pod == before


def test_base_url_mode_points_the_agent_at_its_own_session() -> None:
    pod = injected(agent_pod())
    env = env_of(pod, "agent")
    assert env["OPENAI_BASE_URL"] == env["OPENAI_API_BASE"] == "http://127.0.0.1:8800/v1"
    assert env["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:8800"
    assert env["OPENAI_API_KEY"] == env["ANTHROPIC_API_KEY"]
    assert session_of(env["OPENAI_API_KEY"], SECRET.encode()) == "rollout-7" == env["TITO_SESSION_ID"]
    assert env["TASK"] == "7"
    assert names(pod) == ["clone", "tito-sidecar"]
    assert env_of(pod, "tito-sidecar")["TITO_DATA_AUTH"] == "session-key"


def test_the_agents_own_values_give_way_and_it_is_told() -> None:
    own = [{"name": "OPENAI_API_KEY", "valueFrom": {"secretKeyRef": {"name": "openai", "key": "key"}}}]
    own += [{"name": "URL", "value": "$(OPENAI_BASE_URL)/x"}]
    pod = agent_pod(containers=[{"name": "agent", "image": "agent:1", "env": own}])
    injection = inject(pod, settings(), "pod-1")
    assert injection is not None
    (warning,) = [text for text in injection.warnings if "gave way" in text]
    assert "spec.containers['agent'].env OPENAI_API_KEY" in warning
    after = patched(pod, injection.patch)
    listed = [entry["name"] for entry in container(after, "agent")["env"]]
    assert listed.count("OPENAI_API_KEY") == 1
    assert listed.index("OPENAI_BASE_URL") < listed.index("URL"), "$(NAME) sees only what stands before it"


def test_the_key_of_the_engine_is_in_the_sidecar_alone() -> None:
    pod = injected(agent_pod(TRANSPARENT))
    for place in [*pod["spec"]["containers"], *pod["spec"]["initContainers"]]:
        refers = [entry["name"] for entry in place.get("env", []) if "valueFrom" in entry]
        expected = place["name"] == "tito-sidecar"
        assert ("TITO_ENGINE_API_KEY" in refers) is expected
    assert SECRET not in str(pod)


def test_the_sidecar_needs_the_engines_key_and_does_without_an_admin_key() -> None:
    entries = {entry["name"]: entry for entry in container(injected(agent_pod()), "tito-sidecar")["env"]}
    key = entries["TITO_ENGINE_API_KEY"]["valueFrom"]["secretKeyRef"]
    assert key == {"name": "tito-sidecar", "key": "engine-api-key"}, "not optional: without it nothing starts"
    assert entries["TITO_ENGINE_ADMIN_KEY"]["valueFrom"]["secretKeyRef"]["optional"] is True
    assert entries["TITO_STORE"]["valueFrom"]["secretKeyRef"]["key"] == "store-url"


def test_transparent_mode_redirects_after_everything_else_and_hardens_the_agent() -> None:
    pod = injected(agent_pod(TRANSPARENT))
    assert names(pod) == ["clone", "tito-sidecar", "tito-redirect"]
    security = container(pod, "agent")["securityContext"]
    assert security["allowPrivilegeEscalation"] is False
    assert set(security["capabilities"]["drop"]) == {"SETUID", "SETGID", "NET_RAW", "NET_ADMIN"}
    redirect = container(pod, "tito-redirect")
    assert redirect["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["NET_ADMIN", "NET_RAW"]}
    assert "restartPolicy" not in redirect
    env = env_of(pod, "agent")
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"):
        assert env[name] == "/etc/tito-ca/ca-bundle.pem"
    assert "OPENAI_BASE_URL" not in env


def test_the_keys_volume_of_the_ca_is_mounted_nowhere_but_in_the_sidecar() -> None:
    pod = injected(agent_pod(TRANSPARENT))
    mounts = {
        (place["name"], mount["name"]): mount
        for place in [*pod["spec"]["containers"], *pod["spec"]["initContainers"]]
        for mount in place.get("volumeMounts", [])
    }
    assert [place for place, volume in mounts if volume == "tito-ca"] == ["tito-sidecar"]
    assert mounts["agent", "tito-ca-bundle"]["readOnly"] is True
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    assert volumes["tito-ca"]["emptyDir"]["medium"] == "Memory"


def test_no_container_of_ours_gets_the_pods_service_account_token() -> None:
    pod = injected(agent_pod(TRANSPARENT))
    for name in ("tito-sidecar", "tito-redirect"):
        places = [mount["mountPath"] for mount in container(pod, name)["volumeMounts"]]
        assert "/var/run/secrets/kubernetes.io/serviceaccount" in places


def test_the_sidecar_has_no_right_that_it_does_not_need() -> None:
    for mode in ("base_url", "transparent"):
        security = container(injected(agent_pod({"tito.dev/mode": mode})), "tito-sidecar")["securityContext"]
        assert security == {
            "runAsUser": 1337,
            "runAsGroup": 1337,
            "runAsNonRoot": True,
            "readOnlyRootFilesystem": True,
            "privileged": False,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        }


def test_agents_cannot_read_the_sidecars_packets_in_either_mode() -> None:
    for mode in ("base_url", "transparent"):
        security = container(injected(agent_pod({"tito.dev/mode": mode})), "agent")["securityContext"]
        assert {"NET_RAW", "NET_ADMIN"} <= set(security["capabilities"]["drop"])


def test_an_agent_that_drops_all_stays_as_it_is() -> None:
    own = {"capabilities": {"drop": ["ALL"]}, "allowPrivilegeEscalation": False, "runAsUser": 1000}
    pod = agent_pod(TRANSPARENT, containers=[{"name": "agent", "image": "agent:1", "securityContext": own}])
    assert container(injected(pod), "agent")["securityContext"] == own


def test_only_the_annotated_containers_are_agents() -> None:
    two = [{"name": "agent", "image": "a"}, {"name": "judge", "image": "j"}, {"name": "database", "image": "d"}]
    pod = agent_pod({**TRANSPARENT, "tito.dev/containers": "agent, judge"}, containers=two)
    injection = inject(pod, settings(), "pod-1")
    assert injection is not None
    after = patched(pod, injection.patch)
    assert "SSL_CERT_FILE" in env_of(after, "judge")
    assert container(after, "database") == {"name": "database", "image": "d"}
    assert any("spec.containers['database']: not hardened" in text for text in injection.warnings)


def test_a_native_sidecar_of_the_users_own_can_be_an_agent() -> None:
    tool = {"name": "tool", "image": "t", "restartPolicy": "Always"}
    pod = injected(agent_pod({"tito.dev/containers": "agent,tool"}, initContainers=[tool]))
    assert "OPENAI_BASE_URL" in env_of(pod, "tool")
    assert names(pod) == ["tool", "tito-sidecar"]


def test_a_pod_without_a_session_gets_one_that_both_passes_share() -> None:
    pod = agent_pod()
    del pod["metadata"]["annotations"]
    after = injected(pod, new_session="pod-abc")
    assert after["metadata"]["annotations"][SESSION] == "pod-abc"
    assert again(after) == []
    assert env_of(after, "tito-sidecar")["TITO_SESSION_ID"] == "pod-abc"


def test_settings_reach_the_sidecar_as_serve_reads_them() -> None:
    given = '{"context_window": 32768, "record_token_versions": false, "sampling_pin": {"temperature": 1.0}}'
    pod = injected(agent_pod({"tito.dev/settings": given}), settings={"context_window": 4096, "match": "exact"})
    env = env_of(pod, "tito-sidecar")
    assert env["TITO_CONTEXT_WINDOW"] == "32768"
    assert env["TITO_RECORD_TOKEN_VERSIONS"] == "false"
    assert env["TITO_SAMPLING_PIN"] == "temperature=1.0"
    assert env["TITO_MATCH"] == "exact"
    assert env["TITO_ENGINE_URL"] == ENGINE


@pytest.mark.parametrize("session", ["a$$b", "$(TITO_CONTROL_TOKEN)", "$", "$$(TASK)$"])
@pytest.mark.parametrize("mode", ["base_url", "transparent"])
def test_what_kubernetes_reads_in_variables_arrives_as_it_was_given(session: str, mode: str) -> None:
    given = json.dumps({"volatile_pattern": ["^$(TITO_ENGINE_API_KEY)$$"]})
    pod = injected(agent_pod({SESSION: session, "tito.dev/mode": mode, "tito.dev/settings": given}))
    sidecar, agent = (expanded(container(pod, name)["env"]) for name in ("tito-sidecar", "agent"))
    assert sidecar["TITO_SESSION_ID"] == agent["TITO_SESSION_ID"] == pod["metadata"]["annotations"][SESSION]
    assert sidecar["TITO_VOLATILE_PATTERN"] == "^$(TITO_ENGINE_API_KEY)$$"
    assert again(pod) == []


def test_an_ephemeral_store_holds_the_pod_until_it_is_read() -> None:
    pod = injected(agent_pod({"tito.dev/ephemeral-store": "true"}))
    sidecar = container(pod, "tito-sidecar")
    assert sidecar["lifecycle"]["preStop"]["exec"]["command"][:3] == ["tito-sidecar", "sessions", "wait-drained"]
    assert "TITO_STORE" not in {entry["name"] for entry in sidecar["env"]}
    assert pod["spec"]["terminationGracePeriodSeconds"] == 600
    longer = injected(agent_pod({"tito.dev/ephemeral-store": "true"}, terminationGracePeriodSeconds=900))
    assert longer["spec"]["terminationGracePeriodSeconds"] == 900


def test_a_pod_that_would_end_before_the_sidecar_has_written_gets_longer() -> None:
    pod = agent_pod(terminationGracePeriodSeconds=0)
    injection = inject(pod, settings(), "pod-1")
    assert injection is not None
    assert patched(pod, injection.patch)["spec"]["terminationGracePeriodSeconds"] == 30
    assert any("terminationGracePeriodSeconds was 0" in text for text in injection.warnings)
    assert "terminationGracePeriodSeconds" not in injected(agent_pod())["spec"], "30 is Kubernetes' own default"


@pytest.mark.parametrize("mode", ["base_url", "transparent"])
@pytest.mark.parametrize("ephemeral", ["true", "false"])
def test_a_second_pass_over_what_the_api_server_made_of_it_is_empty(mode: str, ephemeral: str) -> None:
    given = {"resources": {"requests": {"cpu": "0.25", "memory": "1024Mi"}, "limits": {"memory": "2048Mi"}}}
    pod = with_defaults(agent_pod({"tito.dev/mode": mode, "tito.dev/ephemeral-store": ephemeral}))
    once = injected(pod, **given)
    assert again(once, **given) == []
    assert again(with_defaults(once), **given) == []


def test_an_init_container_that_came_later_is_moved_before_the_sidecar() -> None:
    once = injected(agent_pod(TRANSPARENT))
    once["spec"]["initContainers"].append({"name": "late", "image": "late:1"})
    twice = patched(once, again(once))
    assert names(twice) == ["clone", "late", "tito-sidecar", "tito-redirect"]
    assert again(twice) == []


def test_a_name_that_is_there_twice_is_left_to_the_api_server_which_refuses_it() -> None:
    twice = [{"name": "clone", "image": "git:1"}, {"name": "clone", "image": "git:2"}]
    assert injected(agent_pod(initContainers=twice))["spec"]["initContainers"][:2] == twice


def test_a_container_that_came_later_becomes_an_agents_too() -> None:
    once = injected(agent_pod())
    once["spec"]["containers"].append({"name": "late", "image": "late:1"})
    twice = patched(once, again(once))
    assert env_of(twice, "late") == {k: v for k, v in env_of(twice, "agent").items() if k != "TASK"}


def test_what_other_webhooks_add_to_every_container_stays() -> None:
    once = injected(agent_pod(TRANSPARENT))
    sidecar = container(once, "tito-sidecar")
    sidecar["env"].insert(0, {"name": "CLUSTER", "value": "blue"})
    sidecar["volumeMounts"].append({"name": "extra", "mountPath": "/extra"})
    sidecar["resources"]["limits"]["cpu"] = "2"
    twice = patched(once, again(once))
    found = container(twice, "tito-sidecar")
    assert {"name": "CLUSTER", "value": "blue"} in found["env"]
    assert {"name": "extra", "mountPath": "/extra"} in found["volumeMounts"]
    assert found["resources"]["limits"] == {"memory": "2Gi", "cpu": "2"}
    assert again(twice) == []


@pytest.mark.parametrize(
    "change",
    [
        {"command": ["sh"]},
        {"image": "evil:1"},
        {"envFrom": [{"secretRef": {"name": "other"}}]},
        {"lifecycle": {"postStart": {"exec": {"command": ["sh"]}}}},
        {"securityContext": {"privileged": True, "runAsUser": 0}},
        {"env": [{"name": "TITO_LISTEN", "value": "0.0.0.0:8800"}, {"name": "TITO_X", "value": "1"}]},
        {"startupProbe": {"exec": {"command": ["true"]}}},
        {"args": ["serve", "--data-auth", "none"]},
        {"restartPolicy": None},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_forged_sidecar_is_made_ours(change: dict[str, Any]) -> None:
    once = injected(agent_pod(TRANSPARENT))
    wanted = copy.deepcopy(container(once, "tito-sidecar"))
    container(once, "tito-sidecar").update(change)
    assert container(patched(once, again(once)), "tito-sidecar") == wanted


def test_a_forged_status_alone_does_not_leave_a_pod_without_its_sidecar() -> None:
    pod = agent_pod({"tito.dev/injected": "yes"})
    assert names(injected(pod)) == ["clone", "tito-sidecar"]


def test_a_change_of_mode_between_passes_leaves_nothing_of_the_former_one() -> None:
    once = injected(agent_pod(TRANSPARENT))
    once["metadata"]["annotations"]["tito.dev/mode"] = "base_url"
    container(once, "agent")["volumeMounts"] = []
    twice = patched(once, again(once))
    assert names(twice) == ["clone", "tito-sidecar"]
    assert not [volume for volume in twice["spec"]["volumes"] if volume["name"].startswith("tito-ca")]


def test_javas_own_options_stay_and_the_author_is_told() -> None:
    own = [{"name": "JAVA_TOOL_OPTIONS", "value": "-Xmx1g"}]
    pod = agent_pod(TRANSPARENT, containers=[{"name": "agent", "image": "a", "env": own}])
    injection = inject(pod, settings(), "pod-1")
    assert injection is not None
    after = patched(pod, injection.patch)
    assert env_of(after, "agent")["JAVA_TOOL_OPTIONS"] == "-Xmx1g"
    assert any("JAVA_TOOL_OPTIONS stays" in text and "trustStore" in text for text in injection.warnings)
    assert again(after) == []


def test_a_proxy_of_the_agents_own_that_would_get_its_calls_is_warned_of() -> None:
    def warnings(mode: str, **env: str) -> list[str]:
        own = [{"name": name, "value": value} for name, value in env.items()]
        pod = agent_pod({"tito.dev/mode": mode}, containers=[{"name": "agent", "image": "a", "env": own}])
        injection = inject(pod, settings(), "pod-1")
        assert injection is not None
        return [text for text in injection.warnings if "http_proxy" in text]

    (warning,) = warnings("base_url", http_proxy="http://proxy:3128")
    assert "add 127.0.0.1 to NO_PROXY" in warning
    assert not warnings("base_url", http_proxy="http://proxy:3128", NO_PROXY="localhost, 127.0.0.1")
    (warning,) = warnings("transparent", http_proxy="http://proxy:3128", NO_PROXY="127.0.0.1")
    assert "are refused" in warning


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("mode", ["base_url", "transparent"])
def test_the_injected_pod_validates_strictly(version: str, mode: str) -> None:
    for ephemeral in ("true", "false"):
        pod = agent_pod({"tito.dev/mode": mode, "tito.dev/ephemeral-store": ephemeral})
        assert invalid(pod, version) == []
        assert invalid(injected(pod), version) == []


def test_the_strict_schema_knows_a_version_without_native_sidecars() -> None:
    """Else the test above could not fail."""
    assert any("restartPolicy" in text for text in invalid(injected(agent_pod()), "1.27"))


def test_refusing_leaves_no_patch_behind() -> None:
    with pytest.raises(RefusalError):
        injected(agent_pod(hostPID=True))
