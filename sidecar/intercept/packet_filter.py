"""`tito-sidecar redirect-init`: writes the redirect rules into this network namespace, or takes them out.

Promise: it succeeds only when every rule of both families is there. It can be run any number of times, also at
once: each table changes in one transaction. Where the kernel has no IPv6 at all, there is none to redirect.
Concurrency: blocking; iptables' own lock orders those that run at once.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from sidecar.intercept.redirect import CHAINS, Family, Redirect, removal

_PROGRAMS: dict[Family, str] = {4: "iptables", 6: "ip6tables"}
_WAIT = "10"
"""Seconds to wait for iptables' lock."""

Run = Callable[[list[str], str], subprocess.CompletedProcess[str]]


class RedirectError(Exception):
    """The rules could not be written; the text says which command failed and what it needs."""


def families() -> list[Family]:
    """The families this kernel has in this network namespace."""
    return [4, 6] if Path("/proc/self/net/if_inet6").exists() else [4]


def install(redirect: Redirect, present: list[Family], run: Run | None = None) -> None:
    """Write the rules. Raises RedirectError; what was written by then only closes more."""
    run = run or _run
    for family in present:
        for table in CHAINS:
            _restore(run, family, redirect.text(family, table, _jumps(run, family, table)))


def remove(present: list[Family], run: Run | None = None) -> None:
    """Take the rules out; nothing happens where there are none. Raises RedirectError."""
    run = run or _run
    for family in present:
        for table, chain in CHAINS.items():
            if f"-N {chain}" in _listed(run, family, table):
                _restore(run, family, removal(table, _jumps(run, family, table)))


def _jumps(run: Run, family: Family, table: str) -> int:
    return _listed(run, family, table).count(f"-A OUTPUT -j {CHAINS[table]}")


def _listed(run: Run, family: Family, table: str) -> list[str]:
    return _call(run, [_PROGRAMS[family], "-w", _WAIT, "-t", table, "-S"], "").splitlines()


def _restore(run: Run, family: Family, text: str) -> None:
    _call(run, [f"{_PROGRAMS[family]}-restore", "-w", _WAIT, "--noflush"], text)


def _call(run: Run, command: list[str], text: str) -> str:
    try:
        done = run(command, text)
    except FileNotFoundError:
        raise RedirectError(f"{command[0]} is not installed; the rules are written with it") from None
    if done.returncode:
        raise RedirectError(
            f"{' '.join(command)} failed: {done.stderr.strip() or f'exit code {done.returncode}'}; it needs root "
            "with NET_ADMIN and NET_RAW in the pod's network namespace, and the kernel's nf_tables or ip_tables "
            "with nat, owner, addrtype and conntrack"
        )
    return done.stdout


def _run(command: list[str], text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False)
