"""The messages of a step's history, as they are stored: replies on the records, all others as blobs. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from sidecar.tito.fingerprint import digest
from sidecar.tito.trajectory import Node


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """`key` is the hash of the message's JSON. `data` is the JSON itself where the record holds it (a reply), None
    where it is the blob of that key."""

    key: bytes
    data: bytes | None


def history_of(node: Node, count: int | None = None) -> list[StoredMessage]:
    """The messages up to and with the step's reply, each in its first telling; an aborted step's end with what its
    request said last. A step that went on with an earlier reply stands in its place. `count`: at least so many."""
    messages: list[StoredMessage] = []
    for step in node.lineage():
        record = step.record
        if count is not None and len(messages) > count:
            break  # a later step replaces the last of them at most
        messages += [StoredMessage(key, None) for key in record.message_hashes]
        del messages[record.message_count - bool(record.reply) :]
        if record.reply or record.prefix:
            messages.append(stored_reply(step))
    return messages


def stored_reply(node: Node) -> StoredMessage:
    """The last message of a step's history: its reply, or what an aborted step was to go on with."""
    last = node.record.reply or node.record.prefix
    return StoredMessage(digest(last), last)
