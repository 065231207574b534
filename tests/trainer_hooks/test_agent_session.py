"""One attempt in front of a control plane that has trouble: what is repeated, what is given up, what is wrong."""

from __future__ import annotations

import errno
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.trainer_hooks.builders import make_segment
from tests.trainer_hooks.dispatching import SAMPLING, task_sample
from tests.trainer_hooks.slime_stand_in import Sample, make_args
from trainer_hooks.client import AsyncControlClient
from trainer_hooks.launchers.agent_task import AgentResult, AgentTask
from trainer_hooks.launchers.load import agent_has_own_sidecar
from trainer_hooks.slime.agents import session as agent_session
from trainer_hooks.slime.blackbox_dispatch import generate
from trainer_hooks.slime.errors import SettingError

Answer = httpx.Response | Exception


def refused(status: int) -> httpx.Response:
    return httpx.Response(status, json={"error": {"message": f"trouble {status}", "code": "trouble"}})


class Planes:
    """Control planes by host. `trouble` comes first, per path; `calls` are `host path`."""

    def __init__(self) -> None:
        self.trouble: dict[str, list[Answer]] = {}
        self.down: set[str] = set()
        self.calls: list[str] = []
        self.bodies: dict[str, Any] = {}
        self.heard: Callable[[str, Any], None] = lambda path, body: None

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.calls.append(f"{request.url.host} {request.url.path}")
        self.bodies[request.url.path] = body = json.loads(request.content)
        self.heard(request.url.path, body)
        if request.url.host in self.down:
            raise httpx.ConnectError("refused", request=request)
        waiting = self.trouble.get(request.url.path)
        if waiting:
            answer = waiting.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer
        session = body["session_id"]
        replies: dict[str, Any] = {
            "/session/open": {
                "session_id": session,
                "base_url": "http://agents/v1",
                "anthropic_base_url": "http://agents",
                "api_key": "tito-key.0123456789abcdefghij",
            },
            "/session/finalize": {"success": True, "session_id": session},
            "/session/discard": {"success": True, "session_removed": True},
            "/trajectory/read": {"success": True, "data": [make_segment(session_id=session)]},
        }
        return httpx.Response(200, json=replies[request.url.path])


async def launch(task: AgentTask) -> AgentResult:
    """A launcher of our own, whose agent is quick."""
    assert task.base_url == "http://agents/v1"
    assert "tito-key" not in repr(task), "a logged task must not show the session key"
    return AgentResult()


async def launch_badly(task: AgentTask) -> AgentResult:
    raise ConnectionError("no cluster")


async def launch_nothing(task: AgentTask) -> None:
    return None


@pytest.fixture
def planes(monkeypatch: pytest.MonkeyPatch) -> Planes:
    found = Planes()

    async def no_sleep(seconds: float) -> None:
        return None

    def client(args: Any, url: str) -> AsyncControlClient:
        return AsyncControlClient(url, "t", transport=httpx.MockTransport(found), sleep=no_sleep)

    monkeypatch.setattr(agent_session, "open_control_async", client)
    return found


@pytest.fixture
def dispatch(tmp_path: Path) -> Callable[..., Any]:
    async def call(template: Any = None, **changes: Any) -> Any:
        settings = {
            "tito_control_url": "http://one,http://two",
            "tito_control_token": "t",
            "tito_launcher": f"{__name__}.launch",
            "tito_scratch_dir": str(tmp_path),
            "tito_control_retry_sec": 3,
        }
        [sample] = await generate(make_args(**(settings | changes)), template or task_sample(), SAMPLING)
        return sample

    return call


@pytest.mark.parametrize("path", ["/session/open", "/session/finalize", "/trajectory/read"])
@pytest.mark.parametrize(
    "trouble", [refused(503), refused(502), httpx.ReadError("lost")], ids=["503", "502", "lost"]
)
async def test_a_sidecar_that_is_away_for_a_moment_costs_no_trajectory(
    planes: Planes, dispatch: Any, path: str, trouble: Answer
) -> None:
    planes.trouble[path] = [trouble]
    sample = await dispatch()
    assert sample.status is Sample.Status.COMPLETED
    assert sum(call.endswith(path) for call in planes.calls) == 2


