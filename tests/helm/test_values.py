"""Values that would install something broken are refused, with words that say which and what to do."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helm.cases import BASE, CASES, SECRETS
from tests.helm.tools import HelmError, documents, only, render

BY_SCHEMA: dict[str, dict[str, Any]] = {
    "an unknown value": {"gatway": {"enabled": True}},
    "an unknown value in a group": {"webhook": {"replica": 3}},
    "an unknown setting": {"sidecar": {"settings": {"contxt_window": 3}}},
    "a setting that the chart sets": {"gateway": {"settings": {"listen": "0.0.0.0:1"}}},
    "a secret among the settings": {"sidecar": {"settings": {"engine_api_key": "k"}}},
    "a setting that is a list": {"sidecar": {"settings": {"intercept_hosts": ["a"]}}},
    "a mode that there is not": {"sidecar": {"mode": "reverse"}},
    "an engine without http": {"sidecar": {"engineUrl": "sglang:30000"}},
    "a store of another kind": {"secrets": {**SECRETS, "storeUrl": "sqlite:////tmp/x.db"}},
    "a short token": {"secrets": {**SECRETS, "controlToken": "short"}},
    "no replicas": {"gateway": {"replicas": 0}},
    "replicas as text": {"gateway": {"replicas": "2"}},
    "a timeout that the API server refuses": {"webhook": {"timeoutSeconds": 31}},
    "a failure policy that there is not": {"webhook": {"failurePolicy": "fail"}},
    "a certificate mode that there is not": {"webhook": {"certificate": {"mode": "self-signed"}}},
    "an image that moves": {"image": {"tag": "latest"}},
    "a digest that is none": {"image": {"digest": "sha256:abc"}},
    "a namespace that is none": {"secrets": {**SECRETS, "namespaces": ["Agents"]}},
    "a namespace twice": {"secrets": {**SECRETS, "namespaces": ["agents", "agents"]}},
    "a peer that is empty": {"networkPolicy": {"engine": [{}]}},
    "a peer that is none": {"networkPolicy": {"trainer": [{"cidr": "10.0.0.0/8"}]}},
    "a port beyond all": {"networkPolicy": {"storePort": 70000}},
    "a service account without a namespace": {
        "launcher": {"serviceAccounts": [{"name": "t"}], "namespaces": ["a"]}
    },
    "a size without a number": {"gateway": {"persistence": {"size": "big"}}},
}
BY_TEMPLATE: dict[str, tuple[dict[str, Any], str]] = {
    "no engine key": ({**BASE, "secrets": {**SECRETS, "engineApiKey": ""}}, "secrets.engineApiKey is empty"),
    "no store": ({**BASE, "secrets": {**SECRETS, "storeUrl": ""}}, "secrets.storeUrl is empty"),
    "no store for a gateway": (
        {
            "secrets": {**SECRETS, "storeUrl": ""},
            "sidecar": {"engineUrl": "http://e:1", "ephemeralStore": True},
            "gateway": {"enabled": True},
        },
        "secrets.storeUrl is empty",
    ),
    "a gateway without an engine": (
        {"secrets": SECRETS, "gateway": {"enabled": True}},
        "sidecar.engineUrl is empty",
    ),
    "GitOps with a generated certificate": ({**BASE, "gitOps": True}, "webhook.certificate.mode is generated"),
    "GitOps with a generated token": (
        {**BASE, "gitOps": True, "webhook": {"enabled": False}, "secrets": {**SECRETS, "controlToken": ""}},
        "secrets.controlToken is empty and gitOps is true",
    ),
    "GitOps with a generated secret": (
        {**BASE, "gitOps": True, "webhook": {"enabled": False}, "secrets": {**SECRETS, "sessionSecret": ""}},
        "secrets.sessionSecret is empty and gitOps is true",
    ),
    "an existing certificate that is not named": (
        {**BASE, "webhook": {"certificate": {"mode": "existing", "secretName": "tls"}}},
        "webhook.certificate.caBundle",
    ),
    "a launcher of nobody": ({**BASE, "launcher": {"namespaces": ["agents"]}}, "launcher needs both"),
}


@pytest.mark.parametrize("wrong", BY_SCHEMA)
def test_the_schema_refuses(wrong: str) -> None:
    values = {**BASE, **BY_SCHEMA[wrong]}
    with pytest.raises(HelmError, match="values don't meet the specifications"):
        render(values)


@pytest.mark.parametrize("wrong", BY_TEMPLATE)
def test_the_templates_refuse(wrong: str) -> None:
    values, said = BY_TEMPLATE[wrong]
    with pytest.raises(HelmError) as refusal:
        render(values)
    assert said in str(refusal.value)
    assert "store-password" not in str(refusal.value)


@pytest.mark.parametrize("case", ["gitops", "existing_certificate"])
def test_two_renders_under_gitops_are_equal(case: str) -> None:
    assert render(CASES[case]) == render(CASES[case])


def test_what_is_made_is_the_same_in_all_namespaces_and_new_with_each_install() -> None:
    values = {**BASE, "secrets": {**SECRETS, "controlToken": "", "sessionSecret": "", "namespaces": ["a", "b"]}}
    first, second = (
        [
            one["data"]
            for one in documents(render(values))
            if one["kind"] == "Secret" and "control-token" in one["data"]
        ]
        for _ in range(2)
    )
    assert len(first) == 3
    assert first[0] == first[1] == first[2]
    assert first[0]["control-token"] != first[0]["session-secret"]
    assert first[0]["session-secret"] != second[0]["session-secret"]


def test_the_made_certificate_is_for_the_webhooks_service_and_signed_by_what_is_registered() -> None:
    import base64

    from cryptography import x509

    found = documents(render(BASE))
    data = only(found, "Secret", "-tls")["data"]
    certificate, authority = (
        x509.load_pem_x509_certificate(base64.b64decode(data[k])) for k in ("tls.crt", "ca.crt")
    )
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    client = only(found, "MutatingWebhookConfiguration")["webhooks"][0]["clientConfig"]
    assert f"{client['service']['name']}.{client['service']['namespace']}.svc" in names.get_values_for_type(
        x509.DNSName
    )
    assert client["caBundle"] == data["ca.crt"]
    certificate.verify_directly_issued_by(authority)
