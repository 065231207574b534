"""Segments that break the contract are refused with a message that names the field."""

from __future__ import annotations

from typing import Any

import pytest

from tests.trainer_hooks.builders import make_segment, make_template
from trainer_hooks.slime.errors import HookError, SegmentError
from trainer_hooks.slime.samples import expand_segments_to_samples, write_sample_from_segment

BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "instance_id missing": ({"instance_id": None}, "instance_id is missing"),
    "instance_id empty": ({"instance_id": ""}, "instance_id is empty"),
    "session_id missing": ({"session_id": None}, "session_id is missing"),
    "segment_index missing": ({"segment_index": None}, "segment_index is missing"),
    "segment_index no integer": ({"segment_index": "0"}, "segment_index is '0'"),
    "tokens empty": ({"tokens": []}, "tokens is empty"),
    "tokens no integers": ({"tokens": [1.5, 2, 3, 4]}, "token ids are integers"),
    "tokens with None": ({"tokens": [1, None, 3, 4]}, "token ids are integers"),
    "tokens negative": ({"tokens": [1, -2, 3, 4]}, r"tokens\[1\] is -2"),
    "tokens nested": ({"tokens": [[1, 2, 3, 4]]}, "flat list"),
    "tokens ragged": ({"tokens": [[1], [2, 3]]}, "flat list"),
    "mask length": ({"full_loss_mask": [0, 1]}, "full_loss_mask has 2 entries for 4 tokens"),
    "logprob length": ({"full_logprobs": [0.0] * 5}, "full_logprobs has 5 entries for 4 tokens"),
    "version length": ({"full_versions": ["1"]}, "full_versions has 1 entries for 4 tokens"),
    "mask missing": ({"full_loss_mask": None}, "full_loss_mask is missing"),
    "mask not 0 or 1": ({"full_loss_mask": [0, 0, 2, 1]}, r"full_loss_mask\[2\] is 2"),
    "mask negative": ({"full_loss_mask": [0, 0, -1, 1]}, r"full_loss_mask\[2\] is -1"),
    "mask no integers": ({"full_loss_mask": [0, 0, 0.5, 1]}, "must be 0 or 1"),
    "first token trained": ({"full_loss_mask": [1, 1, 1, 1]}, r"full_loss_mask\[0\] is 1"),
    "logprob nan": ({"full_logprobs": [0.0, 0.0, float("nan"), -1.0]}, r"full_logprobs\[2\] is nan"),
    "logprob infinite": ({"full_logprobs": [0.0, 0.0, -1.0, float("-inf")]}, r"full_logprobs\[3\] is -inf"),
    "logprob None": ({"full_logprobs": [0.0, 0.0, None, -1.0]}, r"full_logprobs\[2\] is nan"),
    "logprob text": ({"full_logprobs": [0.0, 0.0, "x", -1.0]}, "full_logprobs"),
    "logprobs nested": ({"full_logprobs": [[0.0, 0.0, -1.0, -1.0]]}, "full_logprobs has 2 dimensions"),
    "logprob positive": ({"full_logprobs": [0.0, 0.0, 0.25, -1.0]}, r"full_logprobs\[2\] is 0.25"),
    "untrained logprob nan": ({"full_logprobs": [0.0, float("nan"), -1.0, -1.0]}, r"full_logprobs\[1\] is nan"),
    "trained context": ({"full_versions": ["-1", "-1", "-1", "1"]}, r"full_versions\[2\]"),
    "finish_reason missing": ({"finish_reason": None}, "finish_reason is missing"),
    "segment_count too high": ({"segment_count": 3}, "the anchor is missing"),
    "segment_count too low": ({"segment_count": 0}, "more than one anchor"),
}


@pytest.mark.parametrize(("changes", "message"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_segment_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SegmentError, match=message):
        expand_segments_to_samples(make_template(), [make_segment("0011") | changes])


def test_an_untrainable_segment_is_checked_too() -> None:
    broken = make_segment("0000", index=0, full_logprobs=[0.0])
    with pytest.raises(SegmentError, match="full_logprobs"):
        expand_segments_to_samples(make_template(), [broken, make_segment(index=1)])


def test_positive_logprob_of_an_untrained_token_passes() -> None:
    (sample,) = expand_segments_to_samples(make_template(), [make_segment("0010", full_logprobs=[0, 0.5, -1, 0.5])])
    assert sample.rollout_log_probs == [-1.0, 0.5]


def test_no_segments_means_no_anchor() -> None:
    with pytest.raises(SegmentError, match="no anchor"):
        expand_segments_to_samples(make_template(), [])


def test_a_segment_index_that_occurs_twice_is_refused() -> None:
    with pytest.raises(SegmentError, match="segment_index 1 occurs 2 times"):
        expand_segments_to_samples(make_template(), [make_segment(index=i) for i in (0, 1, 1)])


@pytest.mark.parametrize("field", ["session_id", "instance_id"])
def test_segments_of_two_sessions_are_refused(field: str) -> None:
    with pytest.raises(SegmentError, match=f"{field} differs"):
        expand_segments_to_samples(make_template(), [make_segment(), make_segment(index=1) | {field: "other"}])


def test_a_missing_inner_segment_is_refused() -> None:
    segments = [make_segment(index=i, segment_count=3) for i in (0, 2)]
    with pytest.raises(SegmentError, match="2 of 3 segments"):
        expand_segments_to_samples(make_template(), segments)


def test_a_complete_set_of_counted_segments_passes() -> None:
    segments = [make_segment(index=i, segment_count=3) for i in range(3)]
    assert len(expand_segments_to_samples(make_template(), segments)) == 3


def test_a_template_without_an_index_is_refused() -> None:
    with pytest.raises(SegmentError, match=r"template\.index is None"):
        expand_segments_to_samples(make_template(index=None), [make_segment()])


def test_a_sample_needs_a_prompt_token() -> None:
    with pytest.raises(SegmentError, match="1 token"):
        write_sample_from_segment(make_template(), make_segment("0"))


def test_segment_errors_are_hook_errors_and_value_errors() -> None:
    assert issubclass(SegmentError, HookError) and issubclass(HookError, ValueError)