@pytest.mark.parametrize("other", ["shares the store", "has its own", "was asked to open it, too"])
async def test_where_the_opener_is_gone_another_replica_finalizes_and_is_read(
    planes: Planes, dispatch: Any, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    async def launch_and_lose(task: AgentTask) -> AgentResult:
        [opener] = {call.split()[0] for call in planes.calls}
        planes.down = {opener}
        return AgentResult()

    monkeypatch.setattr(sys.modules[__name__], "launch", launch_and_lose)
    if other != "shares the store":
        planes.trouble["/session/finalize"] = [refused(404 if other == "has its own" else 400)] * 9
    sample = await dispatch(tito_control_retry_sec=0.3)
    if other == "shares the store":
        assert sample.status is Sample.Status.COMPLETED
    else:
        assert sample.metadata["abort_reason"] == "finalize_failed", "what another store says of it is no news"


async def test_a_read_that_is_repeated_drains_by_the_same_id(planes: Planes, dispatch: Any) -> None:
    """By another one the repeat would get nothing: the first has drained it."""
    planes.trouble["/trajectory/read"] = [refused(502), refused(502)]
    seen: list[Any] = []
    planes.heard = lambda path, body: seen.append(body) if path == "/trajectory/read" else None
    sample = await dispatch()
    assert [body["drain_id"] for body in seen] == [sample.session_id] * 3


async def test_a_sidecar_that_is_down_is_passed_over_for_new_sessions(planes: Planes, dispatch: Any) -> None:
    planes.down = {"one"}
    for _ in range(4):  # they are spread by session id
        assert (await dispatch()).status is Sample.Status.COMPLETED
    finalized = [call for call in planes.calls if call.endswith("/session/finalize")]
    assert finalized == ["two /session/finalize"] * 4


async def test_sessions_are_spread_over_the_sidecars_and_stay_where_they_are(planes: Planes, dispatch: Any) -> None:
    for _ in range(24):
        await dispatch()
    hosts = [call.split()[0] for call in planes.calls]
    assert {hosts[i] for i in range(0, 72, 3)} == {"one", "two"}
    assert all(hosts[i : i + 3] == [hosts[i]] * 3 for i in range(0, 72, 3)), "open, finalize, read"


async def test_a_sidecar_that_stays_away_is_given_up_in_bounded_time(planes: Planes, dispatch: Any) -> None:
    planes.down = {"one", "two"}
    sample = await dispatch(tito_control_retry_sec=0.3)
    assert (sample.status, sample.metadata["abort_reason"]) == (Sample.Status.ABORTED, "open_failed")


@pytest.mark.parametrize(
    ("path", "status", "reason"),
    [
        ("/session/finalize", 400, "no_steps"),
        ("/session/finalize", 409, "finalize_failed"),
        ("/trajectory/read", 404, "read_failed"),
    ],
)
async def test_a_refusal_is_not_repeated_and_ends_the_run(
    planes: Planes, dispatch: Any, path: str, status: int, reason: str
) -> None:
    planes.trouble[path] = [refused(status)]
    sample = await dispatch()
    assert sample.metadata["abort_reason"] == reason
    assert sum(call.endswith(path) for call in planes.calls) == 1
    assert planes.calls[-1].endswith("/session/discard")


@pytest.mark.parametrize(("status", "text"), [(401, "check TITO_CONTROL_TOKEN"), (400, "as they are pinned")])
async def test_a_wrong_token_or_pin_is_a_wrong_setting(
    planes: Planes, dispatch: Any, status: int, text: str
) -> None:
    planes.trouble["/session/open"] = [refused(status)]
    with pytest.raises(SettingError, match=text):
        await dispatch()


async def test_segments_that_break_their_contract_end_the_run(planes: Planes, dispatch: Any) -> None:
    broken = make_segment(full_logprobs=[0.0])
    planes.trouble["/trajectory/read"] = [httpx.Response(200, json={"data": [broken]})]
    assert (await dispatch()).metadata["abort_reason"] == "SegmentError"
    planes.trouble["/trajectory/read"] = [httpx.Response(200, json={"data": []})]
    assert (await dispatch()).metadata["abort_reason"] == "no_segments"


async def test_a_full_disk_costs_the_run_and_is_no_exception(
    planes: Planes, dispatch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, *args: Any, **kwargs: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "mkdir", full)
        sample = await dispatch()
    assert (sample.status, sample.metadata["abort_reason"]) == (Sample.Status.ABORTED, "no_scratch")
    assert planes.calls == [], "nothing is opened that nobody would finalize"


async def test_a_scratch_folder_that_cannot_be_is_a_wrong_setting(dispatch: Any, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"TITO_SCRATCH_DIR is .*nowhere"):
        await dispatch(tito_scratch_dir=str(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    ("launcher", "inject", "hand_over", "expected"),
    [
        ("command", None, None, False),
        ("kubernetes", None, None, True),
        ("trainer_hooks.launchers.kubernetes.run", None, None, True),
        ("kubernetes", "0", None, False),
        ("kubernetes", None, "0", False),
        ("my.own", None, "1", True),
    ],
)
def test_sessions_are_handed_over_to_injected_sidecars(
    launcher: str, inject: str | None, hand_over: str | None, expected: bool
) -> None:
    args = make_args(tito_launcher=launcher, tito_kubernetes_inject=inject, tito_session_hand_over=hand_over)
    assert agent_has_own_sidecar(args) is expected


async def test_the_sidecar_is_told_that_the_agent_has_another_one(planes: Planes, dispatch: Any) -> None:
    await dispatch()
    assert "hand_over" not in planes.bodies["/session/open"]
    await dispatch(tito_session_hand_over=True)
    assert planes.bodies["/session/open"]["hand_over"] is True


@pytest.mark.parametrize("launcher", ["launch_badly", "launch_nothing"])
async def test_a_launcher_that_raises_ends_the_run(planes: Planes, dispatch: Any, launcher: str) -> None:
    sample = await dispatch(tito_launcher=f"{__name__}.{launcher}")
    assert sample.metadata["abort_reason"] == "launcher_failed"
    assert planes.calls[-1].endswith("/session/discard")


async def test_what_is_opened_and_finalized(planes: Planes, dispatch: Any) -> None:
    template = task_sample(metadata={}, label=None)
    await dispatch(template, tito_run_id="run-1", tito_finalize_timeout_sec=7)
    opened = planes.bodies["/session/open"]
    assert (opened["instance_id"], opened["run_id"]) == ("1", "run-1")
    assert opened["metadata"] == {"index": 3, "group_index": 1, "evaluation": False}
    assert opened["sampling"] == {
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "repetition_penalty": 1.0,
        "logit_bias": None,
        "sampling_seed": None,
        "max_new_tokens": 64,
    }
    finalized = planes.bodies["/session/finalize"]
    assert finalized == {"session_id": opened["session_id"], "timeout_seconds": 7.0}


async def test_a_wrong_setting_is_told_before_an_agent_runs_for_an_hour(planes: Planes, dispatch: Any) -> None:
    for changes, text in (
        ({"tito_launcher": "no.such.launcher"}, "TITO_LAUNCHER is 'no"),
        ({"tito_reward_path": "no.such.reward"}, "TITO_REWARD_PATH is 'no"),
        ({"tito_early_stops": "timeouts"}, "TITO_EARLY_STOPS names 'timeouts'"),
        ({"tito_early_stop_reward": "low"}, "TITO_EARLY_STOP_REWARD is 'low'"),
    ):
        with pytest.raises(SettingError, match=text):
            await dispatch(**changes)
    assert planes.calls == [], "it is said before anything is started"
