"""`tito-sidecar inject-webhook` as a process, over TLS, with reviews as an API server sends them."""

from __future__ import annotations

import asyncio
import os
import re
import ssl
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import orjson
import pytest
import yaml

from sidecar.sessions.keys import session_of
from tests.injection.certificates import make_certificate, mount_secret
from tests.injection.kubernetes import VERSIONS, invalid, patch_of, patched, review, with_defaults
from tests.injection.pods import ENGINE, SECRET, agent_pod, container, env_of

SETTINGS = {"image": "registry.example/tito-sidecar:0.1.0", "engine_url": ENGINE, "tls_reload_seconds": 0.05}


class Webhook:
    """The process; `certificates` are what its clients trust."""

    def __init__(self, folder: Path) -> None:
        self.tls = folder / "tls"
        self.config = folder / "webhook.yaml"
        self.certificates = b""
        self.url = ""
        self.process: asyncio.subprocess.Process
        self.tls.mkdir()
        self.config.write_text(yaml.safe_dump(SETTINGS))

    def mount(self, content: tuple[bytes, bytes]) -> None:
        self.certificates = content[0]
        mount_secret(self.tls, content)

    async def start(self) -> None:
        arguments = ["--listen", "127.0.0.1:0", "--config", str(self.config)]
        arguments += ["--tls-cert", str(self.tls / "tls.crt"), "--tls-key", str(self.tls / "tls.key")]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TITO_")}
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "sidecar.cli",
            "inject-webhook",
            *arguments,
            env={**environment, "TITO_SESSION_SECRET": SECRET},
            stderr=asyncio.subprocess.PIPE,
        )
        found = await self.line(r"injecting on (https://\S+)/mutate")
        self.url = found.group(1)

    async def line(self, pattern: str) -> re.Match[str]:
        """The next line of the log that matches."""
        assert self.process.stderr is not None
        async with asyncio.timeout(60):
            seen = []
            while line := (await self.process.stderr.readline()).decode():
                seen.append(line)
                if found := re.search(pattern, line):
                    return found
        raise AssertionError("".join(seen))

    def client(self) -> httpx.AsyncClient:
        trust = ssl.create_default_context(cadata=self.certificates.decode())
        return httpx.AsyncClient(base_url=self.url, verify=trust, timeout=30, trust_env=False)


@pytest.fixture
async def webhook(tmp_path: Path) -> AsyncIterator[Webhook]:
    made = Webhook(tmp_path)
    made.mount(make_certificate("first"))
    await made.start()
    yield made
    if made.process.returncode is None:
        made.process.terminate()
    async with asyncio.timeout(30):
        assert await made.process.wait() == 0


async def test_reviews_over_tls_are_answered_with_patches_that_validate(webhook: Webhook) -> None:
    async with webhook.client() as api_server:
        for mode in ("base_url", "transparent"):
            pod = with_defaults(agent_pod({"tito.dev/mode": mode}))
            reply = (await api_server.post("/mutate?timeout=5s", content=review(pod, uid=f"uid-{mode}"))).json()
            assert reply["response"]["uid"] == f"uid-{mode}"
            once = patched(pod, patch_of(reply))
            for version in VERSIONS:
                assert invalid(once, version) == []
            key = env_of(once, "agent").get("OPENAI_API_KEY")
            assert mode == "transparent" or session_of(key or "", SECRET.encode()) == "rollout-7"
            again = await api_server.post("/mutate", content=review(with_defaults(once), uid="again"))
            assert patch_of(again.json()) == []
            assert "warnings" not in again.json()["response"]
        late = with_defaults(once)
        late["spec"]["initContainers"].append({"name": "late", "image": "late:1"})
        patch = patch_of((await api_server.post("/mutate", content=review(late))).json())
        names = [entry["name"] for entry in patched(late, patch)["spec"]["initContainers"]]
        assert names == ["clone", "late", "tito-sidecar", "tito-redirect"]

        refused = (await api_server.post("/mutate", content=review(agent_pod(hostPID=True)))).json()["response"]
        assert refused["allowed"] is False
        assert refused["status"]["code"] == 403
        assert "spec.hostPID is true" in refused["status"]["message"]
        assert "patch" not in refused

        nameless = agent_pod()
        del nameless["metadata"]["annotations"]
        reply = (await api_server.post("/mutate", content=review(nameless, uid="abc"))).json()
        sidecar = env_of(patched(nameless, patch_of(reply)), "tito-sidecar")
        assert sidecar["TITO_SESSION_ID"] == "pod-abc"
        assert container(patched(nameless, patch_of(reply)), "tito-sidecar")["image"] == SETTINGS["image"]
        assert reply["response"]["auditAnnotations"] == {"mode": "base_url", "session-id": "pod-abc"}

        for other in (
            {"operation": "UPDATE"},
            {"operation": "DELETE", "object": None},
            {"subResource": "ephemeralcontainers"},
            {"resource": {"group": "apps", "version": "v1", "resource": "deployments"}},
        ):
            answer = await api_server.post("/mutate", content=review(agent_pod(), **other))
            assert answer.json()["response"] == {"uid": "705ab4f5-6393-11e8-b7cc-42010a800002", "allowed": True}

        for body in (b"", b"{", b"[]", b"{}", review(agent_pod(), uid=""), b'{"kind": "AdmissionReview"}'):
            answer = await api_server.post("/mutate", content=body)
            assert answer.status_code == 400
            assert answer.json()["error"]
        large = await api_server.post("/mutate", content=b" " * (9 * 2**20))
        assert large.status_code == 413

        assert (await api_server.get("/health")).json() == {"status": "ok"}
        metrics = (await api_server.get("/metrics")).text
        assert 'tito_injection_reviews_total{mode="transparent",outcome="injected"} 2.0' in metrics
        assert 'tito_injection_reviews_total{mode="",outcome="refused"} 1.0' in metrics
        assert 'tito_injection_reviews_total{mode="",outcome="ignored"} 4.0' in metrics
        assert 'tito_injection_reviews_total{mode="",outcome="invalid"} 7.0' in metrics
        assert 'tito_injection_refusals_total{reason="host_pid"} 1.0' in metrics
        assert (await api_server.get("/mutate")).status_code == 405
        assert (await api_server.get("/anything")).status_code == 404


