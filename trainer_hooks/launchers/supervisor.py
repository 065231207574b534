"""A small program between the trainer and an agent: when the agent is to end, all of its processes end.

    python -I -S supervisor.py GRACE_SECONDS UID GID -- COMMAND...     (UID and GID -1: as they are)

Promises that nothing the agent started outlives it: not when it ends by itself, not when the trainer asks
(SIGTERM, or end of file on standard input), and not when the trainer itself dies, which closes standard input.
That holds for processes that left their process group or lost their parents, too: this program adopts them.
Exits with the agent's exit code, 128 + signal, or 127 where the command cannot be started. Needs Linux. One
thread; imports nothing but the standard library, to start fast.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

_ADOPT = 36  # PR_SET_CHILD_SUBREAPER of Linux's prctl
_LAST_SECONDS = 5.0
"""How long killed processes may take to vanish: only one that hangs in the kernel takes longer."""


def main(arguments: list[str]) -> int:
    """Run the command to its end, or until told to stop."""
    grace, uid, gid = float(arguments[0]), int(arguments[1]), int(arguments[2])
    command = arguments[4:]
    _adopt_orphans()
    wake, stopped = _wake_on_signals()
    try:
        agent = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            user=None if uid < 0 else uid,
            group=None if gid < 0 else gid,
            extra_groups=None if uid < 0 else [],
        )
    except (OSError, subprocess.SubprocessError) as error:
        print(f"cannot start {command[0]!r}: {error}", file=sys.stderr)
        return 127
    if not _wait(agent.pid, wake, stopped):
        _signal_group(agent.pid, signal.SIGTERM)
        _wait(agent.pid, wake, stopped, seconds=grace)
    # The agent is not reaped yet, so that no other process can have the number of its group.
    _signal_group(agent.pid, signal.SIGKILL)
    return _exit_code(_kill_all(agent.pid))


def _adopt_orphans() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_ADOPT, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def _wake_on_signals() -> tuple[int, list[int]]:
    """A descriptor that becomes readable on signals, and the list of those that asked to stop."""
    wake, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    stopped: list[int] = []
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda caught, _: stopped.append(caught))
    return wake, stopped


def _wait(agent: int, wake: int, stopped: list[int], seconds: float | None = None) -> bool:
    """Whether the agent ended; False when told to stop first, or, with `seconds`, when they are over."""
    end = None if seconds is None else time.monotonic() + seconds
    while not _ended(agent):
        left = None if end is None else end - time.monotonic()
        if (left is None and stopped) or (left is not None and left <= 0):
            return False
        readable, _, _ = select.select([wake, 0] if end is None else [wake], [], [], left)
        if wake in readable:
            os.read(wake, 4096)
        if 0 in readable and not os.read(0, 4096):
            return False
    return True


def _ended(agent: int) -> bool:
    """Whether the agent ended, without reaping it; adopted processes that ended are reaped."""
    while (child := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
        if child.si_pid == agent:
            return True
        os.waitpid(child.si_pid, 0)
    return False


def _kill_all(agent: int) -> int | None:
    """Kill and reap until no child is left: children of a killed one become ours. The agent's wait status."""
    found = None
    end = time.monotonic() + _LAST_SECONDS
    while time.monotonic() < end:
        for pid in _children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            while (child := os.waitpid(-1, os.WNOHANG))[0]:
                found = child[1] if child[0] == agent else found
        except ChildProcessError:
            return found
        time.sleep(0.002)
    print("some of the agent's processes do not end", file=sys.stderr)
    return found


def _children() -> list[int]:
    """Processes whose parent is this one, ended or not."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):
            after_name = entry.read_text(errors="replace").rpartition(")")[2].split()
            if int(after_name[1]) == os.getpid():
                found.append(int(entry.parent.name))
    return found


def _signal_group(leader: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


def _exit_code(status: int | None) -> int:
    if status is None:
        return 128 + signal.SIGKILL
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
