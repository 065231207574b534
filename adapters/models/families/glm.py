"""GLM 4.5 and later: no token of its own ends a turn, the next role's opener does."""

from __future__ import annotations

from adapters.models.family import ModelFamily
from adapters.models.formats.glm import GLM

GLM_FAMILY = ModelFamily(
    name="glm",
    matches=lambda template: "<arg_key>" in template,
    stop_tokens=("<|endoftext|>", "<|user|>", "<|observation|>"),
    tools=GLM,
)
