"""Trajectory routes of the control plane: reading what was finalized, and how much of it there is."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Send

from adapters.protocols import fields
from adapters.protocols.errors import RequestError, bad_field
from sidecar.control.fields import read_fields
from sidecar.sessions.trajectory_body import BrokenOff, TrajectoryBody, sent_in_chunks
from sidecar.sessions.trajectory_read import Drain, TrajectoryReader
from sidecar.store.catalog import GroupQuery, statistics
from sidecar.store.expiry import expired_counts
from sidecar.store.protocol import Store

SAFETENSORS = "application/vnd.safetensors"
"""Content type of a reply with binary arrays."""

ARRAYS = ("json", "binary")

_MOST_GROUPS = 10_000
_LONGEST_DRAIN_ID = 256

_NAMES = ("session_id", "trajectory_id", "max_groups")
_GROUP_FIELDS = ("min_group_size", "run_id")


@dataclass(frozen=True, slots=True)
class TrajectoryRoutes:
    """For the statistics: `dropped()` counts what this process's retention has deleted, `under_way()` its steps
    that run or wait for a retry."""

    store: Store
    dropped: Callable[[], Mapping[str, Any]] = dict
    under_way: Callable[[], int] = int

    def routes(self) -> list[Route]:
        """All routes."""
        return [
            Route("/trajectory/read", self.read, methods=["POST"]),
            Route("/trajectory/stats", self.stats, methods=["GET"]),
        ]

    async def read(self, request: Request) -> Response:
        """`POST /trajectory/read` of one session or of whole groups."""
        known = (*_NAMES, *_GROUP_FIELDS, "drain", "drain_id", "include_drained", "arrays")
        body = await read_fields(request, known)
        arrays = fields.text(body, "arrays") or "json"
        if arrays not in ARRAYS:
            raise bad_field("arrays", arrays, f"send {' or '.join(ARRAYS)}")
        include_drained = fields.boolean(body, "include_drained", False)
        drain = _drain(body)
        named = [name for name in _NAMES if body.get(name) is not None]
        if len(named) != 1:
            raise RequestError(
                400,
                f"the body has {' and '.join(named) or 'none'} of {', '.join(_NAMES)}; name the session, or send "
                "max_groups",
                param=named[0] if named else "session_id",
            )
        reader = TrajectoryReader(self.store)
        if named == ["max_groups"]:
            found = await reader.groups(_group_query(body, include_drained), drain)
            what = "reading groups"
        else:
            session_id = _session_id(body, named[0])
            found = await reader.session(session_id, drain, include_drained)
            what = f"reading session {session_id}"
        return await _reply(found, arrays, what)

    async def stats(self, request: Request) -> Response:
        """`GET /trajectory/stats`."""
        found = await self.store.query("statistics", statistics)
        oldest = found.pop("oldest_unread_at")
        found["oldest_unread"] = (
            None if oldest is None else {"finalized_at": oldest, "age_seconds": max(0.0, time.time() - oldest)}
        )
        tombstones = await self.store.query("tombstones", expired_counts)
        found["under_way"] = self.under_way()
        found["retention"] = {**self.dropped(), "tombstones": tombstones}
        return Response(orjson.dumps(found), media_type="application/json")


class _Stream(StreamingResponse):
    """A body that breaks off is left unfinished: the server then closes the connection, and the client sees that
    bytes are missing."""

    async def stream_response(self, send: Send) -> None:
        """Send the body, as far as it goes."""
        with suppress(BrokenOff):
            await super().stream_response(send)


async def _reply(body: TrajectoryBody, arrays: str, what: str) -> Response:
    if arrays == "json":
        return _Stream(sent_in_chunks(body.json(), what), media_type="application/json")
    length, pieces = await body.binary()
    headers = {"content-length": str(length)}
    return _Stream(sent_in_chunks(pieces, what), media_type=SAFETENSORS, headers=headers)


def _drain(body: dict[str, Any]) -> Drain | None:
    drain_id = fields.text(body, "drain_id")
    if drain_id is not None and not 1 <= len(drain_id) <= _LONGEST_DRAIN_ID:
        raise bad_field("drain_id", drain_id, f"send 1 to {_LONGEST_DRAIN_ID} characters")
    if fields.boolean(body, "drain", False):
        return Drain(drain_id)
    if drain_id is not None:
        raise bad_field("drain_id", drain_id, "it names a drain: send drain: true with it")
    return None


def _group_query(body: dict[str, Any], include_drained: bool) -> GroupQuery:
    most = fields.integer(body, "max_groups", 1, _MOST_GROUPS)
    least = fields.integer(body, "min_group_size", 1, _MOST_GROUPS)
    assert most is not None
    return GroupQuery(most, least or 1, fields.text(body, "run_id"), include_drained)


def _session_id(body: dict[str, Any], name: str) -> str:
    session_id = fields.text(body, name)
    if not session_id:
        raise bad_field(name, session_id, "name the session")
    for group_field in _GROUP_FIELDS:
        if body.get(group_field) is not None:
            raise bad_field(group_field, body[group_field], "it goes with max_groups only")
    return session_id
