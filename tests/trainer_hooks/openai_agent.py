"""An agent that knows the official OpenAI SDK, its environment, and nothing of the sidecar.

python openai_agent.py TURNS: holds a conversation of so many turns about its task and prints what its model said.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import openai


def main() -> None:
    """Talk."""
    task = json.loads(Path(os.environ["TITO_TASK_FILE"]).read_text())
    client = openai.OpenAI(max_retries=0)
    messages: list[Any] = [{"role": "user", "content": task["prompt"]}]
    for _ in range(int(sys.argv[1])):
        reply = client.chat.completions.create(model="m", messages=messages, seed=7, temperature=0.2, top_p=0.5)
        said = reply.choices[0].message.content
        print("said:", said, flush=True)
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "Go on."}]


if __name__ == "__main__":
    main()
