"""What differs between SQL databases: how a transaction is run, and what an error means.

Promise: everything else in this package is the same for every database. Used from one event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from sqlalchemy import Connection, Engine

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Fault:
    """What an exception of the database means."""

    message: str
    """Cause, place and remedy, without any stored content."""
    environmental: bool
    """The database cannot write at present, whatever it is given; else this one write was at fault."""
    worth_splitting: bool = True
    """The writes of a failed batch may succeed one by one. False where each try would only wait again."""
    damaged: bool = False
    """The database's own structure is damaged: nothing in it is to be trusted, though a write may succeed."""


class Backend(Protocol):
    """One database. Functions are given a connection inside a transaction and may run in another thread."""

    @property
    def write_engine(self) -> Engine:
        """The engine of the only connection that writes."""

    async def prepare(self, read_only: bool) -> None:
        """Make what has to be there before the first connection, or check it if nothing may be made. Raises
        `StoreError`."""

    async def write(self, work: Callable[[Connection], T], *, once: bool = False) -> T:
        """Run `work` in a transaction and commit; roll back and raise what it raised.

        A database that is reached over a network runs `work` again where the outcome of a COMMIT was lost: it has
        to leave the same rows when it is committed twice. `once` rules that out, at some cost."""

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Run `work` on a snapshot, on a connection of its own: a long read does not hold up the writer."""

    def describe(self, error: BaseException) -> Fault:
        """What an exception that `write` or `read` raised says about the database."""

    async def dispose(self) -> None:
        """Close all connections."""
