"""`AdmissionReview` (admission.k8s.io/v1) in, `AdmissionReview` out. Pure."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from sidecar.injection.inject import inject
from sidecar.injection.refusal import Reason, RefusalError
from sidecar.injection.settings import InjectionSettings

Outcome = Literal["injected", "unchanged", "refused", "ignored"]

_VERSION = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
_LONGEST_WARNING = 256
"""Characters. The API server cuts longer ones."""


class ReviewError(Exception):
    """The body is no AdmissionReview that can be answered; the text says why."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The reply's body, and what it says, for log and metrics. `mode` is None unless the pod was injected."""

    body: dict[str, Any]
    outcome: Outcome
    mode: str | None = None
    session_id: str | None = None
    reasons: tuple[Reason, ...] = ()
    message: str = ""


def answer_review(body: bytes, settings: InjectionSettings) -> Answer:
    """The answer to a POST of the API server. Raises `ReviewError`."""
    request = _request_of(body)
    uid = request["uid"]
    if not _is_new_pod(request):
        return Answer(_reply({"uid": uid, "allowed": True}), "ignored")
    try:
        injection = inject(request["object"], settings, new_session=f"pod-{uid}")
    except RefusalError as refused:
        message = f"tito-sidecar is not injected: {refused}"
        status = {"code": 403, "reason": "Forbidden", "status": "Failure", "message": message}
        reply = _reply({"uid": uid, "allowed": False, "status": status})
        reasons = tuple(dict.fromkeys(problem.reason for problem in refused.problems))
        return Answer(reply, "refused", reasons=reasons, message=message)
    if injection is None:
        return Answer(_reply({"uid": uid, "allowed": True}), "ignored")
    response: dict[str, Any] = {"uid": uid, "allowed": True}
    response["auditAnnotations"] = {"mode": injection.mode, "session-id": injection.session_id}
    if injection.patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(orjson.dumps(injection.patch)).decode()
    if injection.warnings:
        response["warnings"] = [f"tito-sidecar: {text}"[:_LONGEST_WARNING] for text in injection.warnings]
    outcome: Outcome = "injected" if injection.patch else "unchanged"
    return Answer(_reply(response), outcome, injection.mode, injection.session_id)


def _request_of(body: bytes) -> dict[str, Any]:
    try:
        review = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ReviewError(f"the body is no JSON: {error}") from None
    if not isinstance(review, dict) or {name: review.get(name) for name in _VERSION} != _VERSION:
        raise ReviewError("the body is no AdmissionReview of admission.k8s.io/v1")
    request = review.get("request")
    if not isinstance(request, dict) or not isinstance(request.get("uid"), str) or not request["uid"]:
        raise ReviewError("the AdmissionReview has no request with a uid")
    return request


def _is_new_pod(request: dict[str, Any]) -> bool:
    resource = request.get("resource") or {}
    pods = (resource.get("group", ""), resource.get("version"), resource.get("resource")) == ("", "v1", "pods")
    return pods and not request.get("subResource") and request.get("operation") == "CREATE"


def _reply(response: dict[str, Any]) -> dict[str, Any]:
    return {**_VERSION, "response": response}
