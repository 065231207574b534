"""Case 96 (Exgentic/exgentic issue 19, TRL's openenv_harness, AReaL cache.py): side calls (title, summary, a
small model, sub-agents) share the key, end in any order, and may be mistaken for the agent.

Input: a title request beside turn 1 of the main agent. Right: a lineage of its own, no fork of the main one,
and no anchor unless `finalize` names its step.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.support.chat import Held, ask, completion, user
from tests.support.conversation import Conversation, trained_ids
from tests.support.running import Running

pytestmark = pytest.mark.asyncio(loop_scope="module")
MAIN = {"role": "system", "content": "You are a coder."}
TITLE = {"role": "system", "content": "Make a title."}


@pytest.mark.parametrize("first_to_end", ["title", "main"])
@pytest.mark.parametrize("chosen", [None, "title"])
async def test_a_title_call_beside_turn_one(shared: Running, first_to_end: str, chosen: str | None) -> None:
    session = f"case-96-{first_to_end}-{chosen}"
    main, title = Held(text="I fix the bug in the file now"), Held(text="Fixing one bug in a file")
    shared.engine.replies.extend([main.reply(), title.reply()])
    bodies = {
        "main": ask(messages=[MAIN, user("Fix it.")]),
        "title": ask(messages=[TITLE, user("Fix it.")]),
    }
    calls = {}
    for index, (name, held) in enumerate([("main", main), ("title", title)]):
        calls[name] = asyncio.ensure_future(shared.chat(session, bodies[name]))
        await held.reached(shared.engine, index)
    for name in [first_to_end, *({"main", "title"} - {first_to_end})]:
        {"main": main, "title": title}[name].open.set()
        completion(await calls[name])
    answer = completion(await calls["main"]).choices[0].message.model_dump(exclude_none=True)
    talk = Conversation(shared, session, [MAIN, user("Fix it."), answer])
    await talk.say(user("Thanks."), reply="Bye.")

    view = await shared.view(session)
    assert view["lineages"] == 2
    by_text = {step["step_id"]: step for step in view["steps"]}
    title_id = completion(await calls["title"]).id.removeprefix("chatcmpl-")
    assert by_text[title_id]["parent"] is None
    await shared.finalize(session, **({"anchor_step_id": title_id} if chosen else {}), reward=1.0)
    segments = await shared.segments(session)
    [anchor] = [segment for segment in segments if segment["extra_info"]["is_anchor"]]
    assert (title_id in anchor["extra_info"]["step_ids"]) == (chosen == "title")
    assert {one["extra_info"]["segment_reason"] for one in segments} == {"root"}
    assert sorted(token for one in segments for token in trained_ids(one)) == sorted(
        token for request in shared.engine.recorder.session(session) for token in request.output_ids
    )
