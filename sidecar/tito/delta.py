"""What to append after a step: the sentinel delta, and the full prompt of a new root. Pure, no shared state.

    rendered once:   [system] [user "u"] [the step's reply, its text replaced by SENTINEL] [appended messages]
    printed:         <|im_start|>assistant\\nSENTINEL<|im_end|>\\n<|im_start|>user\\n...<|im_start|>assistant\\n
    the delta:                                                 \\n<|im_start|>user\\n...<|im_start|>assistant\\n

The text after the sentinel's stop token is what the template prints after any reply, so the ids of the reply
itself are never rendered again. `docs/families.md` lists for which public templates this is exact; `selftest.py`
tells it for any template.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sidecar.tito.chat_template import ChatTemplate
from sidecar.tito.chat_template import Conversation as Conversation
from sidecar.tito.codec import Codec, Protection, private_use
from sidecar.tito.errors import TemplateError
from sidecar.tito.learn_ends import learn_ends
from sidecar.tito.messages import Message
from sidecar.tito.records import Ids
from sidecar.tito.reply_end import behind_end
from sidecar.tito.sentinel import SENTINEL as SENTINEL
from sidecar.tito.sentinel import around_reply

_PROTECTED_ROLES = ("user", "tool")
_TAIL = 64


@dataclass(frozen=True, slots=True)
class Rendering:
    """What the template printed, with placeholders in the place of protected spellings."""

    text: str
    protection: Protection

    @property
    def shown(self) -> str:
        """The text as a model is shown it."""
        return self.protection.restore(self.text) if self.protection.count else self.text


@dataclass(frozen=True, slots=True)
class Prompt:
    """Ids ready to be sent, shape [n], and the end of their text, which tells whether reasoning is open."""

    ids: Ids
    tail: str
    protected: int
    """Control-token spellings in contents that were encoded as ordinary text."""


@dataclass(frozen=True, slots=True)
class Delta:
    """Ids to append after `close_id`, the token with which the template closes the reply, or after the reply's own
    last token if `close_id` is None because it prints none. `text` is what the template prints there."""

    ids: Ids
    text: str
    tail: str
    close_id: int | None
    protected: int


class PromptBuilder:
    """Renders and encodes for one model. `stop_ids` are the ids at which the engine stops by itself, `closers`
    other tokens with which the template may close a reply."""

    def __init__(
        self,
        template: ChatTemplate,
        codec: Codec,
        stop_ids: frozenset[int],
        *,
        closers: frozenset[str] = frozenset(),
        protect_content: bool = True,
    ) -> None:
        self.template = template
        self.codec = codec
        self._protect_content = protect_content
        stops = frozenset(codec.decode([index]) for index in stop_ids)
        self._text_end, self._calls_end = learn_ends(template, stops, closers, codec.control_at)

    def full(self, messages: Sequence[Message], conversation: Conversation) -> Prompt:
        """The whole conversation with the generation prompt. Raises `TemplateError`."""
        return self.encoded(self.rendering(messages, conversation))

    def encoded(self, rendering: Rendering) -> Prompt:
        """The ids of a rendering."""
        text, protection = rendering.text, rendering.protection
        return Prompt(self.codec.encode(text, protection), text[-_TAIL:], protection.count)

    def rendering(
        self, messages: Sequence[Message], conversation: Conversation, until: str | None = None
    ) -> Rendering:
        """The text of `full`, or what stands before `until` in it. Raises `TemplateError`."""

        def render(contents: Sequence[Message]) -> str:
            text = self.template.render(
                contents, conversation.tools, conversation.template_kwargs, conversation.clock
            )
            return _before(text, until)

        return Rendering(*self._printed(messages, render))

    def delta(
        self,
        history: Sequence[Message],
        reply: Message,
        appended: Sequence[Message],
        conversation: Conversation,
        until: str | None = None,
    ) -> Delta:
        """Ids between a step's reply and the next generation, or up to `until`, a text in the appended messages.

        `history` is what stands before the reply in the sentinel's rendering: `short_history` of a request for
        templates whose output depends on nothing else, the full history for stateful ones. Raises `DeltaError`
        if the template prints no sentinel or ends the reply in a way that cannot be told, `TemplateError` if it
        raises.
        """
        with_calls = bool(reply.calls)
        end = self._calls_end if with_calls else self._text_end
        text, protection = self._printed(
            appended, lambda contents: _before(self.reply_followed(history, reply, contents, conversation), until)
        )
        close, rest = behind_end(
            end, text, lambda: self.reply_alone(history, reply, conversation), with_calls=with_calls
        )
        close_id = None if close is None else self.codec.token_id(close)
        return Delta(
            ids=self.codec.encode(rest, protection, after=close_id),
            text=Rendering(rest, protection).shown,
            tail=rest[-_TAIL:],
            close_id=close_id,
            protected=protection.count,
        )

    def reply_alone(self, history: Sequence[Message], reply: Message, conversation: Conversation) -> str:
        """What is printed behind the text of a reply that is the last message, without a generation prompt."""
        _, behind = around_reply(self.template, history, reply, [], conversation, add_generation_prompt=False)
        return behind

    def reply_followed(
        self,
        history: Sequence[Message],
        reply: Message,
        appended: Sequence[Message],
        conversation: Conversation,
    ) -> str:
        """What is printed behind the text of a reply that other messages follow, up to the next generation."""
        _, behind = around_reply(self.template, history, reply, appended, conversation)
        return behind

    def _printed(
        self, messages: Sequence[Message], render: Callable[[Sequence[Message]], str]
    ) -> tuple[str, Protection]:
        """What `render` prints of `messages`, with placeholders in the place of control-token spellings.

        Placeholders are chosen among characters that nothing else in the text uses, which a first rendering
        tells; messages without such spellings are rendered once."""
        protection = Protection()
        protected = self._protected(messages, protection)
        if protection.count:
            protection = Protection(private_use(render(messages)))
            protected = self._protected(messages, protection)
        return render(protected), protection

    def _protected(self, messages: Sequence[Message], protection: Protection) -> list[Message]:
        if not self._protect_content:
            return list(messages)
        return [
            replace(message, content=self.codec.protect(message.content, protection))
            if message.role in _PROTECTED_ROLES
            else message
            for message in messages
        ]


def _before(text: str, until: str | None) -> str:
    if until is None:
        return text
    before, found, _ = text.rpartition(until)
    if not found:
        raise TemplateError(
            "the chat template does not print the text of a last assistant message, which can therefore not be "
            "continued; leave continue_final_message out"
        )
    return before


def short_history(messages: Sequence[Message]) -> list[Message]:
    """The least that has to stand before a reply: the system message, and a user's turn that it answers."""
    system = [message for message in messages[:1] if message.role == "system"]
    return [*system, Message(role="user", content="u")]
