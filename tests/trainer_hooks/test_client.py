"""The control-plane client, sync and async, against a stand-in."""

from __future__ import annotations

import asyncio
import inspect
import json
import ssl
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from tests.trainer_hooks.control_stand_in import TOKEN, ControlStandIn
from trainer_hooks import control_errors
from trainer_hooks.client import RETRY_DELAYS, AsyncControlClient, ControlClient

URL = "http://sidecar:8801"


class Caller:
    """Calls either client by method name, so that every test runs on both."""

    def __init__(self, kind: str, server: Callable[[httpx.Request], httpx.Response], token: str | None) -> None:
        self.slept: list[float] = []
        self.runner = asyncio.Runner()
        transport = httpx.MockTransport(server)
        self.client: ControlClient | AsyncControlClient
        if kind == "sync":
            self.client = ControlClient(URL, token, transport=transport, sleep=self.slept.append)
        else:
            self.client = AsyncControlClient(URL, token, transport=transport, sleep=self.record_sleep)

    async def record_sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    def __call__(self, name: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
        result = getattr(self.client, name)(*args, **kwargs)
        return self.runner.run(_await(result)) if inspect.isawaitable(result) else result

    def close(self) -> None:
        if isinstance(self.client, AsyncControlClient):
            self.runner.run(self.client.aclose())
        else:
            self.client.close()
        self.runner.close()


async def _await(result: Awaitable[dict[str, Any]]) -> dict[str, Any]:
    return await result


@pytest.fixture
def server() -> ControlStandIn:
    return ControlStandIn()


@pytest.fixture(params=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def call(kind: str, server: ControlStandIn) -> Iterator[Caller]:
    caller = Caller(kind, server, TOKEN)
    yield caller
    caller.close()


def sent(server: ControlStandIn) -> dict[str, Any]:
    return json.loads(server.seen[-1].content)


def read_timeout(server: ControlStandIn) -> float:
    return server.seen[-1].extensions["timeout"]["read"]


def test_a_session_is_opened_viewed_finalized_read_and_discarded(call: Caller, server: ControlStandIn) -> None:
    opened = call("open_session", session_id="s1", instance_id="task", sampling={"temperature": 1.0})
    assert opened["session_id"] == "s1" and opened["base_url"].endswith("/v1")
    assert sent(server) == {"session_id": "s1", "instance_id": "task", "sampling": {"temperature": 1.0}}
    assert call("view_session", "s1")["state"] == "open"
    assert call("finalize_session", "s1", reward=0.5, label="x")["success"]
    assert sent(server) == {"session_id": "s1", "reward": 0.5, "label": "x"}
    assert call("read_trajectory", session_id="s1")["data"][0]["tokens"] == [1, 2]
    assert sent(server) == {"session_id": "s1", "arrays": "binary"}
    assert call("discard_session", "s1")["session_removed"] is True
    assert call("discard_session", "s1")["session_removed"] is False


def test_rollout_is_paused_renewed_and_resumed(call: Caller, server: ControlStandIn) -> None:
    pause = call("pause_rollout", reason="weights", mode="abort", timeout_seconds=5, lease_seconds=120)
    assert pause["quiesced"] is True
    assert sent(server) == {"reason": "weights", "mode": "abort", "timeout_seconds": 5, "lease_seconds": 120}
    call("pause_rollout", pause_id=pause["pause_id"])
    assert call("pause_state")["paused"] is True
    assert call("resume_rollout", pause_id=pause["pause_id"], version="3")["status"] == "resumed"
    assert sent(server) == {"pause_id": pause["pause_id"], "version": "3"}
    assert call("pause_state")["paused"] is False


def test_health_readiness_and_capabilities(call: Caller, server: ControlStandIn) -> None:
    assert call("health") == {"status": "ok"}
    assert call("ready") == {"ready": True}
    assert server.seen[-1].url.query == b""
    call("ready", engine=True)
    assert server.seen[-1].url.query == b"engine=1"
    assert call("capabilities") == {"modes": ["tito"]}
    server.is_ready = False
    with pytest.raises(control_errors.ControlUnavailableError) as caught:
        call("ready")
    assert caught.value.body == {"ready": False}


def test_reading_groups_says_which_and_drains_on_request_only(call: Caller, server: ControlStandIn) -> None:
    groups = {"max_groups": 4, "min_group_size": 8, "run_id": "r", "drain": True}
    assert call("read_trajectory", **groups, drain_id="d")["drained"] is True
    assert sent(server) == {**groups, "drain_id": "d", "arrays": "binary"}
    call("read_trajectory", trajectory_id="t", include_drained=True, arrays="json")
    assert sent(server) == {"trajectory_id": "t", "include_drained": True, "arrays": "json"}


def test_each_draining_read_gets_a_drain_id_of_its_own(call: Caller, server: ControlStandIn) -> None:
    for _ in range(2):
        call("read_trajectory", session_id="s", drain=True)
    first, second = (json.loads(request.content)["drain_id"] for request in server.seen)
    assert first != second and len(first) == 32


@pytest.mark.parametrize("name", ["read_trajectory", "trajectory_stats"])
def test_a_read_whose_reply_is_lost_is_sent_again_as_it_was(
    call: Caller, server: ControlStandIn, name: str
) -> None:
    server.losses = [httpx.ReadError("reset"), httpx.RemoteProtocolError("closed")]
    kwargs = {"session_id": "s", "drain": True} if name == "read_trajectory" else {}
    call(name, **kwargs)
    assert len({request.content for request in server.seen}) == 1 and len(server.seen) == 3
    assert call.slept == list(RETRY_DELAYS[:2])


def test_a_draining_read_that_stays_lost_tells_its_drain_id(call: Caller, server: ControlStandIn) -> None:
    server.losses = [httpx.ReadError("reset") for _ in range(len(RETRY_DELAYS) + 1)]
    with pytest.raises(control_errors.ControlTransportError, match="drain_id='mine' gets what"):
        call("read_trajectory", session_id="s", drain=True, drain_id="mine")
    assert server.losses == []


def test_statistics_and_live_sidecars(call: Caller) -> None:
    assert call("trajectory_stats") == {"unread": 0}
    assert call("live_sidecars") == {"sidecars": []}


@pytest.mark.parametrize("kwargs", [{"session_id": "s", "drain_id": "d"}, {"session_id": "s", "run_id": "r"}])
def test_fields_that_need_another_one_are_refused(call: Caller, kwargs: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="give "):
        call("read_trajectory", **kwargs)


@pytest.mark.parametrize(
    "kwargs", [{}, {"session_id": "s", "max_groups": 1}, {"session_id": "s", "min_group_size": 2}]
)
def test_an_ambiguous_read_is_refused_before_it_is_sent(
    call: Caller, server: ControlStandIn, kwargs: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match="max_groups"):
        call("read_trajectory", **kwargs)
    assert server.seen == []


def test_session_ids_are_escaped_in_the_path(call: Caller, server: ControlStandIn) -> None:
    server.sessions["a%2Fb%3Fc%20d"] = {"state": "open"}
    assert call("view_session", "a/b?c d")["state"] == "open"
    with pytest.raises(ValueError, match="session_id is ''"):
        call("view_session", "")


def test_numpy_rewards_travel_and_infinite_ones_are_refused(call: Caller, server: ControlStandIn) -> None:
    call("open_session", session_id="s1")
    call("finalize_session", "s1", reward=np.float32(0.5))
    assert sent(server)["reward"] == 0.5
    with pytest.raises(ValueError, match="finite"):
        call("finalize_session", "s1", reward=float("nan"))


# Errors ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "kind_of_error"),
    [
        (400, control_errors.ControlBadRequestError),
        (401, control_errors.ControlAuthError),
        (403, control_errors.ControlAuthError),
        (404, control_errors.ControlNotFoundError),
        (409, control_errors.ControlConflictError),
        (503, control_errors.ControlUnavailableError),
        (500, control_errors.ControlStatusError),
    ],
)
def test_error_statuses_become_typed_errors_with_the_envelopes_fields(
    kind: str, status: int, kind_of_error: type[control_errors.ControlStatusError]
) -> None:
    envelope = {"message": "no such thing", "type": "t", "code": "c", "param": "p"}
    caller = Caller(kind, lambda _: httpx.Response(status, json={"error": envelope}), TOKEN)
    with pytest.raises(control_errors.ControlError) as caught:
        caller("health")
    error = caught.value
    assert type(error) is kind_of_error
    assert (error.status, error.code, error.type, error.param) == (status, "c", "t", "p")
    assert "no such thing" in error.message and "GET /health" in str(error) and str(status) in str(error)
    caller.close()


def test_an_error_without_an_envelope_keeps_its_text(kind: str) -> None:
    caller = Caller(kind, lambda _: httpx.Response(502, text="bad gateway"), TOKEN)
    with pytest.raises(control_errors.ControlStatusError) as caught:
        caller("health")
    assert caught.value.status == 502 and caught.value.code is None and "bad gateway" in caught.value.message
    caller.close()


@pytest.mark.parametrize("text", ["<html>", "[1]", ""])
def test_a_reply_that_is_no_json_object_is_an_error(kind: str, text: str) -> None:
    caller = Caller(kind, lambda _: httpx.Response(200, text=text), TOKEN)
    with pytest.raises(control_errors.ControlReplyError, match="TITO_CONTROL_URL"):
        caller("health")
    caller.close()


def test_unknown_sessions_and_wrong_tokens_are_told_apart(kind: str, server: ControlStandIn) -> None:
    for token, expected in ((TOKEN, "session_not_found"), ("wrong", "invalid_token"), (None, "invalid_token")):
        caller = Caller(kind, server, token)
        with pytest.raises(control_errors.ControlStatusError) as caught:
            caller("view_session", "nobody")
        assert caught.value.code == expected
        assert "wrong" not in repr(caller.client) and TOKEN not in repr(caller.client)
        caller.close()


def test_an_expired_pause_is_a_conflict_with_its_code(call: Caller) -> None:
    with pytest.raises(control_errors.ControlConflictError) as caught:
        call("pause_rollout", pause_id="gone")
    assert caught.value.code == "pause_expired"


# Repeats and time limits -------------------------------------------------------------------------------

IDEMPOTENT: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("open_session", (), {"session_id": "s1"}),
    ("finalize_session", ("s1",), {}),
    ("discard_session", ("s1",), {}),
    ("view_session", ("s1",), {}),
    ("read_trajectory", (), {"session_id": "s1"}),
    ("read_trajectory", (), {"session_id": "s1", "drain": True}),
    ("trajectory_stats", (), {}),
    ("live_sidecars", (), {}),
    ("pause_rollout", (), {}),
    ("resume_rollout", (), {}),
    ("pause_state", (), {}),
    ("health", (), {}),
    ("ready", (), {}),
    ("capabilities", (), {}),
]


