"""Agents as they are: each client with its defaults, `https://api.openai.com` and no setting but its environment.

Promise: `agent.py CLIENT` asks once, with the client's name as the message, and prints what it got, each piece as
it comes. This file imports nothing of the project.
"""

import asyncio
import json
import sys
import urllib.request

URL = "https://api.openai.com/v1/chat/completions"
HEADERS = {"content-type": "application/json", "authorization": "Bearer sk-agent"}


def body(name: str) -> dict[str, object]:
    return {"model": "m", "messages": [{"role": "user", "content": f"hello from {name}"}]}


def content(reply: dict) -> str:  # type: ignore[type-arg]
    return str(reply["choices"][0]["message"]["content"])


def with_openai(name: str) -> None:
    import openai

    reply = openai.OpenAI(api_key="sk-agent", max_retries=0).chat.completions.create(**body(name))
    print(reply.choices[0].message.content)


def with_openai_streaming(name: str) -> None:
    import openai

    client = openai.OpenAI(api_key="sk-agent", max_retries=0)
    for chunk in client.chat.completions.create(**body(name), stream=True):
        if chunk.choices and chunk.choices[0].delta.content:
            print(chunk.choices[0].delta.content, end="\n", flush=True)


def with_httpx(name: str) -> None:
    import httpx

    print(content(httpx.post(URL, json=body(name), headers=HEADERS, timeout=60).json()))


def with_requests(name: str) -> None:
    import requests

    print(content(requests.post(URL, json=body(name), headers=HEADERS, timeout=60).json()))


def with_aiohttp(name: str) -> None:
    import aiohttp

    async def ask() -> None:
        async with aiohttp.ClientSession() as session, session.post(URL, json=body(name), headers=HEADERS) as reply:
            print(content(await reply.json()))

    asyncio.run(ask())


def with_urllib(name: str) -> None:
    request = urllib.request.Request(URL, json.dumps(body(name)).encode(), HEADERS)
    with urllib.request.urlopen(request, timeout=60) as reply:
        print(content(json.load(reply)))


CLIENTS = {
    "openai": with_openai,
    "openai-streaming": with_openai_streaming,
    "httpx": with_httpx,
    "requests": with_requests,
    "aiohttp": with_aiohttp,
    "urllib": with_urllib,
}

if __name__ == "__main__":
    CLIENTS[sys.argv[1]](sys.argv[1])
