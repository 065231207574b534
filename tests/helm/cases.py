"""The matrix of values: each way to install the chart, and each switch at least once. Plain data."""

from __future__ import annotations

from typing import Any

STORE = "postgresql://tito:store-password@postgres.tito:5432/tito"
SECRETS: dict[str, Any] = {
    "engineApiKey": "the-engine-key",
    "engineAdminKey": "the-admin-key",
    "controlToken": "a-control-token-of-the-tests",
    "sessionSecret": "a-session-secret-of-the-tests",
    "storeUrl": STORE,
}
BASE: dict[str, Any] = {"secrets": SECRETS, "sidecar": {"engineUrl": "http://sglang.engine:30000"}}
RESOURCES = {"requests": {"cpu": "2", "memory": "4Gi"}, "limits": {"memory": "8Gi"}}
PLACED = {
    "nodeSelector": {"pool": "system"},
    "tolerations": [{"key": "pool", "operator": "Exists", "effect": "NoSchedule"}],
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}]
            }
        }
    },
    "priorityClassName": "system-cluster-critical",
    "podAnnotations": {"example.org/owner": "rl"},
    "resources": RESOURCES,
}

CASES: dict[str, dict[str, Any]] = {
    "injection": {**BASE, "secrets": {**SECRETS, "namespaces": ["agents", "more-agents"]}},
    "injection_alone": {
        "secrets": {"engineApiKey": "the-engine-key"},
        "sidecar": {"ephemeralStore": True, "mode": "transparent", "settings": {"context_window": 1048576}},
        "networkPolicy": {"enabled": False},
    },
    "gateway": {**BASE, "webhook": {"enabled": False}, "gateway": {"enabled": True}},
    "one_of_each": {
        **BASE,
        "gateway": {"enabled": True, "replicas": 1, "persistence": {"enabled": True}},
        "webhook": {"replicas": 1},
    },
    "gitops": {
        **BASE,
        "gitOps": True,
        "secrets": {"create": False, "name": "of-my-own"},
        "gateway": {"enabled": True},
        "webhook": {"certificate": {"mode": "certManager"}},
    },
    "existing_certificate": {
        **BASE,
        "gitOps": True,
        "webhook": {
            "failurePolicy": "Ignore",
            "namespaceLabels": {"rl": "yes"},
            "excludedNamespaces": ["monitoring"],
            "certificate": {"mode": "existing", "secretName": "my-tls", "caBundle": "Q0VSVElGSUNBVEU="},
        },
    },
    "everything": {
        "fullnameOverride": "rollouts",
        "image": {
            "repository": "registry.example/rl/tito-sidecar",
            "digest": "sha256:" + "0123456789abcdef" * 4,
            "pullPolicy": "Always",
            "pullSecrets": ["registry"],
        },
        "secrets": {**SECRETS, "namespaces": ["agents"]},
        "sidecar": {
            "engineUrl": "https://engine.example",
            "settings": {"context_window": 2097152, "partial_rollout": True, "sampling_pin": "temperature=1.0"},
            "resources": RESOURCES,
        },
        "webhook": {
            **PLACED,
            "replicas": 3,
            "timeoutSeconds": 10,
            "certificate": {"mode": "certManager", "issuerName": "corporate", "issuerKind": "ClusterIssuer"},
        },
        "gateway": {
            **PLACED,
            "enabled": True,
            "replicas": 5,
            "drainSeconds": 120,
            "settings": {"partial_rollout": False, "max_body": "16MiB"},
            "serviceType": "LoadBalancer",
            "serviceAnnotations": {"example.org/internal": "true"},
            "persistence": {"enabled": True, "size": "20Gi", "storageClass": "fast"},
        },
        "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}, "intervalSeconds": 15},
        "networkPolicy": {
            "injectedNamespaces": ["agents"],
            "engine": [{"ipBlock": {"cidr": "10.1.0.0/16"}}],
            "enginePort": 30000,
            "store": [{"podSelector": {"matchLabels": {"app": "postgres"}}}],
            "storePort": 6432,
            "apiServer": [{"ipBlock": {"cidr": "10.0.0.1/32"}}],
            "monitoring": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}],
            "trainer": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "training"}}}],
            "agents": [{"ipBlock": {"cidr": "10.2.0.0/16"}}],
            "dns": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}}],
            "extraEgress": [{"to": [{"ipBlock": {"cidr": "10.3.0.1/32"}}], "ports": [{"port": 443}]}],
        },
        "launcher": {
            "serviceAccounts": [{"name": "trainer", "namespace": "training"}],
            "namespaces": ["agents", "more-agents"],
        },
    },
}
