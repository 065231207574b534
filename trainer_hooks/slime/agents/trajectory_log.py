"""What a rollout leaves for debugging: one directory per trajectory, whole or not there at all.

    TITO_LOG_DIR/20261201T010203.004-failed-task_7-3f2a.../
        trajectory.json   ids, outcome, segments as they were read
        samples.json      what training gets of it
        error.json        why it is dead, where it is
        agent-stdout.log, agent-stderr.log, ...   what the agent printed

Promises that secrets are redacted, that only the newest `TITO_LOG_KEEP` (1000; 0 keeps all) directories stay, and
that a full disk or whatever else fails costs a warning and never a trajectory. Blocking: call it in a thread.
Any number of threads and processes may write into one directory.
"""

from __future__ import annotations

import datetime
import json
import logging
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from trainer_hooks.redaction import Redactor
from trainer_hooks.slime.settings import number_setting, text_setting
from trainer_hooks.token_versions import TokenVersions

logger = logging.getLogger(__name__)

_NAME = re.compile(r"\d{8}T\d{6}\.\d{3}-(?:ok|failed)-.*")
_PARTIAL = ".partial-"
_TOKEN_FIELDS = ("tokens", "full_logprobs", "rollout_log_probs", "response")


@dataclass(frozen=True, slots=True)
class TrajectoryRecord:
    """One trajectory as it ended. `facts` are small; `error` is None where it lives."""

    session_id: str
    instance_id: str
    facts: Mapping[str, Any]
    segments: Sequence[Mapping[str, Any]] = ()
    samples: Sequence[Any] = ()
    error: Mapping[str, Any] | None = None
    output: Mapping[str, str] = field(default_factory=dict)


def write_trajectory(args: Any, record: TrajectoryRecord, redactor: Redactor) -> Path | None:
    """The new directory; None where `TITO_LOG_DIR` is not set or writing failed. Never raises."""
    partial: Path | None = None
    try:
        root = text_setting(args, "TITO_LOG_DIR")
        if root is None:
            return None
        keep = int(number_setting(args, "TITO_LOG_KEEP", 1000, whole=True))
        Path(root).mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=_PARTIAL, dir=root))
        for name, content in _files(record, redactor).items():
            (partial / name).write_text(content, encoding="utf-8", errors="replace")
        final = Path(root) / _directory_name(record)
        partial.rename(final)
        _forget_old(Path(root), keep)
    except Exception:
        logger.warning("trajectory_log_failed session=%s", record.session_id, exc_info=True)
        if partial is not None:
            shutil.rmtree(partial, ignore_errors=True)
        return None
    return final


def _files(record: TrajectoryRecord, redactor: Redactor) -> dict[str, str]:
    segments = [redactor.tree(dict(segment)) for segment in record.segments]
    # Ids spell out what was redacted in the messages, so they go with it.
    clean = all(
        all(after.get(name) == before.get(name) for name in ("messages", "tools"))
        for before, after in zip(record.segments, segments, strict=True)
    )
    samples = [redactor.tree(_sample_fields(sample)) for sample in record.samples]
    if not clean:
        segments, samples = [[_without_tokens(one) for one in many] for many in (segments, samples)]
    head = {"session_id": record.session_id, "instance_id": record.instance_id, **record.facts}
    files = {
        "trajectory.json": _json(redactor.tree(head) | {"secrets_found": not clean, "segments": segments}),
        "samples.json": _json(samples),
    }
    if record.error is not None:
        files["error.json"] = _json(redactor.tree(dict(record.error)))
    for name, text in record.output.items():
        files[f"agent-{_plain(name)}.log"] = redactor.text(text)
    return files


def _sample_fields(sample: Any) -> dict[str, Any]:
    fields = dict(sample.to_dict())
    experts = fields.get("rollout_routed_experts")
    if experts is not None:
        fields["rollout_routed_experts"] = {"shape": list(np.shape(experts))}
    return fields


def _without_tokens(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: f"left out, {0 if value is None else len(value)} long: the messages held secrets"
        if key in _TOKEN_FIELDS
        else value
        for key, value in fields.items()
    }


def _directory_name(record: TrajectoryRecord) -> str:
    now = datetime.datetime.now(datetime.UTC)
    stamp = f"{now:%Y%m%dT%H%M%S}.{now.microsecond // 1000:03d}"
    outcome = "ok" if record.error is None else "failed"
    return f"{stamp}-{outcome}-{_plain(record.instance_id)[:60]}-{_plain(record.session_id)[:64]}"


def _forget_old(root: Path, keep: int) -> None:
    if not keep:
        return
    found = sorted(path for path in root.iterdir() if _NAME.fullmatch(path.name))
    for path in found[: max(0, len(found) - keep)]:
        shutil.rmtree(path, ignore_errors=True)


def _plain(name: str) -> str:
    return re.sub(r"[^\w.-]", "_", name)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=_plain_value, indent=None)


def _plain_value(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        # Routed experts are hundreds of numbers per token: gigabytes of memory for what nobody reads.
        return value.tolist() if value.ndim == 1 else {"shape": list(value.shape)}
    if isinstance(value, TokenVersions):
        return {"length": len(value), "spans": value.spans}
    if isinstance(value, np.generic):
        return value.item()
    return repr(value)
