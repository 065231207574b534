"""Weight versions on samples, and masking all but the last version."""

from __future__ import annotations

from typing import Any

import pytest

from tests.trainer_hooks.builders import make_segment, make_template
from tests.trainer_hooks.slime_stand_in import Sample, make_args
from trainer_hooks.slime.errors import SegmentError
from trainer_hooks.slime.samples import expand_segments_to_samples

C = "-1"
MASKING = {"mask_nonlast_version_tokens": True}


def expand(loss_mask: str, versions: list[str] | None, *, cap: int | None = None, **changes: Any) -> Sample:
    segment = make_segment(loss_mask, **changes) | {"full_versions": versions}
    (sample,) = expand_segments_to_samples(make_template(), [segment], args=make_args(max_tokens_per_gpu=cap))
    return sample


def test_versions_of_trained_tokens_are_recorded_under_both_names() -> None:
    versions = [C, "7", C, "9", "9", "10", C]
    sample = expand("0001110", versions)
    assert sample.weight_versions == ["9", "10"]
    assert sample.metadata["full_versions"] == versions
    assert sample.metadata["version_spans"] == [
        {"start": 1, "end": 2, "version": "7"},
        {"start": 3, "end": 5, "version": "9"},
        {"start": 5, "end": 6, "version": "10"},
    ]
    for prefix in ("", "dressage_"):
        assert sample.metadata[f"{prefix}start_token_version"] == "9"
        assert sample.metadata[f"{prefix}end_token_version"] == "10"
        assert sample.metadata[f"{prefix}partial_rollout"] is True


def test_context_between_tokens_of_one_version_ends_a_span() -> None:
    spans = expand("01101", [C, "1", "1", C, "1"]).metadata["version_spans"]
    assert spans == [{"start": 1, "end": 3, "version": "1"}, {"start": 4, "end": 5, "version": "1"}]


def test_one_version_is_no_partial_rollout_even_after_untrained_tokens_of_another() -> None:
    sample = expand("0011", [C, "1", "2", "2"])
    assert "partial_rollout" not in sample.metadata and "dressage_partial_rollout" not in sample.metadata
    assert sample.weight_versions == ["2"]


def test_masking_keeps_the_version_of_the_last_trained_token_by_position() -> None:
    # "9" > "10" as strings and the version returns: neither order nor recency of first sight decides.
    sample = expand("0111101", [C, "9", "9", "10", "9", C, "10"], extra_info=MASKING)
    assert sample.loss_mask == [0, 0, 1, 0, 0, 1]
    assert sample.response_length == 6
    assert sample.rollout_log_probs == [-2 / 8, -3 / 8, -4 / 8, -5 / 8, 0.0, -7 / 8]
    assert sample.metadata["partial_rollout"] is True
    assert sample.metadata["start_token_version"] == "9"
    assert sample.weight_versions == ["9", "10"]


def test_masking_never_changes_the_stored_segment() -> None:
    segment = make_segment("0111", versions=[C, "1", "2", "2"], extra_info=MASKING)
    (sample,) = expand_segments_to_samples(make_template(), [segment])
    assert segment["full_loss_mask"] == [0, 1, 1, 1]
    assert sample.loss_mask == [0, 1, 1]


def test_an_untrained_tail_of_a_newer_version_does_not_decide() -> None:
    assert expand("01101", [C, "1", "1", "2", "1"], extra_info=MASKING).loss_mask == [1, 1, 0, 1]


def test_masking_looks_at_what_the_cap_left() -> None:
    sample = expand("0111", [C, "1", "1", "2"], cap=3, extra_info=MASKING)
    assert sample.loss_mask == [1, 1]
    assert sample.metadata["full_versions"] == [C, "1", "1"]


def test_without_the_flag_every_version_trains() -> None:
    assert expand("0111", [C, "1", "2", "3"]).loss_mask == [1, 1, 1]


@pytest.mark.parametrize("versions", [None, [C, "unknown", "unknown", "2"]])
def test_masking_without_recorded_versions_is_refused(versions: list[str] | None) -> None:
    with pytest.raises(SegmentError, match="record-token-versions"):
        expand("0111", versions, extra_info=MASKING)


def test_a_segment_without_versions_gets_no_version_metadata() -> None:
    sample = expand("0111", None)
    assert sample.weight_versions == [] and "full_versions" not in sample.metadata


def test_an_untrained_anchor_has_no_first_and_last_version() -> None:
    segments = [make_segment("01", index=0), make_segment("00", index=1, versions=[C, "3"])]
    anchor = expand_segments_to_samples(make_template(), segments)[-1]
    assert anchor.metadata["start_token_version"] is None and anchor.metadata["end_token_version"] is None
    assert anchor.weight_versions == []
    assert anchor.metadata["version_spans"] == [{"start": 1, "end": 2, "version": "3"}]
