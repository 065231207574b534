"""Which steps train by the weights that sampled them (`--max-version-span`, `--mask-nonlast-version-tokens`). Pure.

Versions are names: they restart with a trainer's run, so neither string nor number order means anything. What
counts is the order in which they sampled the session, which belongs to one run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sidecar.tito.records import UNKNOWN_VERSION, StepRecord


class VersionChanged(Exception):  # noqa: N818 - what happened to the session
    """Other weights than now have sampled the session's earlier steps, and it may have steps of one version."""


@dataclass(frozen=True, slots=True)
class VersionRules:
    """`mask_nonlast`: the trainer keeps only tokens of a sample's last version. `max_span`: how many versions of a
    session train, the newest of those that sampled it; None is all."""

    mask_nonlast: bool = False
    max_span: int | None = None

    @property
    def need_versions(self) -> bool:
        """A token whose version is not known cannot train."""
        return self.mask_nonlast or self.max_span is not None


ALL_VERSIONS = VersionRules()


def sampled_versions(record: StepRecord) -> list[str]:
    """Names of the versions that sampled a step, each once, in order of first sight."""
    return list(dict.fromkeys(span.version for span in record.version_spans))


def check_same_version(session_id: str, earlier: Iterable[str], now: Iterable[str]) -> None:
    """Raises `VersionChanged` if two known versions differ."""
    for before in earlier:
        for after in now:
            if before != after and UNKNOWN_VERSION not in (before, after):
                raise VersionChanged(
                    f"session {session_id!r} has steps of weight version {before}, and the engine is at {after}; "
                    "start a new session, or serve with --partial-rollout"
                )


def versions_in_order(steps: Iterable[Sequence[str]]) -> list[str]:
    """All versions in the order in which they were in force, oldest first.

    `steps` are the versions of each step in order of commit. A step that was committed later may have begun with an
    older version: that one comes before the version that followed it within the step."""
    order: list[str] = []
    for versions in steps:
        position = len(order)
        for version in reversed(versions):
            if version in order:
                position = order.index(version)
            else:
                order.insert(position, version)
    return order


def barred_by_version(records: Iterable[StepRecord], rules: VersionRules) -> dict[str, str]:
    """Step id -> `version_unknown` or `version_span`, for steps that the rules keep from training.

    `records` are the steps that would train otherwise, in order of commit: what does not train makes nothing
    old."""
    if not rules.need_versions:
        return {}
    versions = {record.step_id: sampled_versions(record) for record in records}
    barred = {step_id: "version_unknown" for step_id, names in versions.items() if UNKNOWN_VERSION in names}
    if rules.max_span is not None:
        known = {step_id: names for step_id, names in versions.items() if step_id not in barred}
        kept = set(versions_in_order(known.values())[-rules.max_span :])
        barred.update((step_id, "version_span") for step_id, names in known.items() if not kept.issuperset(names))
    return barred
