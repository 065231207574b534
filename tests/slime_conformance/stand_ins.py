"""Stand-ins around slime's rollout: control plane, agents, data set, slime's view of its engines. Needs slime."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from tests.slime_conformance.checkout import slime_module
from tests.slime_conformance.trainer import slime_args
from tests.trainer_hooks.builders import make_segment
from trainer_hooks.control_requests import ControlRequest
from trainer_hooks.launchers.agent_task import AgentResult, AgentTask

LIVENESS = 60.0


class Sidecar:
    """The control plane, as the hooks' client shows it. Sessions by state; segments with the index in them."""

    def __init__(self) -> None:
        self.sessions: dict[str, str] = {}
        self.instances: dict[str, str] = {}

    async def __aenter__(self) -> Sidecar:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def open_session(self, *, session_id: str, instance_id: str, **_: Any) -> dict[str, Any]:
        self.sessions[session_id], self.instances[session_id] = "open", instance_id
        return {"api_key": f"key-{session_id}", "base_url": "http://h/v1", "anthropic_base_url": "http://h"}

    async def send(self, request: ControlRequest[Any]) -> dict[str, Any]:
        """What is asked of an open session: finalize, read or discard."""
        assert request.body is not None
        session_id = request.body["session_id"]
        if request.path == "/trajectory/read":
            return {"success": True, "data": self._segments(session_id)}
        states = {"/session/discard": "discarded", "/session/finalize": "finalized"}
        self.sessions[session_id] = states[request.path]
        return {"success": True}

    def _segments(self, session_id: str) -> list[dict[str, Any]]:
        return [
            make_segment("0011", index=number, session_id=session_id, instance_id=self.instances[session_id])
            for number in range(2)
        ]


class Agents:
    """Runs of the first `live` prompts end at once; the others when they are released, or cancelled."""

    def __init__(self, live: int) -> None:
        self.live = live
        self.started: list[int] = []
        self.cancelled: list[int] = []
        self._waiting: dict[int, tuple[asyncio.AbstractEventLoop, asyncio.Event]] = {}

    def release(self, live: int) -> None:
        """Now the runs of the first `live` prompts end, those under way too. From any thread."""
        self.live = live
        for index, (loop, event) in self._waiting.items():
            if index < live:
                loop.call_soon_threadsafe(event.set)

    async def launch(self, task: AgentTask) -> AgentResult:
        """A launcher."""
        index = task.metadata["number"]
        self.started.append(index)
        if index >= self.live:
            event = asyncio.Event()
            self._waiting[index] = asyncio.get_running_loop(), event
            try:
                await event.wait()
            except asyncio.CancelledError:
                self.cancelled.append(index)
                raise
        return AgentResult()


class DataSource:
    """Groups of two runs, as slime's data source numbers them."""

    def __init__(self) -> None:
        self.groups = itertools.count()

    def get_samples(self, count: int) -> list[list[Any]]:
        sample_type = slime_module("slime.utils.types").Sample
        return [
            [
                sample_type(
                    index=2 * group + place,
                    group_index=group,
                    prompt="q",
                    metadata={"instance_id": f"task-{group}", "number": 2 * group + place},
                )
                for place in range(2)
            ]
            for group in itertools.islice(self.groups, count)
        ]


async def reward_of(args: Any, samples: list[Any], **_: Any) -> list[float]:
    """slime asks for the rewards of a whole run at once: of its anchor, here."""
    return [float(sample.index % 2) for sample in samples]


@contextmanager
def slime_world(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """slime's loops without tokenizer, router and engines; ours without sidecar and subprocesses."""
    sglang_rollout = slime_module("slime.rollout.sglang_rollout")
    server_control = slime_module("slime.backends.sglang_utils.server_control")
    sidecar, agents = Sidecar(), Agents(live=4)
    monkeypatch.setattr("trainer_hooks.slime.agents.session.open_control_async", lambda args, url: sidecar)
    monkeypatch.setattr("trainer_hooks.slime.agents.session.load_launcher", lambda args: agents.launch)
    for name, value in (("load_tokenizer", None), ("load_processor", None), ("get_rollout_num_engines", 1)):
        monkeypatch.setattr(sglang_rollout, name, lambda *_, value=value, **__: value)
    asked = Counter[str]()

    async def get(url: str, **_: Any) -> Any:
        asked[url.split("/")[-1]] += 1
        return {"workers": [{"url": "http://engine"}]} if url.endswith("/workers") else {"num_reqs": 0}

    async def post(url: str, payload: Any, **_: Any) -> Any:
        asked[url.split("/")[-1]] += 1
        return {}

    for module in (sglang_rollout, server_control):
        monkeypatch.setattr(module, "get", get)
    monkeypatch.setattr(server_control, "post", post)
    state_type = sglang_rollout.GenerateState
    type(state_type)._instances.pop(state_type, None)
    yield SimpleNamespace(sidecar=sidecar, agents=agents, asked=asked)
    type(state_type)._instances.pop(state_type, None)


def loop_args(**changes: Any) -> SimpleNamespace:
    """Two groups of two runs; three are started."""
    values: dict[str, Any] = {
        "hf_checkpoint": "none",
        "sglang_server_concurrency": 64,
        "sglang_dp_size": None,
        "rollout_max_response_len": 64,
        "rollout_stop": None,
        "rollout_stop_token_ids": None,
        "rollout_skip_special_tokens": True,
        "rollout_global_dataset": True,
        "dynamic_sampling_filter_path": "trainer_hooks.slime.filters.check_reward_nonzero_std",
        "over_sampling_batch_size": 3,
        "n_samples_per_prompt": 2,
        "rollout_batch_size": 2,
        "global_batch_size": 4,
        "partial_rollout": False,
        "mask_offpolicy_in_partial_rollout": False,
        "group_rm": False,
        "custom_generate_function_path": "trainer_hooks.slime.blackbox_dispatch.generate",
        "custom_rm_path": f"{__name__}.reward_of",
        "rollout_sample_hook_path": [],
        "rollout_sample_filter_path": None,
        "rollout_all_samples_process_path": None,
        "sglang_router_ip": "127.0.0.1",
        "sglang_router_port": 1,
        "tito_control_url": "http://control",
        "tito_control_token": "token",
    }
    return slime_args(**(values | changes))
