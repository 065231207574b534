"""Everything the stand-in was asked and what it gave, in order.

Promise: every request is recorded the moment it arrives, whatever becomes of it; its record is completed in
place.
Concurrency: one event loop; a record of a request in flight grows while the engine generates.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.fake_sglang import exactness
from tests.fake_sglang.vocabulary import Vocabulary

ROUTING_KEY = "X-SMG-Routing-Key"


@dataclass(slots=True)
class RecordedCall:
    """One HTTP request of any kind; `body` is the parsed JSON, or the raw bytes where it is none."""

    order: int
    method: str
    path: str
    headers: Mapping[str, str]
    body: Any
    status: int | None = None


@dataclass(slots=True, eq=False, repr=False)
class RecordedRequest:
    """One `/generate` request.

    order: number in order of arrival, shared with `RecordedCall`. session: the `X-SMG-Routing-Key` header or
    None.
    output_ids, output_logprobs: what the engine generated so far, also where the client did not get it.
    outcome: `running` (blocked and queued ones too), `finished`, `aborted` (the client was told so), `failed`
    (a fault), `disconnected` (the client went away), `lost` (the engine went down or crashed), `rejected`
    (never generated).
    weight_versions: spans over `output_ids`, set when done. continues: the interrupted request it goes on
    with.
    """

    order: int
    rid: str
    session: str | None
    input_ids: list[int]
    sampling_params: dict[str, Any]
    headers: Mapping[str, str]
    stream: bool
    return_logprob: bool
    body: dict[str, Any]
    output_ids: list[int] = field(default_factory=list)
    output_logprobs: list[float | None] = field(default_factory=list)
    outcome: str = "running"
    finish_reason: dict[str, Any] | None = None
    weight_versions: list[dict[str, Any]] = field(default_factory=list)
    error: str | None = None
    continues: "RecordedRequest | None" = None

    def __repr__(self) -> str:
        """Short: a prompt may have a hundred thousand ids."""
        counts = f"{len(self.input_ids)}+{len(self.output_ids)} ids"
        return f"<request #{self.order} session={self.session!r} rid={self.rid} {counts} {self.outcome}>"

    @property
    def done(self) -> bool:
        """Whether this request will get nothing more."""
        return self.outcome != "running"

    @property
    def interrupted(self) -> bool:
        """Whether it ended before the model did."""
        return self.outcome not in ("running", "finished")


class Recorder:
    """The list of requests, and the assertions over it."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.requests: list[RecordedRequest] = []
        self.calls: list[RecordedCall] = []
        self._vocabulary = vocabulary
        self._order = 0

    def next_order(self) -> int:
        """The next number of the order of arrival."""
        self._order += 1
        return self._order

    def session(self, key: str | None) -> list[RecordedRequest]:
        """The requests of one session (header `X-SMG-Routing-Key`; None: those without it), oldest first."""
        return [request for request in self.requests if request.session == key]

    def sessions(self) -> dict[str | None, list[RecordedRequest]]:
        """All requests grouped by session, in order of first arrival."""
        groups: dict[str | None, list[RecordedRequest]] = {}
        for request in self.requests:
            groups.setdefault(request.session, []).append(request)
        return groups

    def calls_to(self, path: str) -> list[RecordedCall]:
        """The HTTP calls to one path, oldest first."""
        return [call for call in self.calls if call.path == path]

    def find_parent(self, request: RecordedRequest) -> RecordedRequest | None:
        """The earlier request of the same session that `request` goes on with, see `exactness.find_parent`."""
        return exactness.find_parent(request, self.session(request.session))

    def assert_i1(self, session: str | None = None, *, expected_roots: int = 1) -> None:
        """I1 for one session; without a key for each session there is. `AssertionError` names the first difference.

        expected_roots: how many requests may start a new sequence (lineages, siblings of a first turn,
        segments).
        """
        groups = {session: self.session(session)} if session is not None else self.sessions()
        if not any(groups.values()):
            raise AssertionError(f"no request was recorded for session {session!r}; I1 was not tested")
        for requests in groups.values():
            exactness.assert_roots(requests, expected_roots, self._vocabulary)

    def assert_append_only(self, session: str | None = None) -> None:
        """Stricter than I1: in each session (or this one) every request goes on with the one just before it."""
        groups = [self.session(session)] if session is not None else list(self.sessions().values())
        if not any(groups):
            raise AssertionError(f"no request was recorded for session {session!r}; nothing was tested")
        for requests in groups:
            self.assert_token_exact(requests)

    def assert_token_exact(self, steps: Sequence[RecordedRequest]) -> None:
        """Each of `steps` begins with `input_ids + output_ids` of the one before it."""
        exactness.assert_chain(steps, self._vocabulary)
