"""What is injected is what the sidecar takes: variables are settings of `serve`, the key opens the session."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sidecar.config import Settings, load_settings
from sidecar.gateway.identity import IdentityRules, resolve_session
from sidecar.injection.container import CA_BUNDLE, INTERCEPT_PORT, SIDECAR_UID
from sidecar.injection.inject import inject
from sidecar.intercept.commands import redirect_init
from sidecar.intercept.spec import parse_specs
from tests.injection.kubernetes import expanded, patched
from tests.injection.pods import ENGINE, SECRET, agent_pod, container, env_of, injected, settings
from trainer_hooks.launchers.agent_task import AgentTask
from trainer_hooks.launchers.job_manifest import build_job

KEYS = {
    "engine-api-key": "sk-engine",
    "engine-admin-key": "sk-admin",
    "control-token": "token",
    "session-secret": SECRET,
    "store-url": "postgresql://tito:password@db:5432/tito",
}


def settings_in(pod: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Settings of `serve` in the sidecar's container, its Secret read."""
    for name in [name for name in os.environ if name.startswith("TITO_")]:
        monkeypatch.delenv(name)
    sidecar = container(pod, "tito-sidecar")
    assert sidecar["args"] == ["serve"]
    for entry in sidecar["env"]:
        value = entry.get("value")
        monkeypatch.setenv(entry["name"], value or KEYS[entry["valueFrom"]["secretKeyRef"]["key"]])
    known = {f"TITO_{name.upper()}" for name in Settings.model_fields} | {"HF_HOME"}
    assert {entry["name"] for entry in sidecar["env"]} <= known
    return load_settings({})


@pytest.mark.parametrize("mode", ["base_url", "transparent"])
def test_the_containers_variables_are_settings_of_serve(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = '{"context_window": 32768, "sampling_pin": "temperature=1.0,top_p=1.0", "max_body": "16MiB"}'
    pod = injected(agent_pod({"tito.dev/mode": mode, "tito.dev/settings": given}))
    settings = settings_in(pod, monkeypatch)
    assert settings.engine_url == ENGINE
    assert (settings.engine_api_key, settings.engine_admin_key) == ("sk-engine", "sk-admin")
    assert settings.control_token == "token"
    assert settings.store == KEYS["store-url"]
    assert settings.session_id == "rollout-7"
    assert settings.data_auth == "session-key"
    assert settings.context_window == 32768
    assert settings.sampling_pin == {"temperature": 1.0, "top_p": 1.0}
    assert settings.max_body == 16 * 2**20
    assert len(parse_specs(settings.intercept)) == (mode == "transparent")
    assert str(settings.ca_bundle) == (CA_BUNDLE if mode == "transparent" else "None")


def test_an_ephemeral_store_is_sqlite_in_the_pods_volume(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_in(injected(agent_pod({"tito.dev/ephemeral-store": "true"})), monkeypatch)
    assert settings.store == "sqlite:////var/lib/tito-sidecar/tito.db"


def test_the_agents_key_opens_its_session_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    pod = injected(agent_pod())
    settings = settings_in(pod, monkeypatch)
    assert settings.session_secret is not None
    rules = IdentityRules(settings.session_secret.encode(), keys_required=True, fallback=settings.session_id)
    env = env_of(pod, "agent")
    bearer = {"authorization": f"Bearer {env['OPENAI_API_KEY']}"}
    assert resolve_session(rules, bearer, None, None) == "rollout-7"
    assert resolve_session(rules, {"x-api-key": env["ANTHROPIC_API_KEY"]}, None, None) == "rollout-7"
    with pytest.raises(Exception, match="another session"):
        resolve_session(rules, {**bearer, "x-session-id": "rollout-8"}, None, None)


def test_a_pod_of_the_trainers_own_launcher_is_injected(tmp_path: Path) -> None:
    given = {"session_id": "s$1", "instance_id": "task-7", "prompt": "Do $(it).", "metadata": {}}
    urls = {"base_url": "http://gateway/v1", "anthropic_base_url": "http://gateway", "api_key": "of the gateway"}
    task = AgentTask(**given, **urls, scratch=tmp_path, timeout_seconds=60)
    agent = {"name": "agent", "image": "agent:1", "command": ["agent"]}
    template = {"kind": "Job", "spec": {"template": {"spec": {"containers": [agent]}}}}
    pod = build_job(template, task, namespace="agents", inject=True)["spec"]["template"]
    injection = inject(pod, settings(), "pod-1")
    assert injection is not None
    assert injection.session_id == "s$1"
    assert not [text for text in injection.warnings if "gave way" in text]
    env = expanded(container(patched(pod, injection.patch), "agent")["env"])
    assert (env["TITO_SESSION_ID"], env["TITO_PROMPT"]) == ("s$1", "Do $(it).")


def test_the_redirect_is_for_the_ports_and_the_uid_that_are_injected() -> None:
    defaults = dict(zip(redirect_init.__annotations__, redirect_init.__defaults__ or (), strict=False))
    assert defaults["port"] == INTERCEPT_PORT
    assert defaults["uid"] == SIDECAR_UID
    assert defaults["control_port"] == 8801


def test_the_webhook_starts_without_the_model_stack() -> None:
    heavy = ("mitmproxy", "transformers", "tokenizers", "sqlalchemy", "numpy", "aiohttp")
    code = f"import sys, sidecar.cli, sidecar.injection.server; print([m for m in {heavy} if m in sys.modules])"
    root = Path(__file__).resolve().parents[2]
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert shown.stdout.strip() == "[]"
