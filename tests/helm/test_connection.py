"""What `helm test` runs passes in front of a running gateway and webhook, and fails in front of broken ones."""

from __future__ import annotations

import asyncio
import base64
import socket
import sys
from pathlib import Path

import pytest

from tests.fake_sglang import FakeSGLang
from tests.helm.cases import CASES, SECRETS
from tests.helm.tools import CHART, documents, only, render
from tests.support.running import running_sidecar

TEST = (CHART / "files" / "connection_test.py").read_text()


async def _run(script: str, environment: dict[str, str]) -> tuple[int | None, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        script,
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await asyncio.wait_for(process.communicate(), 60)
    return process.returncode, output.decode()


async def test_it_passes_at_a_gateway_and_notices_an_open_one(engine: FakeSGLang, tmp_path: Path) -> None:
    for auth, code in (("session-key", 0), ("none", 1)):
        changes = {"data_auth": auth, "session_secret": SECRETS["sessionSecret"]}
        async with running_sidecar(engine, tmp_path / auth, **changes) as running:
            environment = {
                "GATEWAY_URL": running.sidecar.gateway.url,
                "CONTROL_URL": running.sidecar.control.url,
                "CONTROL_TOKEN": running.sidecar.control_token,
            }
            returned, output = await _run(TEST, environment)
            assert returned == code, output
            assert output.count("ok  ") == 4 - code
            if auth == "session-key":
                wrong, output = await _run(TEST, {**environment, "CONTROL_TOKEN": "another"})
                assert wrong == 1 and "FAIL the control plane answers" in output


async def test_it_fails_where_nothing_answers() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        environment = {"GATEWAY_URL": url, "CONTROL_URL": url, "CONTROL_TOKEN": "t"}
        returned, output = await _run(TEST, environment)
    assert returned == 1
    assert output.count("FAIL") == 4


@pytest.mark.timeout(120)
async def test_it_passes_at_the_webhook_with_the_certificate_and_settings_of_the_chart(tmp_path: Path) -> None:
    found = documents(render(CASES["injection"]))
    data = only(found, "Secret", "-tls")["data"]
    for name, content in data.items():
        (tmp_path / name).write_bytes(base64.b64decode(content))
    (tmp_path / "tls.key").chmod(0o600)
    (tmp_path / "webhook.yaml").write_text(only(found, "ConfigMap")["data"]["webhook.yaml"])
    [container] = only(found, "Deployment")["spec"]["template"]["spec"]["containers"]
    arguments = [
        argument.replace("/etc/tito/tls", str(tmp_path)).replace("/etc/tito/settings", str(tmp_path))
        for argument in container["args"]
    ]
    arguments[1] = "--listen=127.0.0.1:0"
    serving = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "sidecar.cli", *arguments,
        env={"TITO_SESSION_SECRET": SECRETS["sessionSecret"], "PATH": "/usr/bin"},
        cwd=CHART.parents[1],
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert serving.stderr is not None
    try:
        said = (await asyncio.wait_for(serving.stderr.readline(), 60)).decode()
        assert "injecting on" in said, said + (await serving.stderr.read()).decode()
        port = said.rpartition(":")[2].split("/")[0]
        [pod] = [one for one in found if one["kind"] == "Pod"]
        variables = {entry["name"]: entry.get("value") for entry in pod["spec"]["containers"][0]["env"]}
        host = variables["WEBHOOK_URL"].removeprefix("https://").removesuffix(":443")
        # the Service's name, which the certificate is for, as cluster DNS would give it
        resolve = (
            "import socket\nreal = socket.create_connection\n"
            f"socket.create_connection = lambda at, *more, **named: real(('127.0.0.1', {port}), *more, **named)\n"
        )
        environment = {"WEBHOOK_URL": f"https://{host}:{port}", "WEBHOOK_CA": str(tmp_path / "ca.crt")}
        [script] = pod["spec"]["containers"][0]["args"]
        returned, output = await _run(resolve + script, environment)
        assert returned == 0, output
        assert output.count("ok  ") == 3
        other = documents(render(CASES["injection"]))
        (tmp_path / "other.crt").write_bytes(base64.b64decode(only(other, "Secret", "-tls")["data"]["ca.crt"]))
        returned, output = await _run(resolve + script, {**environment, "WEBHOOK_CA": str(tmp_path / "other.crt")})
        assert returned == 1 and "CERTIFICATE_VERIFY_FAILED" in output
    finally:
        serving.terminate()
        await asyncio.wait_for(serving.communicate(), 30)
