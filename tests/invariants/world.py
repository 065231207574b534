"""What an agent plays against: the stand-in engine, and both planes of a sidecar in this process or another one.

One event loop. Examples share a world; sessions and seeds are never used twice.
"""

import itertools
from typing import Any

import httpx

from tests.fake_sglang import FakeSGLang, RecordedRequest, Reply
from tests.invariants.template import Template

CONTEXT_LENGTH = 16_384
SEED_STEP = 100
"""Seeds of different calls are so far apart: the n-th sibling's is n more."""


class World:
    """`control` sends the control plane's token. Replies are planned by the request's seed, which no two calls
    share unless their bodies are equal."""

    def __init__(
        self, engine: FakeSGLang, template: Template, data: httpx.AsyncClient, control: httpx.AsyncClient
    ) -> None:
        self.engine = engine
        self.template = template
        self.data = data
        self.control = control
        self._seeds = itertools.count(SEED_STEP, SEED_STEP)
        self._sessions = itertools.count()
        self._planned: dict[int, Reply] = {}
        engine.script = lambda request: self._planned[request.sampling_params["sampling_seed"]]

    async def forget(self) -> None:
        """Let the engine forget what it was asked, when it is idle."""
        await self.engine.wait_idle()
        script = self.engine.script
        self.engine.reset()
        self.engine.script = script

    def new_session(self) -> str:
        """An id that no example used."""
        return f"s{next(self._sessions)}"

    def new_seed(self) -> int:
        """A seed that no call used."""
        return next(self._seeds)

    def plan(self, seed: int, reply: Reply) -> None:
        """What the engine samples for requests of that seed, until planned anew."""
        self._planned[seed] = reply

    def requests(self, session_id: str, seed: int) -> list[RecordedRequest]:
        """The engine's requests for the calls of that seed, oldest first."""
        return [
            request
            for request in self.engine.recorder.session(session_id)
            if request.sampling_params["sampling_seed"] == seed
        ]

    async def view(self, session_id: str) -> dict[str, Any]:
        """`GET /session/{id}`."""
        response = await self.control.get(f"/session/{session_id}")
        assert response.status_code == 200, response.text
        viewed: dict[str, Any] = response.json()
        return viewed

    async def post(self, path: str, **body: Any) -> dict[str, Any]:
        """A control-plane call that has to succeed."""
        response = await self.control.post(path, json=body)
        assert response.status_code == 200, response.text
        reply: dict[str, Any] = response.json()
        return reply

    async def segments(self, session_id: str) -> list[dict[str, Any]]:
        """Finalize the session and read it."""
        await self.post("/session/finalize", session_id=session_id)
        read = await self.post("/trajectory/read", session_id=session_id)
        segments: list[dict[str, Any]] = read["data"]
        return segments
