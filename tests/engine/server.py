"""One real SGLang server as a child process.

Promise: `RealServer.start` returns when the server answers, on a free loopback port, or fails with the end of its
log; `stop` ends it and every process that it made, by process group, whatever state it is in. A server that dies is
noticed by `assert_alive`. Concurrency: blocking; used by one pytest session.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

import httpx

from tests.engine.subject import CONTEXT, RUNNING

START_SECONDS = 300.0
STOP_SECONDS = 20.0
PR_SET_PDEATHSIG = 1  # linux/prctl.h
FLAGS = (
    "--device", "cpu", "--dtype", "float32", "--attention-backend", "torch_native", "--sampling-backend", "pytorch",
    "--disable-cuda-graph", "--mem-fraction-static", "0.2", "--max-total-tokens", "16384",
    "--max-running-requests", str(RUNNING), "--context-length", str(CONTEXT), "--weight-version", "1",
    "--host", "127.0.0.1",
)  # fmt: skip
ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "SGLANG_USE_CPU_ENGINE": "1"}


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _die_with_parent() -> None:
    """In the child: end when the tests are killed and cannot stop it any more (its workers do the same)."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class RealServer:
    """`arguments` are added to the command line; `api_key` is what they make the server ask for."""

    def __init__(self, python: Path, model: Path, log: Path, arguments: list[str], api_key: str | None) -> None:
        self._command = [str(python), "-m", "sglang.launch_server", "--model-path", str(model), *FLAGS, *arguments]
        self._log = log
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""

    def start(self) -> None:
        """Until it answers; about half a minute."""
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        with self._log.open("wb") as log:
            self._process = self._spawn(port, log)
        try:
            self._wait_until_up(time.monotonic() + START_SECONDS)
        except BaseException:
            self.stop()
            raise

    def _spawn(self, port: int, log: IO[bytes]) -> subprocess.Popen[bytes]:
        own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return subprocess.Popen(
            [*self._command, "--port", str(port)],
            env={**own, **ENVIRONMENT},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # its workers are in its group, so one signal reaches them all
            preexec_fn=_die_with_parent,
        )

    def _wait_until_up(self, deadline: float) -> None:
        with httpx.Client(base_url=self.url, headers=self._headers, timeout=5) as client:
            while time.monotonic() < deadline:
                self.assert_alive()
                # /ready is true only after the warm-up request: before that a pause would catch that one
                with suppress(httpx.HTTPError):
                    if client.get("/ready").status_code == 200 and client.get("/model_info").status_code == 200:
                        return
                time.sleep(0.2)
        raise AssertionError(f"SGLang does not answer after {START_SECONDS:.0f} s:\n{self.log_end()}")

    def assert_alive(self) -> None:
        """Fails with the end of the log if the server has gone."""
        assert self._process is not None, "start() comes first"
        status = self._process.poll()
        assert status is None, f"SGLang ended with status {status}:\n{self.log_end()}"

    def log_end(self) -> str:
        """The last lines that the server wrote."""
        return self._log.read_bytes()[-3000:].decode(errors="replace")

    def stop(self) -> None:
        """End the server's process group: asked first, then killed."""
        if self._process is None:
            return
        for number, seconds in ((signal.SIGTERM, STOP_SECONDS), (signal.SIGKILL, STOP_SECONDS)):
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)
        self._process = None