@pytest.mark.parametrize(
    ("name", "args", "kwargs"), IDEMPOTENT, ids=[f"{name}-{len(kwargs)}" for name, _, kwargs in IDEMPOTENT]
)
def test_idempotent_calls_are_repeated_after_failed_connects(
    call: Caller, server: ControlStandIn, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    server.sessions["s1"] = {"state": "open"}
    server.refuse_connects = 2
    call(name, *args, **kwargs)
    assert server.connects == 3 and len(server.seen) == 1
    assert call.slept == list(RETRY_DELAYS[:2])


def test_other_calls_are_never_repeated(call: Caller, server: ControlStandIn) -> None:
    server.refuse_connects = 1
    with pytest.raises(control_errors.ControlTransportError) as caught:
        call("open_session", instance_id="task")
    assert caught.value.code == "connect_failed" and caught.value.status is None
    assert server.connects == 1 and call.slept == []


def test_a_connect_that_times_out_is_repeated_too(call: Caller, server: ControlStandIn) -> None:
    server.refusal = httpx.ConnectTimeout
    server.refuse_connects = 1
    assert call("health") == {"status": "ok"}


def test_repeats_end_with_an_error_that_names_the_address(call: Caller, server: ControlStandIn) -> None:
    server.refuse_connects = 100
    with pytest.raises(control_errors.ControlTransportError, match=r"http://sidecar:8801/health.*TITO_CONTROL_URL"):
        call("health")
    assert server.connects == len(RETRY_DELAYS) + 1


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (httpx.ReadTimeout("slow"), "timeout"),
        (httpx.ReadError("reset"), "connection_lost"),
        (httpx.RemoteProtocolError("closed"), "connection_lost"),
    ],
)
def test_a_call_that_may_have_arrived_is_not_repeated(
    call: Caller, server: ControlStandIn, failure: Exception, code: str
) -> None:
    server.fail_with = failure
    with pytest.raises(control_errors.ControlTransportError) as caught:
        call("finalize_session", "s1")
    assert caught.value.code == code and len(server.seen) == 1


