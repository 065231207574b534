"""Fixtures of this folder: a sidecar that the tests of one module share."""

from tests.support.rollout import resumed
from tests.support.shared import module_sidecar, shared

__all__ = ["module_sidecar", "resumed", "shared"]
