"""gpt-oss (Harmony): the names of its markers. `adapters.models.harmony` reads its replies, as a whole."""

from __future__ import annotations

from adapters.models.formats.base import ToolFormat

START, CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"

GPT_OSS = ToolFormat("gpt-oss", (START, CHANNEL, CONSTRAIN, MESSAGE, END, CALL, RETURN), None)