def test_error_statuses_are_not_repeated(call: Caller, server: ControlStandIn) -> None:
    server.is_ready = False
    with pytest.raises(control_errors.ControlUnavailableError):
        call("ready")
    assert len(server.seen) == 1


@pytest.mark.parametrize(
    ("name", "args", "wait"),
    [("finalize_session", ("s1",), 60), ("pause_rollout", (), 300)],
)
def test_time_limits_outlast_what_the_server_was_asked_to_wait(
    call: Caller, server: ControlStandIn, name: str, args: tuple[Any, ...], wait: float
) -> None:
    server.sessions["s1"] = {"state": "open"}
    call(name, *args)
    assert read_timeout(server) > wait
    call(name, *args, timeout_seconds=1000)
    assert read_timeout(server) > 1000
    assert server.seen[-1].extensions["timeout"]["connect"] == 10


# Construction ------------------------------------------------------------------------------------------


def test_the_environment_names_url_and_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TITO_CONTROL_URL", "http://a:8801/")
    monkeypatch.setenv("TITO_CONTROL_TOKEN", TOKEN)
    with ControlClient.from_env() as client:
        assert client.base_url == "http://a:8801"
        assert TOKEN not in repr(client)
    monkeypatch.setenv("TITO_CONTROL_URL", "http://a:8801, http://b:8801,")
    assert [c.base_url for c in AsyncControlClient.all_from_env()] == ["http://a:8801", "http://b:8801"]
    with pytest.raises(ValueError, match="names 2 sidecars"):
        ControlClient.from_env()


