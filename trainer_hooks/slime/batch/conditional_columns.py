"""Train-data keys that are there only under a condition.

slime looks at the first sample to decide, and fails later, or drops data, where samples differ. Here a mixed
batch is an error that names both kinds. Pure; nothing is modified.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from trainer_hooks.slime.batch.trajectories import describe
from trainer_hooks.slime.errors import ConversionError
from trainer_hooks.slime.segments.routed_experts import check_replay_rows, replay_enabled


def conditional_columns(args: Any, samples: Sequence[Any]) -> dict[str, list[Any]]:
    """Log-probs, routed experts, metadata, multimodal, teacher, round number and source columns.

    Conditions as in slime 0.3.1; its top-p columns are not among them, since `check_args` refuses
    `rollout_top_p`. Raises `ConversionError` on mixed presence, on a length that does not fit
    the sample, and where `args` asks for data that samples do not have.
    """
    columns: dict[str, list[Any]] = {}

    def add(key: str, name: str, value_of: Callable[[Any], Any]) -> None:
        values = all_or_none(name, value_of, samples)
        if values is not None:
            columns[key] = values

    add("round_number", "metadata['round_number']", lambda s: (s.metadata or {}).get("round_number"))
    add("rollout_log_probs", "rollout_log_probs", lambda s: s.rollout_log_probs)
    add("rollout_routed_experts", "rollout_routed_experts", lambda s: s.rollout_routed_experts)
    add("metadata", "train_metadata", lambda s: s.train_metadata)
    add("teacher_log_probs", "teacher_log_probs", lambda s: s.teacher_log_probs)
    if all_or_none("metadata", lambda s: s.metadata, samples) is not None:
        columns["source_names"] = [_source(sample) for sample in samples]
    # The one column that may be mixed: text-only samples of a multimodal batch hold None there.
    if any(sample.multimodal_train_inputs is not None for sample in samples):
        columns["multimodal_train_inputs"] = [sample.multimodal_train_inputs for sample in samples]
    _check_lengths(columns, samples)
    _check_replay(args, columns, samples)
    return columns


def all_or_none(name: str, value_of: Callable[[Any], Any], samples: Sequence[Any]) -> list[Any] | None:
    """`value_of` every sample; None where all are None. Raises `ConversionError` where only some are."""
    values = [value_of(sample) for sample in samples]
    missing = [i for i, value in enumerate(values) if value is None]
    if not missing:
        return values
    if len(missing) == len(values):
        return None
    present = next(i for i, value in enumerate(values) if value is not None)
    raise ConversionError(
        f"{name} is set on {len(values) - len(missing)} of {len(values)} samples: samples[{present}] "
        f"({describe(samples[present])}) has it, samples[{missing[0]}] ({describe(samples[missing[0]])}) does "
        "not; set it on all or on none"
    )


def _check_lengths(columns: dict[str, list[Any]], samples: Sequence[Any]) -> None:
    for name in ("rollout_log_probs", "teacher_log_probs"):
        for i, values in enumerate(columns.get(name, ())):
            if len(values) != samples[i].response_length:
                raise ConversionError(
                    f"samples[{i}] ({describe(samples[i])}): {name} has {len(values)} entries for "
                    f"response_length {samples[i].response_length}; they must agree"
                )


def _check_replay(args: Any, columns: dict[str, list[Any]], samples: Sequence[Any]) -> None:
    if not replay_enabled(args):
        return
    if "rollout_routed_experts" not in columns:
        raise ConversionError(
            "use_rollout_routing_replay is set but no sample has rollout_routed_experts; start the sidecar with "
            "--use-rollout-routing-replay"
        )
    for i, experts in enumerate(columns["rollout_routed_experts"]):
        check_replay_rows(experts, token_count=len(samples[i].tokens), position=i, args=args)


def _source(sample: Any) -> str:
    """As slime's `get_source`: the sample's `source`, else `metadata["source_name"]`, else `unknown`."""
    return getattr(sample, "source", None) or sample.metadata.get("source_name") or "unknown"
