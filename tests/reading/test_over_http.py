"""Reading as a trainer does it: with the client, over HTTP, from a running sidecar."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import numpy as np
import pytest

from sidecar.store.protocol import StoreError
from tests.reading.trainer import client_of, conversation, raw
from tests.support.running import Running
from tests.trainer_hooks.builders import make_template
from trainer_hooks.client import AsyncControlClient
from trainer_hooks.control_errors import ControlConflictError, ControlReplyError, ControlTransportError
from trainer_hooks.slime.samples import expand_segments_to_samples

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_the_client_reads_arrays_and_json_alike(shared: Running) -> None:
    await conversation(shared, "alike", "One.", "Two.", instance_id="i")
    async with client_of(shared) as client:
        [binary] = (await client.read_trajectory(session_id="alike"))["data"]
        [plain] = (await client.read_trajectory(session_id="alike", arrays="json"))["data"]
    assert isinstance(binary["tokens"], np.ndarray) and isinstance(plain["tokens"], list)
    assert binary.keys() == plain.keys()
    for name, value in plain.items():
        found = binary[name]  # type: ignore[literal-required]
        assert (found.tolist() if isinstance(found, np.ndarray) else found) == value, name


async def test_both_forms_make_the_same_samples(shared: Running) -> None:
    await conversation(shared, "samples", "One.", "Two.", instance_id="i")
    async with client_of(shared) as client:
        binary = (await client.read_trajectory(session_id="samples"))["data"]
        plain = (await client.read_trajectory(session_id="samples", arrays="json"))["data"]
    samples = expand_segments_to_samples(make_template(), binary)
    assert samples == expand_segments_to_samples(make_template(), plain)
    [sample] = samples
    assert type(sample.tokens[0]) is int and type(sample.loss_mask[-1]) is int
    assert type(sample.rollout_log_probs[-1]) is float


async def test_the_binary_reply_names_its_type_and_length(shared: Running) -> None:
    await conversation(shared, "typed", "One.")
    response = await shared.control.post("/trajectory/read", json={"session_id": "typed", "arrays": "binary"})
    assert response.headers["content-type"] == "application/vnd.safetensors"
    assert int(response.headers["content-length"]) == len(response.content)
    capabilities = (await shared.control.get("/integration/capabilities")).json()
    assert capabilities["trajectory_arrays"] == ["json", "binary"]


async def test_a_group_is_read_and_drained_whole(shared: Running) -> None:
    for number in range(3):
        await conversation(shared, f"whole-{number}", "One.", instance_id="whole", run_id="groups")
    await shared.open("whole-open", instance_id="whole", run_id="groups")
    async with client_of(shared) as client:
        wanted: dict[str, Any] = {"max_groups": 5, "min_group_size": 3, "run_id": "groups"}
        assert (await client.read_trajectory(**wanted))["data"] == []
        await client.discard_session("whole-open")
        peeked = await client.read_trajectory(**wanted)
        assert peeked["drained"] is False
        read = await client.read_trajectory(**wanted, drain=True)
        [group] = read["groups"]
        assert group["session_ids"] == ["whole-0", "whole-1", "whole-2"] and group["instance_id"] == "whole"
        assert [segment["session_id"] for segment in read["data"]] == group["session_ids"]
        assert read["drained"] is True and group["drained_at"] is not None
        assert (await client.read_trajectory(**wanted, drain=True))["groups"] == []
        again = await client.read_trajectory(**wanted, include_drained=True)
        assert again["groups"] == read["groups"]


async def test_concurrent_drains_of_one_session_deliver_it_once(shared: Running) -> None:
    await conversation(shared, "raced", "One.")
    async with client_of(shared) as client:
        reads = await asyncio.gather(*(client.read_trajectory(session_id="raced", drain=True) for _ in range(8)))
    assert sorted(len(read["data"]) for read in reads) == [0] * 7 + [1]
    assert all(read["drained"] for read in reads)


async def test_a_drain_whose_reply_is_lost_is_read_again_by_the_client(shared: Running) -> None:
    await conversation(shared, "lost", "One.")
    losing = LosesTheFirstReply()
    async with AsyncControlClient(
        shared.sidecar.control.url, shared.sidecar.control_token, transport=losing, sleep=_at_once
    ) as client:
        read = await client.read_trajectory(session_id="lost", drain=True)
    assert len(read["data"]) == 1 and losing.requests == 2


async def test_a_reply_that_breaks_off_is_an_error_in_both_forms(
    shared: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    await conversation(shared, "breaks", "One.")
    store = shared.sidecar._store
    read_blobs = store.read_blobs
    reads = 0

    async def failing(session_id: str, keys: Any) -> dict[bytes, bytes]:
        nonlocal reads
        reads += 1
        if form == "json" or reads % 2 == 0:  # the first one is for the length of the binary body
            raise StoreError("the disk is gone")
        return await read_blobs(session_id, keys)

    monkeypatch.setattr(store, "read_blobs", failing)
    monkeypatch.setattr("sidecar.sessions.trajectory_body._KEPT_BLOBS", 0)
    async with AsyncControlClient(
        shared.sidecar.control.url, shared.sidecar.control_token, sleep=_at_once
    ) as client:
        for form in ("json", "binary"):
            reads = 0
            with pytest.raises(ControlTransportError, match="connection was lost") as caught:
                await client.read_trajectory(session_id="breaks", arrays=form)  # type: ignore[arg-type]
            assert caught.value.code == "connection_lost"


@pytest.mark.parametrize("cut", [1, 30, 200])
async def test_a_body_that_a_proxy_cut_off_is_told_apart(shared: Running, cut: int) -> None:
    await conversation(shared, f"cut-{cut}", "One.")
    for form, kind in (("json", "application/json"), ("binary", "application/vnd.safetensors")):
        whole = await raw(shared, {"session_id": f"cut-{cut}", "arrays": form})

        def shortened(_: httpx.Request, body: bytes = whole[:-cut], kind: str = kind) -> httpx.Response:
            return httpx.Response(200, content=body, headers={"content-type": kind})

        async with AsyncControlClient("http://proxy", transport=httpx.MockTransport(shortened)) as client:
            with pytest.raises(ControlReplyError, match=r"cut off|cannot be read"):
                await client.read_trajectory(session_id="x")


async def test_what_cannot_be_read_says_why(shared: Running) -> None:
    await shared.open("unfinished")
    await shared.open("thrown-away")
    await shared.post("/session/discard", {"session_id": "thrown-away"})
    async with client_of(shared) as client:
        for session_id, code in (("unfinished", "session_not_finalized"), ("thrown-away", "session_discarded")):
            for drain in (False, True):
                with pytest.raises(ControlConflictError) as caught:
                    await client.read_trajectory(session_id=session_id, drain=drain)
                assert caught.value.code == code


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_groups": 0}, "max_groups"),
        ({"max_groups": 1.5}, "max_groups"),
        ({"max_groups": 1, "min_group_size": 0}, "min_group_size"),
        ({"max_groups": 1, "session_id": "x"}, "session_id"),
        ({"session_id": "x", "trajectory_id": "x"}, "session_id"),
        ({"session_id": "x", "min_group_size": 1}, "min_group_size"),
        ({"session_id": "x", "run_id": "r"}, "run_id"),
        ({"max_groups": 1, "run_id": 1}, "run_id"),
        ({"max_groups": 1, "drain_id": "d"}, "drain_id"),
        ({"max_groups": 1, "drain": True, "drain_id": ""}, "drain_id"),
        ({"session_id": ""}, "session_id"),
        ({}, "session_id"),
    ],
)
async def test_bad_fields_are_named(shared: Running, fields: dict[str, Any], param: str) -> None:
    error = (await shared.post("/trajectory/read", fields, status=400))["error"]
    assert error["param"] == param


class LosesTheFirstReply(httpx.AsyncHTTPTransport):
    """A network that breaks in the middle of the first reply."""

    def __init__(self) -> None:
        super().__init__()
        self.requests = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.requests += 1
        response = await super().handle_async_request(request)
        if self.requests == 1:
            await response.aclose()
            raise httpx.ReadError("reset", request=request)
        return response


async def _at_once(_: float) -> None:
    return None
