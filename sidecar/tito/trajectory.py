"""The forest of one session's steps, and which step a request continues.

Append-only and synchronous: a request that fails has added nothing. One owner (the session) on one event loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import orjson

from sidecar.tito.fingerprint import Chain
from sidecar.tito.records import Ids, StepRecord
from sidecar.tito.routed_rows import Coverage, coverage


@dataclass(eq=False, slots=True)
class Node:
    """A step in the forest. `token_count` is the length of its segment so far, its own output included."""

    record: StepRecord
    parent: Node | None
    token_count: int
    children: list[Node] = field(default_factory=list)
    coverage: Coverage | None = None
    """Routing replay: the rows of its segment that are stored up to here."""
    own_json: bytes | None = None
    """JSON of the ids that this step added, without brackets; `b""` for none, None until it was asked for."""

    @property
    def starts_segment(self) -> bool:
        """The step's prompt is its own `context_ids`, not its parent's tokens."""
        return self.record.segment_reason is not None

    @property
    def delivered(self) -> bool:
        """The agent has the reply: it was written to a live connection, or a request continued it."""
        return self.record.delivered or bool(self.children)

    def segment_path(self) -> list[Node]:
        """The steps of this step's segment up to itself, in order."""
        path = [self]
        while not path[-1].starts_segment:
            parent = path[-1].parent
            assert parent is not None, "a step without a parent starts a segment"
            path.append(parent)
        return path[::-1]

    def lineage(self) -> list[Node]:
        """The steps from the root to this one, through segment boundaries."""
        path = [self]
        while path[-1].parent is not None:
            path.append(path[-1].parent)
        return path[::-1]

    def token_ids(self) -> Ids:
        """All ids of the segment up to the end of this step's output, shape [token_count]."""
        parts = [part for node in self.segment_path() for part in (node.record.context_ids, node.record.output_ids)]
        return np.concatenate(parts)

    def ids_json(self) -> list[bytes]:
        """JSON of `token_ids` without brackets, as the runs that its steps added.

        Every turn sends them all again, so each step keeps its own."""
        runs: list[bytes] = []
        node = self
        while True:  # hundreds of steps, in every turn: no calls here
            run = node.own_json if node.own_json is not None else node._write_own_json()
            if run:
                runs.append(run)
            if node.record.segment_reason is not None:
                return runs[::-1]
            assert node.parent is not None, "a step without a parent starts a segment"
            node = node.parent

    def _write_own_json(self) -> bytes:
        self.own_json = ids_to_json(np.concatenate([self.record.context_ids, self.record.output_ids]))
        return self.own_json


def ids_to_json(ids: Ids) -> bytes:
    """`1,2,3` for ids of shape [n]; empty for none."""
    return orjson.dumps(ids, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]


@dataclass(frozen=True, slots=True)
class Match:
    """The step that a request continues, and how many of the request's messages its history covers."""

    node: Node
    depth: int
    exact: bool
    """Nothing had to be forgiven."""


