"""A request whose beginning is known from an earlier one is answered and refused like a session's first one."""

from __future__ import annotations

import itertools
from typing import Any

import orjson
import pytest

from sidecar.tito import reading
from tests.fake_sglang import Reply
from tests.support.chat import ask, call_text, completion, tool, user
from tests.support.running import Running

pytestmark = pytest.mark.asyncio(loop_scope="module")
_NUMBERS = itertools.count()


async def grown(shared: Running) -> tuple[str, list[dict[str, Any]]]:
    """A session with one turn, and the messages with which it goes on."""
    session = f"grown-{next(_NUMBERS)}"
    shared.engine.replies.append(Reply(text=call_text(at=1)))
    messages = [user("go")]
    reply = completion(await shared.chat(session, ask(messages=messages, tools=[tool()]))).choices[0].message
    said = reply.model_dump(exclude_none=True)
    return session, [*messages, said, result(said["tool_calls"][0]["id"], "seen")]


def result(call_id: str, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


async def send(shared: Running, session: str, body: bytes) -> tuple[int, Any]:
    response = await shared.data.post(f"/sessions/{session}/v1/chat/completions", content=body)
    return response.status_code, response.json().get("error")


BAD: list[tuple[str, Any]] = [
    ("a wrong type in a new message", lambda m: ask(messages=[*m, {"role": "user", "content": 5}])),
    ("an unknown role", lambda m: ask(messages=[*m, {"role": "wizard", "content": "x"}, user("y")])),
    ("a result without a call", lambda m: ask(messages=[*m, user("x"), result("c9", "x")])),
    ("an assistant at the end", lambda m: ask(messages=[*m, {"role": "assistant", "content": "x"}])),
    ("a new message that is no object", lambda m: ask(messages=[*m, user("x"), 7])),
    ("a wrong field", lambda m: ask(messages=m, temperature="hot")),
    ("a field that breaks exactness", lambda m: ask(messages=m, input_ids=[1])),
    ("another session in the body", lambda m: ask(messages=m, session_id=5)),
]


@pytest.mark.parametrize(("why", "make"), BAD, ids=[why for why, _ in BAD])
async def test_it_is_refused_in_the_same_words(shared: Running, why: str, make: Any) -> None:
    session, messages = await grown(shared)
    body = orjson.dumps(make(messages))
    before = await shared.view(session)
    refused = await send(shared, session, body)
    assert refused[0] == 400
    assert refused == await send(shared, f"fresh-{session}", body)
    assert await shared.view(session) == before


@pytest.mark.parametrize(
    "cut", [lambda b: b[:-1], lambda b: b + b"x", lambda b: b.replace(b"seen", b"\xff"), lambda b: b[:-9]]
)
async def test_what_is_no_json_is_refused_in_the_same_words(shared: Running, cut: Any) -> None:
    session, messages = await grown(shared)
    body = cut(orjson.dumps(ask(messages=messages)))
    refused = await send(shared, session, body)
    assert refused[0] == 400
    assert refused == await send(shared, f"fresh-{session}", body)


async def test_a_second_list_of_messages_counts_as_everywhere(shared: Running) -> None:
    session, messages = await grown(shared)
    shared.engine.replies.append(Reply(text="Hello."))
    body = orjson.dumps(ask(messages=messages))[:-1] + b',"messages":[{"role":"user","content":"other"}]}'
    assert await send(shared, session, body) == (200, None)
    assert shared.engine.requests[-1].input_ids == await first_prompt(shared, [user("other")])


async def test_other_template_arguments_begin_anew(shared: Running) -> None:
    session, messages = await grown(shared)
    body = orjson.dumps(ask(messages=messages, tools=[tool()], chat_template_kwargs={"enable_thinking": False}))
    prompts = []
    for where in (session, f"fresh-{session}"):
        shared.engine.replies.append(Reply(text="Hello."))
        assert await send(shared, where, body) == (200, None)
        prompts.append(shared.engine.requests[-1].input_ids)
    assert prompts[0] == prompts[1]


async def first_prompt(shared: Running, messages: list[dict[str, Any]]) -> list[int]:
    shared.engine.replies.append(Reply(text="Hello."))
    completion(await shared.chat(f"first-{next(_NUMBERS)}", ask(messages=messages)))
    return shared.engine.requests[-1].input_ids


async def test_only_new_messages_are_parsed(shared: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    session, messages = await grown(shared)
    searched: list[int] = []
    find = reading.Readings.find

    def counting(self: reading.Readings, wire: Any, *rest: Any) -> reading.Known:
        searched.append(len(wire))
        return find(self, wire, *rest)

    monkeypatch.setattr(reading.Readings, "find", counting)
    shared.engine.replies.append(Reply(text="Hello."))
    assert await send(shared, session, orjson.dumps(ask(messages=messages, tools=[tool()]))) == (200, None)
    assert searched == []
