"""Starts sidecars by forking a process that has read and tested the model already, so that a life begins in a
fraction of a second and hundreds of them can be ended.

Argument: the tokenizer's directory. Reads one order per line, `{"settings", "log"}` as JSON, and answers with the
new process's id. What it starts is `tito-sidecar serve` in all but its start: own listeners, own loop, own store.
"""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

import sidecar.serve
from sidecar.config import load_settings
from tests.support.running import QuickSidecar, model_of


def live(order: dict[str, Any]) -> NoReturn:
    """Be a sidecar, in the child. Nothing of the parent's is closed or flushed at the end."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for target, source in ((0, nothing), (1, log), (2, log)):
        os.dup2(source, target)
    try:
        sidecar.serve.set_up_logging()
        asyncio.run(sidecar.serve.serve(load_settings(order["settings"])))
    except BaseException:
        import traceback

        os.write(2, traceback.format_exc().encode())
        os._exit(1)
    os._exit(0)


def main(model_dir: str) -> None:
    """Serve orders until stdin ends."""
    sidecar.serve.Sidecar = QuickSidecar  # type: ignore[misc]
    model_of(Path(model_dir))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody has to wait for the dead
    print("ready", flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            live(order)
        print(pid, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
