"""Two network namespaces of their own, joined by a cable: a pod, and the world outside it.

Promise: nothing of the machine's own network, mounts or files is changed, and all of it is gone when the processes
that hold the namespaces end. The pod sees its own `/etc/hosts` and `/etc/resolv.conf`, and the interpreter and
this project also where other users may not enter the folder they are in.
Concurrency: one `Network` per test module.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OPENAI, OTHER, ALLOWED, ENGINE, RESOLVER = (f"203.0.113.{last}" for last in (10, 20, 30, 40, 53))
OPENAI_6, OTHER_6 = "2001:db8::10", "2001:db8::20"
POD, POD_6 = "10.200.0.2", "fd00:200::2"
NAMES = {"api.openai.com": (OPENAI, OPENAI_6), "other.example": (OTHER, OTHER_6), "allowed.example": (ALLOWED,)}


def why_not() -> str | None:
    """The reason why namespaces cannot be made here, or None."""
    if os.geteuid() != 0:
        return "needs root, for network namespaces and iptables"
    for program, package in (
        ("ip", "iproute2"),
        ("iptables-restore", "iptables"),
        ("ip6tables-restore", "iptables"),
        ("setpriv", "util-linux"),
        ("curl", "curl"),
    ):
        if shutil.which(program) is None:
            return f"needs {program}: apt-get install {package}"
    rules = "iptables -t nat -A OUTPUT -p tcp -m owner --uid-owner 1 -m addrtype --dst-type LOCAL -j REDIRECT"
    tried = subprocess.run(["unshare", "-n", "-m", "sh", "-c", rules], capture_output=True, text=True, check=False)
    return f"needs namespaces and the kernel's nat: {tried.stderr.strip()}" if tried.returncode else None


@dataclass
class Namespace:
    """`pid` is the process that holds it."""

    pid: int

    def enter(self) -> list[str]:
        """The command prefix that runs the rest inside."""
        return ["nsenter", "-t", str(self.pid), "-n", "-m", "--"]

    def run(self, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command inside, as root."""
        return subprocess.run([*self.enter(), *command], capture_output=True, text=True, check=check, timeout=60)

    def shell(self, script: str) -> None:
        """Run a shell script inside, as root; it must succeed."""
        done = self.run("sh", "-euc", script, check=False)
        assert done.returncode == 0, done.stderr

    def call[T](self, function: Callable[[], T]) -> T:
        """Call a function in a thread of this process whose sockets are inside."""

        def inside() -> T:
            with Path(f"/proc/{self.pid}/ns/net").open() as namespace:
                os.setns(namespace.fileno(), os.CLONE_NEWNET)
            return function()

        with ThreadPoolExecutor(1) as pool:
            return pool.submit(inside).result()


@dataclass
class Network:
    """`folder` can be read by every user."""

    pod: Namespace
    world: Namespace
    folder: Path


@contextmanager
def network(folder: Path, needed: list[Path]) -> Iterator[Network]:
    """Make both; `needed` are the paths that other users have to reach in the pod."""
    with ExitStack() as stack:
        pod, world = (Namespace(stack.enter_context(_holder())) for _ in range(2))
        subprocess.run(
            f"ip link add out netns {pod.pid} type veth peer name pod netns {world.pid}".split(), check=True
        )
        world.shell(_world_script())
        pod.shell(_pod_script(folder, [Path(sys.base_prefix), ROOT, *needed]))
        yield Network(pod, world, folder)


@contextmanager
def _holder() -> Iterator[int]:
    process = subprocess.Popen(["unshare", "-n", "-m", "sleep", "infinity"])
    try:
        ours = Path("/proc/self/ns/net").stat().st_ino
        deadline = time.monotonic() + 10
        while Path(f"/proc/{process.pid}/ns/net").stat().st_ino == ours:
            assert time.monotonic() < deadline, "unshare made no namespace"
            time.sleep(0.01)
        yield process.pid
    finally:
        process.kill()
        process.wait()


def _world_script() -> str:
    addresses = [f"{address}/32" for address in (OPENAI, OTHER, ALLOWED, ENGINE, RESOLVER)]
    addresses += [f"{address}/128" for address in (OPENAI_6, OTHER_6)]
    return "\n".join(
        [
            "ip link set lo up",
            "ip link set pod up",
            "ip address add 10.200.0.1/24 dev pod",
            "ip address add fd00:200::1/64 dev pod nodad",
            *(f"ip address add {address} dev lo" for address in addresses),
        ]
    )


def _pod_script(folder: Path, needed: list[Path]) -> str:
    lines = [f"{address} {name}" for name, addresses in NAMES.items() for address in addresses]
    (folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *lines]) + "\n")
    (folder / "resolv.conf").write_text(f"nameserver {RESOLVER}\n")
    return "\n".join(
        [
            "ip link set lo up",
            "ip link set out up",
            f"ip address add {POD}/24 dev out",
            f"ip address add {POD_6}/64 dev out nodad",
            "ip route add default via 10.200.0.1",
            "ip -6 route add default via fd00:200::1",
            f"mount --bind {folder}/hosts /etc/hosts",
            f"mount --bind {folder}/resolv.conf $(readlink -f /etc/resolv.conf)",
            *_opened(folder, needed),
        ]
    )


def _opened(folder: Path, needed: list[Path]) -> list[str]:
    """Mounts that show what is needed below folders that others cannot enter, and hide the rest of those."""
    behind: dict[Path, list[Path]] = {}
    for path in dict.fromkeys(found.resolve() for found in needed):
        closed = [parent for parent in reversed(path.parents) if not parent.stat().st_mode & 0o001]
        if closed:
            behind.setdefault(closed[0], []).append(path)
    commands: list[str] = []
    for number, (gate, paths) in enumerate(behind.items()):
        stashes = [folder / f"stash-{number}-{index}" for index in range(len(paths))]
        for stash, path in zip(stashes, paths, strict=True):
            stash.mkdir()
            commands.append(f"mount --bind {path} {stash}")
        commands.append(f"mount -t tmpfs -o mode=755 tmpfs {gate}")
        for stash, path in zip(stashes, paths, strict=True):
            commands.append(f"mkdir -p -m 755 {path} && mount --bind {stash} {path}")
    return commands
