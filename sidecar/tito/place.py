"""Which step does a request continue, and what is new in it? Pure; nothing is changed.

Runs on the event loop: a few look-ups, microseconds each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sidecar.tito.audit import Retold, retold_messages
from sidecar.tito.delta import Conversation
from sidecar.tito.fingerprint import LENIENT, Chain, MatchRules, digest, lenient_form
from sidecar.tito.messages import Message
from sidecar.tito.model import Model
from sidecar.tito.modes import DEFAULT_MODES, BuildModes
from sidecar.tito.trajectory import Match, Node, Trajectory


@dataclass(frozen=True, slots=True)
class Request:
    """A request as the trajectory sees it. `tools_hash` is None without tools. `continues`: the reply goes on with
    the text of the last message, an assistant's."""

    messages: Sequence[Message]
    chains: Sequence[Chain]
    """`chains[i]`: the chain after `i` messages (`reading.py`)."""
    conversation: Conversation
    tools_hash: bytes | None
    continues: bool = False

    @property
    def prompt_length(self) -> int:
        """Messages before the reply."""
        return len(self.messages) - self.continues


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a request belongs. `appended` are the messages that its parent's history lacks; none if it goes on with
    the parent's own reply."""

    request: Request
    parent: Node | None
    appended: Sequence[Message]
    chain: Chain
    """Before the reply."""
    retold: Sequence[Retold]
    """Messages of the parent's history that the request tells otherwise."""
    replaced: tuple[str, ...]
    """Steps whose prompt the request holds, with another assistant message in the place of their reply."""
    system_hash: bytes
    forced_boundary: str | None
    """Why the parent's tokens cannot be continued, if that is known before rendering."""
    modes: BuildModes

    @property
    def resumes(self) -> bool:
        """The reply goes on where the parent's own was left, so that nothing has to be rendered."""
        rendered = self.forced_boundary not in (None, "unstable_template")
        return self.request.continues and not self.appended and not rendered

    @property
    def new_messages(self) -> Sequence[Message]:
        """Those of `appended` that stand before the reply."""
        return self.appended[:-1] if self.request.continues and self.appended else self.appended

    @property
    def prefix(self) -> bytes:
        """JSON of the message with whose text the reply goes on; `b""` if it begins anew. The reasoning of the
        session's own reply is kept, whatever the client replays of it."""
        if not self.request.continues:
            return b""
        told = self.request.messages[-1]
        if self.parent is None or self.appended:
            return told.to_json()
        return replace(told, reasoning=Message.from_json(self.parent.record.reply).reasoning).to_json()

    @property
    def rendered(self) -> Sequence[Message]:
        """The messages whose text has to be rendered."""
        whole = self.forced_boundary is not None or self.modes.template_decides
        return self.request.messages if whole else self.appended


def place(
    model: Model,
    trajectory: Trajectory,
    request: Request,
    rules: MatchRules = LENIENT,
    modes: BuildModes = DEFAULT_MODES,
) -> Placement:
    """Find the step that the request continues."""
    messages, chains = request.messages, request.chains
    match = trajectory.match(chains, request.tools_hash, exact_only=rules.exact)
    depth = match.depth if match is not None else 0
    return Placement(
        request=request,
        parent=match.node if match is not None else None,
        appended=messages[depth:],
        chain=chains[request.prompt_length],
        retold=retold_messages(match, messages, chains, rules) if match is not None else (),
        replaced=tuple(
            node.record.step_id
            for index in range(depth, len(messages))
            if messages[index].role == "assistant"
            for node in trajectory.answering(chains[index])
        ),
        system_hash=digest(lenient_form(rules.counted(messages[0]))) if messages[0].role == "system" else b"",
        forced_boundary=_forced_boundary(model, request, match, modes),
        modes=modes,
    )


def _forced_boundary(model: Model, request: Request, match: Match | None, modes: BuildModes) -> str | None:
    if modes.snapshot:
        return "snapshot"
    if match is None:
        return "root"
    record = match.node.record
    if record.tokenizer_sha256 != model.tokenizer_sha256:  # ids of an unknown one are not trusted to be ours
        return "tokenizer_changed"
    if record.template_sha256 != model.template_sha256:
        return "template_changed"
    if record.tools_hash != request.tools_hash and model.verdict.prints_tools:
        return "tools_changed"
    return "unstable_template" if model.verdict.outcome == "refused" else None
