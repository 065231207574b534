"""The file that keeps, beside slime's own, the groups that had not trained when a checkpoint was written.

Written whole or not at all. It is a pickle, as slime's own file is: load only checkpoints of your own. Samples
are stored as slime's `to_dict` gives them, so that a later slime with other fields can still read them.
"""

from __future__ import annotations

import logging
import os
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer_hooks.slime.slime_modules import slime_name

logger = logging.getLogger(__name__)

FORMAT = 1


def state_path(directory: Path, rollout_id: int | None) -> Path:
    """Beside `global_dataset_state_dict_{rollout_id}.pt`."""
    return directory / "rollout" / f"tito_groups_{rollout_id}.pkl"


def write_groups(path: Path, groups: Sequence[Sequence[Any]]) -> None:
    """Replace `path` by these groups."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = pickle.dumps(
        {"format": FORMAT, "groups": [[sample.to_dict() for sample in group] for group in groups]}
    )
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    with partial.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def read_groups(path: Path) -> list[list[Any]]:
    """The groups in `path`; none without such a file (a first start). Raises `ValueError` on another format."""
    if not path.exists():
        logger.info("no groups are continued: %s does not exist", path)
        return []
    state = pickle.loads(path.read_bytes())
    if state.get("format") != FORMAT:
        raise ValueError(f"{path} has format {state.get('format')!r}; this version reads {FORMAT}")
    sample = slime_name("slime.utils.types.Sample")
    return [[sample.from_dict(fields) for fields in group] for group in state["groups"]]
