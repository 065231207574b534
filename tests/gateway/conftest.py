"""Fixtures of this folder: a sidecar that the tests of one module share, and an agent in a session of it."""

from tests.gateway.good_session import agent
from tests.support.shared import module_sidecar, shared

__all__ = ["agent", "module_sidecar", "shared"]
