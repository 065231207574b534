"""What an error of PostgreSQL or of the way to it means: cause, remedy, and whether to try again.

Promise: pure; by SQLSTATE (PostgreSQL 18, appendix A), never by the text of a message. The details of an error,
which may hold stored values, are left out.
"""

from __future__ import annotations

import ssl

from asyncpg import exceptions  # type: ignore[import-untyped]
from sqlalchemy.exc import DBAPIError, SQLAlchemyError, StatementError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from sidecar.store.backend import Fault
from sidecar.store.protocol import StoreError

_CAUSES = {
    "53100": ("disk full", "free space in the server's data directory"),
    "53200": ("out of memory", "give the server more memory"),
    "53300": ("too many connections", "raise max_connections, or run fewer sidecars on this server"),
    "25006": ("read-only", "connect to the primary (target_session_attrs=read-write in the URL)"),
    "28000": ("refused", "check user and pg_hba.conf"),
    "28P01": ("wrong password", "check user and password of the URL"),
    "3D000": ("there is no such database", "create it, or name another one"),
    "3F000": ("there is no such schema", "create it, or give another search_path"),
    "42501": ("no permission", "grant the user CREATE and USAGE on its schema, or give it a schema of its own"),
    "42P01": ("a table is missing", "restore a copy, or give an empty database"),
    "42703": ("a column is missing", "restore a copy, or give an empty database"),
    "XX001": ("corrupt", "restore a copy"),
    "XX002": ("an index is corrupt", "run REINDEX DATABASE"),
    "58030": ("input/output error", "check the server's disk"),
    "26000": ("a prepared statement is gone", "behind a pooler, add statement_cache_size=0 to the URL"),
    "42P05": ("a prepared statement is there twice", "behind a pooler, add statement_cache_size=0 to the URL"),
    "55P03": ("locked", "end the session that holds the lock"),
    "40P01": ("deadlock", "end what else writes to these tables"),
    "40001": ("serialization failure", "end what else writes to these tables"),
}
_CLASSES = {
    "08": ("connection lost", "check the server and the network"),
    "57P": ("connection lost: the server stops or starts", "check the server"),
    "25P": ("connection lost: the session was ended", "check the server and the network"),
    "53": ("short of resources", "check the server"),
    "58": ("system error", "check the server's disk and its log"),
    "F0": ("bad configuration", "check the server's log"),
    "XX": ("internal error", "check the server's log"),
}
_AGAIN = ("08", "57P01", "57P02", "57P03", "57P05", "25P03", "25006", "53300", "40001", "40P01", "55P03")
"""Another attempt may succeed; 25006 after a failover, on another connection."""
_OF_ONE_ROW = ("21", "22", "23", "54")


def original(error: BaseException) -> BaseException:
    """The driver's own exception below those of SQLAlchemy."""
    cause = (error.orig if isinstance(error, StatementError) else None) or error
    while cause.__cause__ is not None and type(cause).__module__.startswith("sqlalchemy"):
        cause = cause.__cause__
    return cause


def try_again(error: BaseException) -> bool:
    """Whether a second attempt on a new connection may succeed where this one failed."""
    cause = original(error)
    state = getattr(cause, "sqlstate", None)
    if state is not None:  # a prepared statement may be older than the tables, after an upgrade by another program
        return str(state).startswith(_AGAIN) or isinstance(cause, exceptions.InvalidCachedStatementError)
    return _is_lost(error, cause)


def describe(place: str, error: BaseException) -> Fault:
    """What an exception raised by SQLAlchemy, asyncpg or the network says about the database at `place`."""
    cause = original(error)
    message = _message(cause)
    state = str(getattr(cause, "sqlstate", None) or "")
    if not state:
        return _describe_client(place, error, cause, message)
    if state.startswith(_OF_ONE_ROW):
        name = getattr(cause, "constraint_name", None)
        return Fault(f"{message} ({name})" if name and name not in message else message, environmental=False)
    what, remedy = _CAUSES.get(state) or next(
        (found for start, found in _CLASSES.items() if state.startswith(start)),
        ("failed", "see the message of PostgreSQL"),
    )
    return Fault(f"{place}: {what} ({message}); {remedy}", True, worth_splitting=not state.startswith(_AGAIN))


def _describe_client(place: str, error: BaseException, cause: BaseException, message: str) -> Fault:
    if isinstance(error, StoreError):  # which says it all
        return Fault(str(error), True, False)
    if isinstance(cause, ssl.SSLError):
        return Fault(f"{place}: no TLS ({message}); check sslmode and sslrootcert of the URL", True, False)
    if _is_lost(error, cause):
        return Fault(f"{place}: connection lost ({message}); check the server and the network", True, False)
    if isinstance(error, PoolTimeoutError):
        return Fault(f"{place}: all connections are busy; try again", True, False)
    if isinstance(cause, exceptions.DataError):  # a value that the driver could not encode
        return Fault(message, environmental=False)
    environmental = isinstance(error, DBAPIError | OSError | exceptions.InterfaceError)
    return Fault(f"{place}: {message}" if environmental else message, environmental)


def _is_lost(error: BaseException, cause: BaseException) -> bool:
    if isinstance(cause, ssl.SSLError):
        return False
    if isinstance(cause, OSError | EOFError):  # TimeoutError is an OSError; so is a name that is not resolved
        return True
    if isinstance(cause, exceptions.DataError | exceptions.ClientConfigurationError):
        return False
    if isinstance(cause, exceptions.InterfaceError | exceptions.InternalClientError):
        return True
    return isinstance(error, DBAPIError) and error.connection_invalidated


def _message(cause: BaseException) -> str:
    """Type and first words: str() of a PostgreSQL error would add its DETAIL, which holds values."""
    first = str(cause.args[0]) if cause.args else str(cause)
    if isinstance(cause, OSError) and cause.strerror:
        first = cause.strerror
    if isinstance(cause, SQLAlchemyError):
        first = first.splitlines()[0]
    return f"{type(cause).__name__}: {first}" if first else type(cause).__name__
