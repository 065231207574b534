"""The tables of the store: what is kept, under which keys, and which version of the layout this is.

Promise: one definition for every SQL database; only portable types. Arrays are little-endian int32 or float32
blobs, structured values are JSON text, times are Unix seconds. Data only, shared freely between tasks.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
)

SCHEMA_MAJOR = 1
"""Raised when an older program could no longer read or write the tables."""

SCHEMA_MINOR = 2
"""Raised when something was added that an older program may ignore."""

VERSION_KEY = "schema_version"
PROBE_KEY = "probe"

metadata = MetaData()

meta = Table(
    "meta",
    metadata,
    Column("key", Text, primary_key=True),
    Column("value", Text, nullable=False),
)

session = Table(
    "session",
    metadata,
    Column("session_id", Text, primary_key=True),
    Column("instance_id", Text),
    Column("run_id", Text),
    Column("metadata", Text, nullable=False),
    Column("sampling", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("updated_at", Double, nullable=False),
    Column("finalization", Text),
    Column("drained_at", Double),
    Column("owner", Text),
    Column("epoch", BigInteger),
    Column("stored_bytes", BigInteger),
    Column("forgotten_at", Double),
    Column("drain_id", Text),
    Index("session_by_state", "state", "updated_at"),
    Index("session_by_instance", "instance_id"),
    Index("session_by_drain", "drained_at", "state", "updated_at"),  # the unread are few among many drained ones
    Index("session_by_drain_id", "drain_id"),
)

SESSION_APART = frozenset({"owner", "epoch", "stored_bytes", "forgotten_at", "drain_id"})
"""Columns of `session` that saving a session's row leaves as they are: each has statements of its own."""

# A step without its session could never be loaded, so the foreign key refuses it instead of losing it.
# Short columns come first: SQLite then finds them, and changes `delivered`, without the pages of the arrays.
step = Table(
    "step",
    metadata,
    Column("session_id", Text, ForeignKey("session.session_id"), primary_key=True),
    Column("step_id", Text, primary_key=True),
    Column("begun", Integer, nullable=False),
    Column("sequence", Integer),
    Column("parent_id", Text),
    Column("segment_reason", Text),
    Column("state", Text, nullable=False),
    Column("delivered", Boolean, nullable=False),
    Column("finish_reason", Text, nullable=False),
    Column("stop_id", Integer),
    Column("message_count", Integer, nullable=False),
    Column("retry_count", Integer, nullable=False),
    Column("untrainable", Text),
    Column("superseded_by", Text),
    Column("routed_rows", Text),
    Column("created_at", Double, nullable=False),
    Column("prompt_chain", LargeBinary, nullable=False),
    Column("prompt_exact_chain", LargeBinary, nullable=False),
    Column("chain", LargeBinary, nullable=False),
    Column("exact_chain", LargeBinary, nullable=False),
    Column("system_hash", LargeBinary, nullable=False),
    Column("tools_hash", LargeBinary),
    Column("body_hash", LargeBinary, nullable=False),
    Column("template_sha256", Text, nullable=False),
    Column("tokenizer_sha256", Text),
    Column("tokenizer", Text),
    Column("call_id", Text, nullable=False),
    Column("replaced", Text, nullable=False),
    Column("template_kwargs", Text, nullable=False),
    Column("version_spans", Text, nullable=False),
    Column("sampling", Text, nullable=False),
    Column("forgiven", Text, nullable=False),
    Column("break_reason", Text),
    Column("extra", Text, nullable=False),
    Column("message_hashes", LargeBinary, nullable=False),
    Column("prefix", LargeBinary, nullable=False),
    Column("reply", LargeBinary, nullable=False),
    Column("context_ids", LargeBinary, nullable=False),
    Column("output_ids", LargeBinary, nullable=False),
    Column("output_logprobs", LargeBinary, nullable=False),
    Column("checksum", Text),
    # NULLs are distinct in SQLite and PostgreSQL: any number of steps may be without a sequence number.
    UniqueConstraint("session_id", "sequence", name="step_sequence"),
)

blob = Table(
    "blob",
    metadata,
    Column("session_id", Text, ForeignKey("session.session_id"), primary_key=True),
    Column("key", LargeBinary, primary_key=True),
    Column("data", LargeBinary, nullable=False),
    Column("checksum", Text),
)

pause = Table(
    "pause",
    metadata,
    Column("pause_id", Text, primary_key=True),
    Column("scope", Text, nullable=False),
    Column("mode", Text, nullable=False),
    Column("reason", Text),
    Column("lease_expires_at", Double, nullable=False),
    Column("sidecar_id", Text),
)

lease = Table(
    "lease",
    metadata,
    Column("sidecar_id", Text, primary_key=True),
    Column("url", Text),
    Column("control_url", Text),
    Column("expires_at", Double),
)

ADDED: dict[int, tuple[Column[Any], ...]] = {
    1: (step.c.tokenizer_sha256, step.c.tokenizer, step.c.routed_rows),
    2: (
        session.c.owner,
        session.c.epoch,
        session.c.stored_bytes,
        session.c.forgotten_at,
        session.c.drain_id,
        pause.c.sidecar_id,
        step.c.checksum,
        blob.c.checksum,
    ),
}
"""Minor version -> the columns that came with it. They allow NULL: that is what they hold in older rows, and what
an older program leaves in them. Tables and indexes that came with a version need no list: whatever is not there
is created."""

ADDED_TABLES = {2: (lease,)}
"""Minor version -> the tables that came with it."""


def columns_since(minor: int) -> tuple[Column[Any], ...]:
    """The columns that a database of this minor version lacks, in tables that it has."""
    return tuple(column for added, columns in sorted(ADDED.items()) if added > minor for column in columns)
