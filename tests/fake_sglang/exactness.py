"""Invariant I1 over recorded requests: the next prompt begins with what the model read and sampled, bit for bit.

Promise: pure functions over finished records; a violation is reported with the index of the first id that
differs, both ids, and their surroundings as text when there is a tokenizer. Concurrency: none.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from tests.fake_sglang.vocabulary import Vocabulary

if TYPE_CHECKING:
    from tests.fake_sglang.recorder import RecordedRequest

CONTEXT_IDS = 6


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the longest common prefix, by bisection over slice comparisons (which run in C)."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def continued_length(request: "RecordedRequest", earlier: "RecordedRequest") -> int | None:
    """How many ids of `request` come from `earlier` (its prompt and output), or None if it does not go on with it.

    A finished request is continued by a prompt that begins with all it read and sampled. One that was
    interrupted is
    also continued by exactly its prompt and a prefix of what it sampled: the client may have lost the rest,
    or started over.
    """
    prompt, output, ids = earlier.input_ids, earlier.output_ids, request.input_ids
    if ids[: len(prompt)] != prompt:
        return None
    rest = len(ids) - len(prompt)
    if rest >= len(output) and ids[len(prompt) : len(prompt) + len(output)] == output:
        return len(prompt) + len(output)
    if earlier.interrupted and ids[len(prompt) :] == output[:rest]:
        return len(ids)
    return None


def find_parent(request: "RecordedRequest", candidates: Sequence["RecordedRequest"]) -> "RecordedRequest | None":
    """The earlier request that `request` shares most ids with as its continuation (the newest, when equal)."""
    best: tuple[int, int] | None = None
    parent = None
    for earlier in candidates:
        if earlier.order >= request.order or not earlier.done:
            continue
        length = continued_length(request, earlier)
        if length is not None and (best is None or (length, earlier.order) > best):
            best, parent = (length, earlier.order), earlier
    return parent


def assert_roots(requests: Sequence["RecordedRequest"], expected_roots: int, vocabulary: Vocabulary) -> None:
    """At most `expected_roots` of `requests` (one session) may have no parent."""
    roots = [request for request in requests if find_parent(request, requests) is None]
    if len(roots) <= expected_roots:
        return
    culprit = roots[expected_roots]
    earlier = [request for request in requests if request.order < culprit.order and request.done]
    nearest = max(
        earlier,
        key=lambda one: common_prefix(one.input_ids + one.output_ids, culprit.input_ids),
        default=None,
    )
    detail = describe_difference(nearest, culprit, vocabulary) if nearest else "nothing came before it"
    raise AssertionError(
        f"I1 broken in session {culprit.session!r}: {len(roots)} requests start a new sequence, "
        f"expected at most {expected_roots}. Request #{culprit.order} (rid {culprit.rid}) continues none: {detail}"
    )


def assert_chain(steps: Sequence["RecordedRequest"], vocabulary: Vocabulary) -> None:
    """Each step continues the one before it."""
    for before, after in pairwise(steps):
        if continued_length(after, before) is None:
            raise AssertionError(
                f"I1 broken in session {after.session!r}: request #{after.order} (rid {after.rid}) does not "
                f"continue the one before it: {describe_difference(before, after, vocabulary)}"
            )


def describe_difference(before: "RecordedRequest", after: "RecordedRequest", vocabulary: Vocabulary) -> str:
    """Where `after.input_ids` leaves `before.input_ids + before.output_ids`, with some context."""
    expected, actual = before.input_ids + before.output_ids, after.input_ids
    index = common_prefix(expected, actual)
    place = "prompt" if index < len(before.input_ids) else "output"
    lines = [
        f"against request #{before.order} ({len(before.input_ids)} prompt + {len(before.output_ids)} output ids, "
        f"{before.outcome}) the first difference is at index {index}, in its {place}",
        f"  expected {_id_at(expected, index)}: {_window(expected, index, vocabulary)}",
        f"  got      {_id_at(actual, index)}: {_window(actual, index, vocabulary)}",
    ]
    return "\n".join(lines)


def _id_at(ids: Sequence[int], index: int) -> str:
    return f"id {ids[index]}" if index < len(ids) else "the end"


def _window(ids: Sequence[int], index: int, vocabulary: Vocabulary) -> str:
    start = max(0, index - CONTEXT_IDS)
    window = list(ids[start : index + CONTEXT_IDS])
    shown = f"ids[{start}:{start + len(window)}] = {window}"
    if vocabulary.tokenizer is not None:
        shown += f" = {vocabulary.decode(window, skip_special_tokens=False)!r}"
    return shown
