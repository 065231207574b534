"""Arguments and samples for `blackbox_dispatch.generate` in front of a running sidecar."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.support.running import Running
from tests.trainer_hooks.slime_stand_in import Sample, make_args

SDK_AGENT = Path(__file__).with_name("openai_agent.py")
PLAIN_AGENT = Path(__file__).with_name("plain_agent.py")
SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "max_new_tokens": 64, "stop": None}


def sdk_agent(turns: int) -> str:
    """The command line of the agent with the official SDK, which takes some seconds to import."""
    return shlex.join([sys.executable, str(SDK_AGENT), str(turns)])


def plain_agent(turns: int, *more: object) -> str:
    """The command line of the agent that starts fast; `more` as it says."""
    return shlex.join([sys.executable, "-I", "-S", str(PLAIN_AGENT), str(turns), *map(str, more)])


def python_command(code: str) -> str:
    """A command line that runs `code`, which starts fast: no site packages."""
    return shlex.join([sys.executable, "-I", "-S", "-c", code])


def dispatch_args(running: Running, tmp_path: Path, **changes: Any) -> SimpleNamespace:
    """slime's args with the hooks' settings as `--custom-config-path` would put them there."""
    settings = {
        "tito_control_url": running.sidecar.control.url,
        "tito_control_token": running.sidecar.control_token,
        "tito_agent_command": plain_agent(2),
        "tito_scratch_dir": str(tmp_path),
        "tito_agent_grace_sec": 1,
        "tito_control_retry_sec": 5,
    }
    return make_args(**(settings | changes))


def task_sample(index: int = 3, **changes: Any) -> Sample:
    """A sample as slime's data source makes it, before any try."""
    fields: dict[str, Any] = {
        "index": index,
        "group_index": 1,
        "prompt": "What is it?",
        "label": "gold",
        "session_id": "given-by-slime",
        "metadata": {"instance_id": "task-7"},
    }
    return Sample(**(fields | changes))