@pytest.mark.parametrize("missing", ["TITO_CONTROL_URL", "TITO_CONTROL_TOKEN"])
def test_a_missing_variable_is_named(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    monkeypatch.setenv("TITO_CONTROL_URL", "http://a:8801")
    monkeypatch.setenv("TITO_CONTROL_TOKEN", TOKEN)
    monkeypatch.delenv(missing)
    with pytest.raises(ValueError, match=f"{missing} is not set"):
        ControlClient.from_env()


def test_an_url_without_a_scheme_is_refused() -> None:
    with pytest.raises(ValueError, match="must start with http://"):
        ControlClient("sidecar:8801")


@pytest.mark.parametrize("client", [ControlClient, AsyncControlClient])
def test_the_public_roots_are_read_for_https_alone(
    monkeypatch: pytest.MonkeyPatch, client: type[ControlClient] | type[AsyncControlClient]
) -> None:
    """They take 50 ms for each client: a weight update with 1,000 sidecars would wait for a minute."""
    made: list[ssl.SSLContext] = []
    real = ssl.create_default_context

    def counted(*args: Any, **kwargs: Any) -> ssl.SSLContext:
        made.append(real(*args, **kwargs))
        return made[-1]

    monkeypatch.setattr(ssl, "create_default_context", counted)
    client("http://sidecar:8801", TOKEN)
    assert not made
    client("https://sidecar:8801", TOKEN)
    assert [context.verify_mode for context in made] == [ssl.CERT_REQUIRED]


async def test_the_async_client_closes_as_a_context_manager(server: ControlStandIn) -> None:
    async with AsyncControlClient(URL, TOKEN, transport=httpx.MockTransport(server)) as client:
        replies = await asyncio.gather(*(client.pause_state() for _ in range(5)))
    assert [reply["paused"] for reply in replies] == [False] * 5
    with pytest.raises(RuntimeError):
        await client.health()


def test_both_clients_offer_the_same_calls() -> None:
    own = {"close", "aclose"}
    calls = [{n for n in dir(c) if not n.startswith("_")} - own for c in (ControlClient, AsyncControlClient)]
    assert calls[0] == calls[1]