async def test_a_renewed_certificate_is_served_and_a_broken_one_is_not(webhook: Webhook) -> None:
    async with webhook.client() as api_server:  # an open connection lives through all of it
        assert (await api_server.get("/health")).status_code == 200
        first = webhook.certificates
        webhook.mount(make_certificate("second"))
        await webhook.line("certificate loaded")
        assert await served_subject(webhook) == "second"
        with pytest.raises(httpx.ConnectError):
            stale = ssl.create_default_context(cadata=first.decode())
            async with httpx.AsyncClient(verify=stale, trust_env=False) as old:
                await old.get(f"{webhook.url}/health")
        good = webhook.certificates
        webhook.mount((make_certificate("third")[0], make_certificate("fourth")[1]))
        await webhook.line("the former certificate serves on: --tls-cert")
        webhook.certificates = good
        assert await served_subject(webhook) == "second"
        metrics = (await api_server.get("/metrics")).text
        assert 'tito_injection_certificate_reloads_total{result="loaded"} 1.0' in metrics
        assert 'tito_injection_certificate_reloads_total{result="failed"} 1.0' in metrics
        webhook.mount(make_certificate("fifth"))
        await webhook.line("certificate loaded")
        assert await served_subject(webhook) == "fifth"


async def served_subject(webhook: Webhook) -> str:
    """The common name of the certificate that a new connection is shown, checked as API servers check it."""
    trust = ssl.create_default_context(cadata=webhook.certificates.decode())
    host, port = webhook.url.removeprefix("https://").split(":")
    async with asyncio.timeout(30):
        _, writer = await asyncio.open_connection(host, int(port), ssl=trust, server_hostname="webhook.tito.svc")
        found = writer.get_extra_info("peercert")["subject"][0][0][1]
        writer.close()
        await writer.wait_closed()
    return str(found)


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1:DeprecationWarning")
async def test_old_tls_is_refused(webhook: Webhook) -> None:
    context = ssl.create_default_context(cadata=webhook.certificates.decode())
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    host, port = webhook.url.removeprefix("https://").split(":")
    with pytest.raises(ssl.SSLError):
        await asyncio.open_connection(host, int(port), ssl=context)


async def test_many_reviews_at_once_are_all_answered(webhook: Webhook) -> None:
    async with webhook.client() as api_server:
        bodies = [
            review(agent_pod({"tito.dev/session-id": f"s-{number}"}), uid=str(number)) for number in range(200)
        ]
        replies = await asyncio.gather(*(api_server.post("/mutate", content=body) for body in bodies))
    for number, reply in enumerate(replies):
        body = orjson.loads(reply.content)
        assert body["response"]["uid"] == str(number)
        assert body["response"]["auditAnnotations"]["session-id"] == f"s-{number}"
