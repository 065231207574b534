"""The demo's agent: the official OpenAI SDK and nothing else. It knows nothing of tito-sidecar.

Run as a process of its own; `OPENAI_BASE_URL` and `OPENAI_API_KEY` in its environment are all that differs from an
agent that talks to OpenAI.
"""

from __future__ import annotations

import sys
from typing import Any

from openai import OpenAI

QUESTIONS = (
    "Name three colours of the sea.",
    "Which of them is the darkest?",
    "Write two sentences about a small harbour at night.",
    "Describe how a lighthouse works, step by step, in about a hundred words.",
    "Now say it to a five-year-old child.",
    "Write it as a short poem with an emoji in each line.",
    "List three Greek words for water.",
    "What did I ask you first?",
    "Give the harbour a name.",
    "Say goodbye in four languages.",
)


def main(turns: int) -> None:
    """Hold the conversation; every second turn is streamed."""
    client = OpenAI()
    messages: list[Any] = [{"role": "system", "content": "You are a helpful and brief assistant."}]
    for turn in range(turns):
        question = QUESTIONS[turn % len(QUESTIONS)]
        messages.append({"role": "user", "content": question})
        print(f"\n[{turn + 1}] user: {question}\n    assistant: ", end="", flush=True)
        text = _streamed(client, messages) if turn % 2 else _at_once(client, messages)
        messages.append({"role": "assistant", "content": text})
    print()


def _at_once(client: OpenAI, messages: list[Any]) -> str:
    completion = client.chat.completions.create(model="demo", messages=messages, max_tokens=160)
    text = completion.choices[0].message.content or ""
    print(text, flush=True)
    return text


def _streamed(client: OpenAI, messages: list[Any]) -> str:
    text = ""
    for chunk in client.chat.completions.create(model="demo", messages=messages, max_tokens=160, stream=True):
        piece = chunk.choices[0].delta.content or "" if chunk.choices else ""
        text += piece
        print(piece, end="", flush=True)
    print(flush=True)
    return text


if __name__ == "__main__":
    main(int(sys.argv[1]))
