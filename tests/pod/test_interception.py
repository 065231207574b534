"""A pod in real network namespaces: what unmodified clients get, and what an agent that wants out can reach."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pod.agent import CLIENTS
from tests.pod.conftest import SESSION, SIDECAR, Pod, capabilities, ended
from tests.pod.namespaces import ENGINE, OTHER, OTHER_6, POD, POD_6, RESOLVER
from tests.pod.world import TEXT

HERE = Path(__file__).parent
CURL_BODY = '{"model": "m", "messages": [{"role": "user", "content": "hello from curl"}]}'
ASK = ("-X", "POST", "https://api.openai.com/v1/chat/completions", "-d", CURL_BODY, "-H", "authorization: Bearer x")


def originals(pod: Pod) -> dict[str, int]:
    return {name: count for name, count in pod.tell_world("stats")["counted"].items() if name != "udp"}


@pytest.fixture(scope="module")
def go_agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path | None]:
    """`agent.go` as a program; None without Go."""
    if shutil.which("go") is None:
        yield None
        return
    folder = Path(tempfile.mkdtemp())  # pytest's own folders are closed to the agent's user
    folder.chmod(0o755)
    environment = {**os.environ, "CGO_ENABLED": "0", "GOCACHE": str(tmp_path_factory.mktemp("go-cache"))}
    try:
        subprocess.run(
            ["go", "build", "-o", str(folder / "agent"), str(HERE / "agent.go")], env=environment, check=True
        )
        yield folder / "agent"
    finally:
        shutil.rmtree(folder)


def start_clients(pod: Pod, go_agent: Path | None) -> dict[str, subprocess.Popen[str]]:
    """Every client that this machine has, each asking once."""
    commands = {name: (sys.executable, str(HERE / "agent.py"), name) for name in CLIENTS}
    commands["curl"] = ("curl", "-sS", "-m", "100", *ASK)
    if node := shutil.which("node"):
        commands |= {f"node {way}": (node, str(HERE / "agent.mjs"), way) for way in ("fetch", "https")}
    if shutil.which("javac"):  # a runtime alone cannot run a source file
        commands["java"] = ("java", "-XX:TieredStopAtLevel=1", str(HERE / "Agent.java"))
    if go_agent is not None:
        commands["go"] = (str(go_agent),)
    return {name: pod.start(*command) for name, command in commands.items()}


def finish(clients: dict[str, subprocess.Popen[str]]) -> None:
    """Each client got the engine's whole reply."""
    for name, process in clients.items():
        out, errors = process.communicate(timeout=120)
        assert "".join(TEXT.split()) in "".join(out.split()), f"{name}: {out} {errors[-1500:]}"


def test_every_unmodified_client_is_answered_by_the_engine_and_recorded(pod: Pod, go_agent: Path | None) -> None:
    clients = start_clients(pod, go_agent)
    finish(clients)
    steps = pod.control("GET", f"/session/{SESSION}")["steps"]
    assert [step["state"] for step in steps] == ["committed"] * len(clients)
    assert originals(pod) == {}, "no client reached the real host"
    missing = {"node fetch": "nodejs", "java": "default-jdk-headless", "go": "golang-go"}.items()
    if lacking := [package for name, package in missing if name not in clients]:
        pytest.skip(f"all other clients ran and were recorded; apt-get install {' '.join(lacking)}")


def test_a_pause_holds_every_client_and_the_resume_lets_them_go_on(pod: Pod, go_agent: Path | None) -> None:
    paused = pod.control("POST", "/v1/rollout/pause", {"reason": "weights", "lease_seconds": 100})
    clients = start_clients(pod, go_agent)
    while pod.control("GET", "/v1/rollout/pause_state")["suspended"] < len(clients):
        ended = [name for name, process in clients.items() if process.poll() is not None]
        assert not ended, "nobody is told of a pause"
        time.sleep(0.05)
    pod.control("POST", "/v1/rollout/resume", {"pause_id": paused["pause_id"]})
    finish(clients)


