"""Every command and every Python block of the README does what it says."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from pathlib import Path

import httpx
import pytest

from sidecar.intercept.hosts import DEFAULT_HOSTS
from tests.fake_sglang import FakeSGLang, Reply
from tests.support.running import Running

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
COMMANDS = [line for block in re.findall(r"```bash\n(.*?)```", README, re.S) for line in block.splitlines()]
KNOWN = {
    "make demo": "tests/test_demo.py runs what it runs",
    "make test": "runs this test",
    "tito-sidecar check-template PATH_OR_HUB_ID": "tests/test_check_template.py",
    "tito-sidecar serve --engine-url http://127.0.0.1:30000": "below",
    "tito-sidecar serve --engine-url http://127.0.0.1:30000 --intercept regular@8080": "below",
    "HTTPS_PROXY=http://127.0.0.1:8080 SSL_CERT_FILE=$HOME/.local/state/tito-sidecar/ca/ca-bundle.pem python agent.py":  # noqa: E501
        "below",
}  # fmt: skip


def test_every_command_of_the_readme_is_known_to_a_test() -> None:
    assert set(COMMANDS) == set(KNOWN)


def test_make_knows_the_targets_that_the_readme_names() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(r"^demo: .*\n\t.*tito-sidecar demo$", makefile, re.M)
    assert re.search(r"^test: .*\n\t.*pytest", makefile, re.M)
    assert "make test" in (ROOT / ".ci" / "run").read_text()


@pytest.mark.timeout(120)
async def test_serve_and_the_intercepted_agent_run_as_the_readme_says(engine: FakeSGLang, tmp_path: Path) -> None:
    engine.replies.append(Reply(text="From the engine."))
    home = tmp_path / "home"
    home.mkdir()
    command = next(line for line in COMMANDS if "--intercept" in line)
    command = command.replace("http://127.0.0.1:30000", engine.url).replace("regular@8080", "regular@0")
    arguments = [*command.split()[1:], "--listen", "127.0.0.1:0", "--control-listen", "127.0.0.1:0"]
    environment = {"HOME": str(home), "PATH": os.environ["PATH"]}
    serving = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "sidecar.cli", *arguments, cwd=ROOT, env=environment, stderr=asyncio.subprocess.PIPE
    )
    assert serving.stderr is not None
    try:
        said = ""
        while "store:" not in said:
            line = await asyncio.wait_for(serving.stderr.readline(), 60)
            assert line, said
            said += line.decode()
        proxy = re.search(r"HTTPS_PROXY=(\S+)", said)
        assert proxy is not None, said
        bundle = home / ".local/state/tito-sidecar/ca/ca-bundle.pem"
        assert bundle.is_file()
        agent = (
            "from openai import OpenAI\n"
            "c = OpenAI(api_key='sk-any', max_retries=0).chat.completions\n"
            "print(c.create(model='m', messages=[{'role': 'user', 'content': 'hi'}]).choices[0].message.content)"
        )
        shown = await asyncio.create_subprocess_exec(
            sys.executable, "-c", agent, stdout=asyncio.subprocess.PIPE,
            env={**environment, "HTTPS_PROXY": proxy.group(1), "SSL_CERT_FILE": str(bundle)},
        )  # fmt: skip
        output, _ = await asyncio.wait_for(shown.communicate(), 60)
        assert output.decode().strip() == "From the engine."
    finally:
        serving.send_signal(signal.SIGTERM)
        await asyncio.wait_for(serving.communicate(), 30)
    assert serving.returncode == 0


async def test_the_readme_s_python_reads_what_trains(sidecar: Running) -> None:
    block = next(b for b in re.findall(r"```python\n(.*?)```", README, re.S) if "ControlClient" in b)
    sidecar.engine.replies.append(Reply(text="An answer."))

    def run_agent(base_url: str, api_key: str) -> None:
        with httpx.Client(base_url=base_url, headers={"Authorization": f"Bearer {api_key}"}, timeout=30) as client:
            body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
            client.post("chat/completions", json=body).raise_for_status()

    from sidecar.demo.sample import DemoSample

    names = {
        "token": sidecar.sidecar.control_token,
        "run_agent": run_agent,
        "template_sample": DemoSample(index=3, group_index=1, prompt="hi"),
        "args": None,
    }
    code = block.replace("http://127.0.0.1:8801", sidecar.sidecar.control.url)
    await asyncio.to_thread(exec, code, names)
    [sample] = names["samples"]
    assert sample.reward == 1.0
    assert sum(sample.loss_mask) == len(sidecar.engine.requests[0].output_ids)


def test_the_readme_names_hosts_that_are_intercepted_by_default() -> None:
    assert "api.openai.com" in DEFAULT_HOSTS
