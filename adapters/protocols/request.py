"""A chat request in no client's protocol in particular. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Sampling:
    """What the agent asked of the sampler; None where it asked nothing. Names are OpenAI's and SGLang's."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    logit_bias: Mapping[str, float] | None = None
    json_schema: str | None = None
    """JSON text of a schema; `{}`-typed object schema for OpenAI's `json_object`."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """`tools` are type-checked wire objects. `messages` are in OpenAI's form, all of them or those that no earlier
    request brought: `messages.check_messages` checks their types, `sidecar.tito` roles and order."""

    model: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    use_tools: bool
    """False with `tool_choice: none`: the tools are printed, calls are not parsed."""
    stream: bool
    include_usage: bool
    max_tokens: int | None
    sampling: Sampling
    n: int = 1
    logprobs: bool = False
    session_id: str | None = None
    """From the body (`session_id` or `metadata.session_id`)."""
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    continues: bool = False
    """The last message is the assistant's, and the reply goes on with its text."""
    ignored: tuple[str, ...] = ()
    """Fields that mean nothing here, for a counter and the log."""
