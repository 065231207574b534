"""`POST /v1/chat/completions`: from HTTP to an admitted call, and back in OpenAI's protocol."""

from __future__ import annotations

import asyncio
import hmac
import time
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from adapters.protocols import chat_completions
from adapters.protocols.chat_replies import Head
from adapters.protocols.errors import RequestError
from adapters.protocols.request import ChatRequest
from sidecar.gateway.exchange import Exchange, Pace
from sidecar.gateway.identity import IdentityRules, resolve_session
from sidecar.gateway.replay import Reader, ReplayReader
from sidecar.gateway.responses import JsonResponse, StreamResponse
from sidecar.replicas.forwarding import Forwarding, SharedCall
from sidecar.sessions.admission import Admission
from sidecar.sessions.errors import refusal_of
from sidecar.sessions.registry import Registry
from sidecar.sessions.starting import Admitted, Call
from sidecar.store.protocol import SessionHeld, StoreError
from sidecar.tito.model import Model
from sidecar.tito.raw_body import Beginning
from sidecar.tito.reading import Known, Readings
from sidecar.web.body import read_body


@dataclass(frozen=True, slots=True)
class ChatCompletions:
    """The endpoint. `intercept_secret` proves that a call came through our own interceptor."""

    registry: Registry
    forwarding: Forwarding
    admission: Admission
    model: Model
    identity: IdentityRules
    pace: Pace
    max_body: int
    intercept_secret: str

    async def handle(self, request: Request) -> Response:
        """One call. Raises `RequestError` for everything that is wrong before the engine is asked."""
        body = await read_body(request, self.max_body)
        readings = self._readings(request)
        beginning = readings.look(body)
        chat, known = self._parse(readings, beginning)
        hop = self.forwarding.hop_of(request, body)
        session_id = hop.session_id if hop is not None else self._session_id(request, chat.session_id)
        host = hop.host if hop is not None else self._intercepted_host(request)
        retries = _retry_count(request.headers.get("x-stainless-retry-count", ""))

        async def here(again: bool) -> Response:
            call = Call(
                chat=chat,
                body_hash=beginning.body_hash,
                retry_count=max(retries, 1) if again else retries,
                turn_id=request.headers.get("x-turn-id"),
                intercepted_host=host,
            )
            first = known or self.registry.readings(session_id).find(chat.messages, chat.template_kwargs, body)
            return await self._answer(session_id, call, first, request.headers.get("x-instance-id"))

        return await self.forwarding.answer(SharedCall("data", request, body, session_id, here, hop, host))

    def _session_id(self, request: Request, in_body: str | None) -> str:
        path_session = request.path_params.get("session_id")
        return resolve_session(self.identity, request.headers, path_session, in_body)

    def _readings(self, request: Request) -> Readings:
        """Of the session that a call names outside of its body, or of none. What is recognised there is true of the
        body whichever session it turns out to be for."""
        try:
            return self.registry.readings(self._session_id(request, None))
        except RequestError:  # told later, after what is wrong with the body
            return Readings()

    @staticmethod
    def _parse(readings: Readings, beginning: Beginning) -> tuple[ChatRequest, Known | None]:
        """The request; with `Known` if only its new messages had to be parsed."""
        fields = beginning.rest()
        if fields is not None:
            chat = chat_completions.read_fields(fields, beginning.count)
            known = readings.behind(beginning, chat.messages, chat.template_kwargs)
            if known is not None:
                return chat, known
        return chat_completions.parse(beginning.data), None

    async def _answer(self, session_id: str, call: Call, known: Known, instance_id: str | None) -> Response:
        """The reply of this process. Raises `SessionHeld` too."""
        chat = call.chat
        reading = self.admission.read(chat, known)  # before the session is opened: a bad request leaves no trace
        try:
            session = await self.registry.for_call(session_id, instance_id)
            admitted = await self.admission.admit(session, call, reading)
        except SessionHeld:
            raise
        except StoreError as error:
            raise refusal_of(error) from error
        wake = asyncio.Event()
        readers = _readers(admitted, wake, tokens=chat.stream)
        step_ids = [run.step_id for run in admitted.runs] + [node.record.step_id for node in admitted.replayed]
        headers = {"x-session-id": session_id, "x-step-id": ",".join(step_ids)}
        if admitted.clamped_max_tokens is not None:
            headers["x-tito-max-tokens"] = str(admitted.clamped_max_tokens)
        exchange = Exchange(
            session=session,
            readers=readers,
            wake=wake,
            head=Head(f"chatcmpl-{step_ids[0]}", chat.model or self.model.name, int(time.time())),
            headers=headers,
            include_usage=chat.include_usage,
            logprobs=chat.logprobs,
            codec=self.model.codec,
            pace=self.pace,
        )
        return StreamResponse(exchange) if chat.stream else JsonResponse(exchange)

    def _intercepted_host(self, request: Request) -> str | None:
        """The host that an intercepted agent meant to reach; headers without the secret are an agent's own."""
        proof = request.headers.get("x-tito-intercept-secret", "")
        if not hmac.compare_digest(proof.encode(), self.intercept_secret.encode()):
            return None
        return request.headers.get("x-tito-original-host")


def _readers(admitted: Admitted, wake: asyncio.Event, *, tokens: bool) -> list[Reader]:
    """A whole reply has no use for single tokens: waking its task for each chunk would be for nothing."""
    return [
        *(run.subscribe(wake, tokens=tokens) for run in admitted.runs),
        *(ReplayReader(node, wake) for node in admitted.replayed),
    ]


def _retry_count(header: str) -> int:
    return int(header) if header.isdecimal() and len(header) < 6 else 0