class Trajectory:
    """All final steps of a session, aborted ones included (they are leaves that nothing continues)."""

    def __init__(self) -> None:
        self.roots: list[Node] = []
        self._nodes: dict[str, Node] = {}
        self._by_chain: dict[bytes, list[Node]] = {}
        self._by_prompt: dict[bytes, list[Node]] = {}
        self.token_count = 0
        """Tokens held, each once."""

    def __del__(self) -> None:
        """Steps refer to each other in both directions: only a full collection, which is rare (`sidecar.garbage`),
        would free them otherwise."""
        for node in self._nodes.values():
            node.children.clear()

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[Node]:
        """Steps in order of commit."""
        return iter(self._nodes.values())

    def get(self, step_id: str) -> Node | None:
        """The step of that id."""
        return self._nodes.get(step_id)

    def add(self, record: StepRecord) -> Node:
        """Add a final step. Raises `ValueError` if its parent is unknown or its id is known."""
        if record.step_id in self._nodes:
            raise ValueError(f"step {record.step_id} is in the trajectory already")
        parent = None
        if record.parent_id is not None:
            parent = self._nodes.get(record.parent_id)
            if parent is None:
                raise ValueError(f"step {record.step_id} continues {record.parent_id}, which is unknown")
        own = len(record.context_ids) + len(record.output_ids)
        before = parent if record.segment_reason is None else None
        base = before.token_count if before is not None else 0
        covered = coverage(before.coverage if before is not None else None, record)
        node = Node(record, parent, base + own, coverage=covered)
        if parent is None:
            self.roots.append(node)
        else:
            parent.children.append(node)
        self._nodes[record.step_id] = node
        self.token_count += own
        if record.state == "committed":
            self._by_chain.setdefault(record.chain, []).append(node)
            self._by_prompt.setdefault(record.prompt_chain, []).append(node)
        return node

    def answering(self, prompt: Chain) -> Sequence[Node]:
        """The committed steps whose prompt has that history."""
        return self._by_prompt.get(prompt.lenient, ())

    def match(self, chains: Sequence[Chain], tools_hash: bytes | None, *, exact_only: bool = False) -> Match | None:
        """The deepest step whose history begins the request's.

        `chains[i]` is the chain after the request's first `i` messages. Among steps with the same history prefer
        one that matches exactly, then one with the same tools, then a delivered one, then the newest.
        """
        for depth in range(len(chains) - 1, 0, -1):
            candidates = self._by_chain.get(chains[depth].lenient)
            if not candidates:
                continue
            exact = [node for node in candidates if node.record.exact_chain == chains[depth].exact]
            if exact_only and not exact:
                continue
            best = max(
                enumerate(exact or candidates),
                key=lambda entry: (
                    entry[1].record.tools_hash == tools_hash,
                    entry[1].delivered,
                    entry[0],
                ),
            )[1]
            return Match(best, depth, bool(exact))
        return None


def best_leaf(root: Node) -> Node:
    """The last step of the lineage that starts at `root`: the newest one the agent has, else the newest."""
    best, stack = root, [root]
    while stack:
        node = stack.pop()
        stack.extend(node.children)
        if _rank(node) > _rank(best):
            best = node
    return best


def _rank(node: Node) -> tuple[bool, int]:
    live = node.record.state == "committed" and node.delivered and node.record.superseded_by is None
    return live, -1 if node.record.sequence is None else node.record.sequence


def _begun(node: Node) -> int:
    return node.record.begun


def _first_root(trajectory: Trajectory) -> Node:
    """The root that began first and has a reply: a title call may well end before the agent's first turn does.
    Where the same request was sampled more than once (`n`, a repeated call), the one that was continued: the reward
    is for what the agent did."""
    roots = sorted(trajectory.roots, key=_begun)
    committed = [root for root in roots if root.record.state == "committed"]
    if not committed:
        return roots[0]
    siblings = (root for root in committed if root.record.body_hash == committed[0].record.body_hash)
    continued = [root for root in siblings if root.children]
    return max(continued, key=lambda root: _rank(best_leaf(root)), default=committed[0])


def main_lineage(trajectory: Trajectory) -> list[Node]:
    """The main agent's steps from its root to its last step.

    It starts at the session's first root, or the sibling of it that the agent went on with. A root with the same
    system message that began after the main lineage's last step had ended (a compaction) continues it; sub-agents
    and title calls have other system messages or begin before. Empty for a session without steps.
    """
    if not trajectory.roots:
        return []
    first = _first_root(trajectory)
    path = best_leaf(first).lineage()
    for root in sorted(trajectory.roots, key=_begun):
        sibling = root.record.body_hash == first.record.body_hash
        if sibling or root.record.system_hash != first.record.system_hash or not root.record.system_hash:
            continue
        last = path[-1].record.sequence
        if last is not None and root.record.begun > last and root.record.state == "committed":
            path = [*path, *best_leaf(root).lineage()]
    return path