def test_both_families_are_intercepted(pod: Pod) -> None:
    for family in ("-4", "-6"):
        code, out = pod.curl(family, *ASK)
        assert (code, TEXT in out) == (0, True), (family, out)
    for url in (f"http://{OTHER}/", f"http://[{OTHER_6}]/"):
        code, out = pod.curl("-g", url)
        assert (code, out.endswith(" 403"), "host_not_allowed" in out) == (0, True, True), out
    assert originals(pod) == {}


def test_a_stream_is_real(pod: Pod) -> None:
    pod.tell_world("hold")
    agent = pod.start(sys.executable, str(HERE / "agent.py"), "openai-streaming")
    assert agent.stdout is not None
    first = agent.stdout.readline()
    assert first.strip() in TEXT and first.strip(), "it came while the engine holds the rest"
    pod.tell_world("release")
    rest, errors = agent.communicate(timeout=60)
    assert "".join((first + rest).split()) == "".join(TEXT.split()), errors


def test_another_host_is_refused_in_words_and_an_allowed_one_is_reached_undecrypted(pod: Pod) -> None:
    code, out = pod.curl("https://other.example/")
    assert (code, out.endswith(" 403"), "other.example:443" in out) == (0, True, True), out
    assert originals(pod) == {}
    code, out = pod.curl("--cacert", str(pod.public_ca), "https://allowed.example/")
    assert (code, out) == (0, "original 200"), "its own certificate was seen"
    code, _ = pod.curl("https://allowed.example/")
    assert code == 60, "the interceptor's certificate was not"
    # The name leads to the host that has it, wherever the agent says it is.
    code, out = pod.curl(
        "--connect-to",
        f"allowed.example:443:{ENGINE}:443",
        "--cacert",
        str(pod.public_ca),
        "-v",
        "https://allowed.example/",
    )
    assert (code, out) == (0, "original 200"), out


def test_the_engine_and_every_other_port_end_at_the_interceptor(pod: Pod) -> None:
    before = pod.tell_world("stats")
    for url in (f"http://{ENGINE}:30000/generate", f"http://{OTHER}:9999/", f"https://{ENGINE}:30000/x"):
        for host in ("api.openai.com", "allowed.example", "x"):
            code, out = pod.curl("-k", "-H", f"Host: {host}", "-H", "authorization: Bearer engine-key", url)
            assert (code, out.endswith(" 403"), "host_not_allowed" in out) == (0, True, True), (url, out)
    assert pod.tell_world("stats") == before


def test_the_control_plane_is_shut_on_every_address_of_the_pod_and_open_outside(pod: Pod) -> None:
    for host in ("127.0.0.1", POD, "[::1]", f"[{POD_6}]", "127.1.2.3"):
        code, out = pod.curl("-g", f"http://{host}:8801/health")
        assert code == 7, (host, out)
    assert pod.control("GET", "/health")


def test_udp_leaves_for_the_resolver_alone(pod: Pod) -> None:
    code = (
        "import socket, sys\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(1)\n"
        "try:\n s.sendto(b'x', (sys.argv[1], int(sys.argv[2]))); print(s.recv(9))\n"
        "except OSError as e: print('lost')"
    )
    for host, port, heard in (
        (RESOLVER, 53, "b'x'"),
        (OTHER, 53, "lost"),
        (RESOLVER, 443, "lost"),
        (OTHER, 443, "lost"),
        (OTHER, 9999, "lost"),
    ):
        _, out = pod.ask(sys.executable, "-c", code, host, str(port))
        assert out.strip() == heard, (host, port)


def test_a_server_of_the_agents_own_is_still_reached_from_outside_and_from_the_pod(pod: Pod) -> None:
    serve = (
        "import http.server, socketserver\n"
        "s = socketserver.TCPServer(('0.0.0.0', 7777), http.server.SimpleHTTPRequestHandler)\n"
        "print('up', flush=True); s.serve_forever()"
    )
    server = pod.start(sys.executable, "-c", serve)
    try:
        assert server.stdout is not None
        assert server.stdout.readline() == "up\n"
        done = pod.net.world.run(
            "curl", "-sS", "-m", "5", "-o", "/dev/null", "-w", "%{http_code}", f"http://{POD}:7777/"
        )
        assert done.stdout == "200"
        for host in ("127.0.0.1", POD):
            assert pod.curl("-o", "/dev/null", f"http://{host}:7777/") == (0, " 200")
    finally:
        server.kill()
        server.communicate()


