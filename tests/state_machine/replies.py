"""A step's ids against what the engine sampled: every one of them once, in order, with its own logprob and version.

Pure functions over the engine's records.
"""

from dataclasses import dataclass

from tests.fake_sglang import RecordedRequest
from tests.state_machine.calls import Call
from tests.state_machine.policy import Policy

UNKNOWN = "unknown"


@dataclass(frozen=True)
class Part:
    """`ids[start:end]` of a reply came from one engine request, from its first id on."""

    request: RecordedRequest
    start: int
    end: int


def parts_of(policy: Policy, call: Call, ids: list[int]) -> list[Part]:
    """Which engine requests sampled a reply, found from its end on. Each has to go on from just those ids that
    stand before its own."""
    requests = policy.requests(call.seed)
    parts: list[Part] = []
    end = len(ids)
    while end:
        for one in reversed(requests):
            start = len(policy.carried(one))
            if start < end and (policy.carried(one) + one.output_ids)[:end] == ids[:end]:
                break
        else:
            raise AssertionError(f"lost or doubled: {ids[:end]} was never sampled; {_told(policy, requests)}")
        parts.insert(0, Part(one, start, end))
        end = start
    return parts


def check_reply(policy: Policy, call: Call, ids: list[int], *, committed: bool) -> list[Part]:
    """A committed reply is complete, and nothing that the engine told of it is left out."""
    parts = parts_of(policy, call, ids)
    wanted = call.shape.complete
    assert len(ids) == wanted if committed else len(ids) <= wanted, (
        f"a reply of {len(ids)} ids, not {wanted}: {ids}"
    )
    for part in parts[:-1]:
        if part.request.outcome == "aborted" and not _queue_aborted(part.request):
            told = len(part.request.output_ids)
            assert part.end - part.start == told, (
                f"lost: of {told} ids that {part.request} told, {part.end - part.start} were kept"
            )
    return parts


def _queue_aborted(request: RecordedRequest) -> bool:
    """One that stood in the waiting queue when it was aborted; an incremental server then repeats one id alone."""
    return "queue" in str((request.finish_reason or {}).get("message"))


def version_of(part: Part, position: int) -> str:
    """Which weights sampled the id at `position` of the reply."""
    offset = position - part.start
    return next(
        str(span["version"]) for span in part.request.weight_versions if span["start"] <= offset < span["end"]
    )


def may_be_unknown(part: Part, spans: bool) -> bool:
    """The sidecar was not told all versions of the request: its end, with the spans, never came."""
    return not spans or part.request.outcome not in ("finished", "aborted")


def _told(policy: Policy, requests: list[RecordedRequest]) -> str:
    return "; ".join(f"{policy.carried(one)} + {one.output_ids} {one.outcome}" for one in requests)
