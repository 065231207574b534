"""The pod with its sidecar and its redirect rules, made once for all tests of this folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from sidecar.intercept.trust import agent_variables
from tests.intercept.public_ca import PublicCA
from tests.pod.namespaces import ENGINE, NAMES, POD, ROOT, Namespace, Network, network, why_not

AGENT, SIDECAR = 4000, 1337
TOKEN = "control-token-of-the-trainer"
SESSION = "the-pods-session"


@dataclass
class Pod:
    """`trust` are the agents' variables."""

    net: Network
    world: subprocess.Popen[str]
    trust: dict[str, str]
    public_ca: Path

    def start(self, *command: str, uid: int = AGENT, privileges: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        """Start a program in the pod as a user, without capabilities unless `privileges` (setpriv's) say so."""
        return subprocess.Popen(
            [*self.net.pod.enter(), *as_user(uid, *privileges), *command],
            env={"PATH": os.environ["PATH"], "HOME": str(self.net.folder), "PYTHONPATH": str(ROOT), **self.trust},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ask(self, *command: str, uid: int = AGENT, privileges: tuple[str, ...] = ()) -> tuple[int, str]:
        """Run a program in the pod; its exit code and what it printed."""
        process = self.start(*command, uid=uid, privileges=privileges)
        out, errors = process.communicate(timeout=60)
        return process.returncode, out if process.returncode == 0 else out + errors

    def curl(self, *arguments: str, **options: Any) -> tuple[int, str]:
        """What curl says, 5 s at most; statuses are printed behind the body."""
        shown = ("-sS", "-m", "5", "-w", " %{http_code}")
        return self.ask("curl", *shown, *arguments, **options)

    def python(self, code: str, **options: Any) -> tuple[int, str]:
        """Run Python code in the pod."""
        return self.ask(sys.executable, "-c", code, **options)

    def redirect_init(self, *arguments: str, privileges: tuple[str, ...] | None = None) -> tuple[int, str]:
        """`tito-sidecar redirect-init`, with what its container has unless `privileges` are given."""
        own = capabilities("net_admin", "net_raw")
        command = (sys.executable, "-m", "sidecar.cli", "redirect-init", *arguments)
        return self.ask(*command, uid=0, privileges=privileges or own)

    def tell_world(self, command: str) -> dict[str, dict[str, int]]:
        """Give the world a command; its counters."""
        assert self.world.stdin is not None
        assert self.world.stdout is not None
        self.world.stdin.write(command + "\n")
        self.world.stdin.flush()
        found: dict[str, dict[str, int]] = json.loads(self.world.stdout.readline())
        return found

    def control(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """A call of the trainer, who is outside."""

        def call() -> Any:
            headers = {"Authorization": f"Bearer {TOKEN}"}
            url = f"http://{POD}:8801{path}"
            reply = httpx.request(method, url, json=body, headers=headers, timeout=30, trust_env=False)
            assert reply.status_code == 200, reply.text
            return reply.json()

        return self.net.world.call(call)


def as_user(uid: int, *privileges: str) -> list[str]:
    """The command prefix that runs the rest as `uid`; root without more is root with all capabilities."""
    none = capabilities() if uid else ()
    who = [f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
    return ["setpriv", *who, *(privileges or none), "--"]


def capabilities(*kept: str) -> tuple[str, ...]:
    """setpriv's options for a process that can never have other capabilities than these."""
    kept_ones = ",".join(["-all", *(f"+{name}" for name in kept)])
    return (f"--inh-caps={kept_ones}", f"--bounding-set={kept_ones}", "--no-new-privs")


@contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """End a process with the block."""
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="session")
def pod(qwen3_dir: Path) -> Iterator[Pod]:
    """World, sidecar and rules, in the order of a real pod: the sidecar is ready before the rules are written."""
    if "TITO_POD" not in os.environ:
        pytest.skip("makes network namespaces as root: make test-pod")
    if reason := why_not():
        pytest.skip(reason)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tito-pod-")))
        folder.chmod(0o755)
        public_ca = PublicCA(folder / "public")
        net = stack.enter_context(network(folder, [qwen3_dir, Path(shutil.which("node") or "/usr/bin")]))
        world = stack.enter_context(ended(_start_world(net, public_ca, qwen3_dir)))
        log = stack.enter_context((folder / "sidecar.log").open("w+"))
        serving = stack.enter_context(ended(_start_sidecar(net, qwen3_dir, log)))
        _wait_until_ready(net.world, serving, folder / "sidecar.log")
        trust = agent_variables(folder / "shared" / "ca-bundle.pem")
        running = Pod(net, world, trust, public_ca.certificate)
        code, out = running.redirect_init()
        assert code == 0, out
        yield running


def _start_world(net: Network, public_ca: PublicCA, tokenizer: Path) -> subprocess.Popen[str]:
    pem = public_ca.server_file(*NAMES)
    world = subprocess.Popen(
        [*net.world.enter(), sys.executable, "-m", "tests.pod.world", str(pem), str(tokenizer), "engine-key"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert world.stdout is not None
    assert "ready" in world.stdout.readline(), "the world did not start"
    return world


def _start_sidecar(net: Network, tokenizer: Path, log: Any) -> subprocess.Popen[str]:
    for name in ("state", "shared"):
        (net.folder / name).mkdir()
        os.chown(net.folder / name, SIDECAR, SIDECAR)
    flags = {
        "engine-url": f"http://{ENGINE}:30000",
        "engine-api-key": "engine-key",
        "tokenizer": str(tokenizer),
        "intercept": "transparent@8081",
        "intercept-allow": "allowed.example",
        "control-listen": "0.0.0.0:8801",
        "control-token": TOKEN,
        "state-dir": str(net.folder / "state"),
        "ca-bundle": str(net.folder / "shared" / "ca-bundle.pem"),
        "session-id": SESSION,
    }
    given = [part for name, value in flags.items() for part in (f"--{name}", value)]
    command = [sys.executable, "-m", "sidecar.cli", "serve", *given]
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(net.folder / "state"),
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(ROOT),
    }
    prefix = [*net.pod.enter(), *as_user(SIDECAR)]
    return subprocess.Popen([*prefix, *command], cwd=ROOT, env=env, stdout=log, stderr=log, text=True)


def _wait_until_ready(world: Namespace, serving: subprocess.Popen[str], log: Path) -> None:
    deadline = time.monotonic() + 90

    def ready() -> bool:
        try:
            return httpx.get(f"http://{POD}:8801/ready", timeout=5, trust_env=False).status_code == 200
        except httpx.TransportError:
            return False

    while not world.call(ready):
        assert serving.poll() is None and time.monotonic() < deadline, log.read_text()[-3000:]
        time.sleep(0.2)
