"""An agent that nobody modified: the official OpenAI SDK with its defaults. Run as a program of its own.

Promise: prints what arrives, one line each, at once. ``sdk_agent.py stream`` streams; without it, it does not.
"""

import sys

import openai

client = openai.OpenAI(max_retries=0, timeout=30)
messages = [{"role": "user", "content": "hello"}]
if sys.argv[1:] == ["stream"]:
    for chunk in client.chat.completions.create(model="m", messages=messages, stream=True):
        print(chunk.choices[0].delta.content, flush=True)
else:
    print(client.chat.completions.create(model="m", messages=messages).choices[0].message.content, flush=True)
