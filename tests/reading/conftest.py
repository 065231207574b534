"""Fixtures of this folder: a store on each database, and one sidecar per module."""

from tests.store.conftest import database, store
from tests.support.postgres import postgres
from tests.support.shared import module_sidecar, shared

__all__ = ["database", "module_sidecar", "postgres", "shared", "store"]
