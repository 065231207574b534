"""An agent's conversation over HTTP: keeps the history as an agent does, and scripts the engine turn by turn."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.fake_sglang import RecordedRequest, Reply
from tests.support.chat import completion
from tests.support.running import Running

Message = dict[str, Any]


@dataclass
class Conversation:
    """`messages` is the agent's history; tests change it as clients do. `fields` go into every body."""

    running: Running
    session: str
    messages: list[Message] = field(default_factory=list)
    fields: dict[str, Any] = field(default_factory=dict)

    async def say(self, *new: Message, reply: str | Reply, **fields: Any) -> Message:
        """Send the history and `new`; the engine answers `reply`. The answer is kept as the agent got it."""
        self.messages += new
        self.running.engine.replies.append(reply if isinstance(reply, Reply) else Reply(text=reply))
        body = {"model": "m", "messages": self.messages, **self.fields, **fields}
        answered = completion(await self.running.chat(self.session, body))
        answer: Message = answered.choices[0].message.model_dump(exclude_none=True)
        self.messages.append(answer)
        return answer

    @property
    def requests(self) -> list[RecordedRequest]:
        """What the engine was asked for this session, oldest first."""
        return self.running.engine.recorder.session(self.session)

    def sent(self, index: int = -1) -> str:
        """The text of the prompt of one engine request, control tokens spelled out."""
        return self.running.engine.vocabulary.decode(self.requests[index].input_ids, skip_special_tokens=False)

    async def steps(self) -> list[dict[str, Any]]:
        """The session's steps in `GET /session/{id}`."""
        found: list[dict[str, Any]] = (await self.running.view(self.session))["steps"]
        return found

    async def segments(self) -> list[dict[str, Any]]:
        """The session's segments; it is finalized first."""
        return await self.running.segments(self.session)

    def goes_on_exactly(self, index: int = -1) -> bool:
        """Whether that request's prompt begins with the one before it and what was sampled there, bit for bit."""
        before, after = self.requests[index - 1], self.requests[index]
        ids = before.input_ids + before.output_ids
        return after.input_ids[: len(ids)] == ids


def trained_ids(segment: dict[str, Any]) -> list[int]:
    """The ids of a segment that train."""
    pairs = zip(segment["tokens"], segment["full_loss_mask"], strict=True)
    return [token for token, mask in pairs if mask]
