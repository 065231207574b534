"""What lenient matching let pass, message by message. Pure.

A step lists what its request tells otherwise than it is stored, unless an earlier step of its lineage lists it
already: the lists of a lineage together say everything, and a client that loses something on every replay is noted
once. Where the history before the parent's reply is told as the parent's request told it, that costs a comparison
of 16 bytes; else the earlier messages are hashed, and only those whose hash differs are read and compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sidecar.tito.differences import forgiven_differences
from sidecar.tito.fingerprint import Chain, MatchRules, digest
from sidecar.tito.history import StoredMessage, history_of, stored_reply
from sidecar.tito.messages import Message
from sidecar.tito.records import Forgiven
from sidecar.tito.trajectory import Match, Node


@dataclass(frozen=True, slots=True)
class Retold:
    """A message that the request tells otherwise than it is stored."""

    message_index: int
    told: Message
    stored: StoredMessage


def retold_messages(
    match: Match, messages: Sequence[Message], chains: Sequence[Chain], rules: MatchRules
) -> list[Retold]:
    """The messages of a request that are not, byte for byte, those of the history that it matches."""
    reply = match.depth - 1
    if chains[reply].exact != match.node.record.prompt_exact_chain:
        suspects = list(range(reply))
    elif rules.volatile:
        known = _listed(match.node)
        suspects = [
            index
            for index in range(reply)
            if messages[index].role == "system" and Forgiven(index, "content", "volatile") not in known
        ]
    else:
        suspects = []
    if not match.exact:
        suspects.append(reply)
    if not suspects:
        return []
    if suspects == [reply]:
        stored = {reply: stored_reply(match.node)}
    else:
        stored = dict(enumerate(history_of(match.node, suspects[-1] + 1)))
    return [
        Retold(index, messages[index], stored[index])
        for index in suspects
        if stored[index].key != digest(messages[index].to_json())
    ]


def missing_keys(retold: Iterable[Retold]) -> list[bytes]:
    """Blobs that `audit` needs."""
    return [one.stored.key for one in retold if one.stored.data is None]


def audit(
    node: Node, retold: Sequence[Retold], blobs: Mapping[bytes, bytes], rules: MatchRules
) -> tuple[Forgiven, ...]:
    """The forgiven differences that no step up to `node`, the request's parent, lists."""
    if not retold:
        return ()
    found = [
        difference
        for one in retold
        for difference in forgiven_differences(_message(one.stored, blobs), one.told, one.message_index, rules)
    ]
    # the parent's own reply was never retold before
    known = _listed(node) if any(one.message_index < node.record.message_count - 1 for one in found) else ()
    return tuple(difference for difference in found if difference not in known)


def _message(stored: StoredMessage, blobs: Mapping[bytes, bytes]) -> Message:
    return Message.from_json(stored.data if stored.data is not None else blobs[stored.key])


def _listed(node: Node) -> set[Forgiven]:
    return {difference for step in node.lineage() for difference in step.record.forgiven}