ESCAPE = f"import os, urllib.request\nos.setuid({SIDECAR})\nprint(urllib.request.urlopen('http://{OTHER}/').read())"


def test_a_root_agent_that_may_change_its_uid_walks_past_the_redirect(pod: Pod) -> None:
    """Why the webhook drops SETUID in transparent mode."""
    code, out = pod.python(ESCAPE, uid=0, privileges=("--no-new-privs",))
    assert (code, out.strip()) == (0, "b'original'"), out


def test_a_root_agent_without_setuid_stays_redirected(pod: Pod) -> None:
    code, out = pod.python(
        ESCAPE, uid=0, privileges=capabilities("chown", "fowner", "dac_override", "net_bind_service")
    )
    assert code != 0
    assert "PermissionError" in out
    code, out = pod.curl(f"http://{OTHER}/", uid=0, privileges=capabilities("chown"))
    assert (code, out.endswith(" 403")) == (0, True), out


def test_a_set_uid_file_is_a_way_out_that_no_new_privileges_shuts(pod: Pod) -> None:
    """Why `allowPrivilegeEscalation: false` goes with it: a root agent can make such a file without SETUID."""
    program = pod.net.folder / "curl"
    shutil.copy(shutil.which("curl") or "", program)
    shutil.chown(program, SIDECAR, SIDECAR)
    program.chmod(0o6755)
    ask = (str(program), "-sS", "-m", "5", f"http://{OTHER}/")
    open_way = tuple(option for option in capabilities("chown") if option != "--no-new-privs")
    assert pod.ask(*ask, uid=0, privileges=open_way) == (0, "original")
    code, out = pod.ask(*ask, uid=0, privileges=capabilities("chown"))
    assert (code, "host_not_allowed" in out) == (0, True), out


def test_only_net_admin_takes_the_rules_out_and_only_net_raw_sends_past_them(pod: Pod) -> None:
    code, out = pod.redirect_init("--undo", privileges=capabilities("net_raw", "chown"))
    assert (code, "NET_ADMIN" in out) == (2, True), out
    raw = "import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)"
    assert pod.python(raw, uid=0, privileges=capabilities("net_raw"))[0] == 0
    assert "PermissionError" in pod.python(raw, uid=0, privileges=capabilities("chown"))[1]


def test_the_rules_can_be_written_twice_and_taken_out_twice(pod: Pod) -> None:
    def saved() -> str:
        text = "".join(pod.net.pod.run(program).stdout for program in ("iptables-save", "ip6tables-save"))
        return "\n".join(line.partition(" [")[0] for line in text.splitlines() if not line.startswith("#"))

    written = saved()
    assert pod.redirect_init()[0] == 0
    assert saved() == written
    try:
        assert pod.redirect_init("--port", "9")[0] == 0
        assert pod.curl(f"http://{OTHER}/")[0] == 7, "without an interceptor nothing leaves"
        for _ in range(2):
            code, out = pod.redirect_init("--undo")
            assert code == 0, out
            assert "TITO" not in saved()
        assert pod.curl(f"http://{OTHER}/") == (0, "original 200")
    finally:
        assert pod.redirect_init()[0] == 0
    assert saved() == written
    assert pod.curl(f"http://{OTHER}/")[1].endswith(" 403")


def test_only_the_sidecar_can_serve_the_control_planes_port(pod: Pod) -> None:
    """An agent that outlives the sidecar would get the trainer's token."""
    listening = "import socket; s = socket.create_server(('0.0.0.0', 9801)); print('up', flush=True); s.accept()"
    for port, reached in ((9802, True), (9801, False)):
        code, out = pod.redirect_init("--control-port", str(port))
        assert code == 0, out
        with ended(pod.start(sys.executable, "-c", listening)) as agent:
            assert agent.stdout is not None
            assert agent.stdout.readline() == "up\n"
            done = pod.net.world.run("curl", "-sS", "-m", "2", f"http://{POD}:9801/", check=False)
        assert ("timed out" not in done.stderr) == reached, done.stderr
    assert pod.redirect_init()[0] == 0
