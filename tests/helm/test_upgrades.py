"""What Helm made at the first install is kept by later ones: tokens, session keys and the webhook's certificate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.helm.cases import BASE, SECRETS
from tests.helm.fake_api import fake_api
from tests.helm.tools import documents, only, render

VALUES = {**BASE, "secrets": {**SECRETS, "controlToken": "", "sessionSecret": "", "namespaces": ["agents"]}}


def _secrets(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one for one in found if one["kind"] == "Secret"]


def _installed(one: dict[str, Any]) -> dict[str, Any]:
    """As helm leaves it in a cluster, where it looks at whose an object is."""
    owner = {"meta.helm.sh/release-name": "tito", "meta.helm.sh/release-namespace": "tito"}
    return {**one, "metadata": {**one["metadata"], "annotations": owner}}


def _render_in(cluster: list[dict[str, Any]], folder: Path, values: dict[str, Any]) -> list[dict[str, Any]]:
    with fake_api([_installed(one) for one in cluster]) as (url, asked):
        config = folder / "kubeconfig"
        config.write_text(
            f"apiVersion: v1\nkind: Config\nclusters: [{{name: c, cluster: {{server: '{url}'}}}}]\n"
            "contexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {}}]\n"
            "current-context: c\n"
        )
        flags = ("--dry-run=server", "--disable-openapi-validation")
        found = documents(render(values, *flags, environment={"KUBECONFIG": str(config)}))
        assert any("secrets" in path for path in asked)
        return found


def test_an_upgrade_keeps_what_was_made(tmp_path: Path) -> None:
    first = _render_in([], tmp_path, VALUES)
    made = _secrets(first)
    assert len(made) == 3
    second = _render_in(made, tmp_path, VALUES)
    assert _secrets(second) == made
    assert only(second, "MutatingWebhookConfiguration") == only(first, "MutatingWebhookConfiguration")


def test_a_new_namespace_gets_the_keys_of_the_others(tmp_path: Path) -> None:
    made = _secrets(_render_in([], tmp_path, VALUES))
    more = {**VALUES, "secrets": {**VALUES["secrets"], "namespaces": ["agents", "more"]}}
    found = [one for one in _secrets(_render_in(made, tmp_path, more)) if one["type"] == "Opaque"]
    assert {one["metadata"]["namespace"] for one in found} == {"tito", "agents", "more"}
    assert all(one["data"] == made[0]["data"] for one in found)


def test_a_value_that_is_given_wins_over_the_one_that_is_there(tmp_path: Path) -> None:
    made = _secrets(_render_in([], tmp_path, VALUES))
    given = {**VALUES, "secrets": {**VALUES["secrets"], "controlToken": SECRETS["controlToken"]}}
    found = _secrets(_render_in(made, tmp_path, given))
    assert found[0]["data"]["control-token"] != made[0]["data"]["control-token"]
    assert found[0]["data"]["session-secret"] == made[0]["data"]["session-secret"]
