"""A session that is not needed any more frees its memory at once: full collections are rare (`sidecar.garbage`)."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from sidecar.tito.trajectory import Node
from tests.fake_sglang import Reply
from tests.support.chat import ask, completion, follow
from tests.support.running import Running
from tests.support.waiting import until


@pytest.fixture
def no_collections() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def nodes() -> int:
    return sum(type(one) is Node for one in gc.get_objects())


@pytest.mark.parametrize("end", ["finalize", "discard"])
async def test_nothing_is_left_of_a_session_that_ended(sidecar: Running, no_collections: None, end: str) -> None:
    before = nodes()
    sidecar.engine.replies.extend([Reply(text="One."), Reply(text="Two.")])
    body = ask()
    first = await sidecar.chat("s", body)
    completion(await sidecar.chat("s", follow(body, first.json()["choices"][0]["message"], "Go on.")))
    assert nodes() == before + 2
    gone = weakref.ref(sidecar.sidecar.registry._sessions["s"])
    await sidecar.post(f"/session/{end}", {"session_id": "s"})
    await until(lambda: gone() is None, "an end of the session's last reference")
    assert nodes() == before
    if end == "finalize":
        read = await sidecar.post("/trajectory/read", {"session_id": "s"})
        assert len(read["data"]) == 1
        await until(lambda: nodes() == before, "an end of what was read")
