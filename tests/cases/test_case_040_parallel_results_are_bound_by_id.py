"""Cases 40 and 42 (JustVugg/colibri PR 118, modelscope/ms-swift PR 10174, router-for-me/CLIProxyAPI issue
5199): templates bind parallel results by position, and clients send them in any order.

Input: calls A and B, results B then A; a Bash call and six Reads, permuted. Right: reordered by id before
rendering, an unknown id is a 400. Without ids the order is kept as long as there is one result for each call.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.support.chat import call_text, tool, user
from tests.support.conversation import Conversation
from tests.support.running import Running

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def called(shared: Running, session: str, count: int) -> tuple[Conversation, list[dict[str, Any]]]:
    """A reply of `count` calls, and their results in order."""
    talk = Conversation(shared, session, fields={"tools": [tool()]})
    answer = await talk.say(user("Look."), reply="\n".join(call_text(at=n) for n in range(count)))
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": f"result {number}"}
        for number, call in enumerate(answer["tool_calls"])
    ]
    assert len(results) == count
    return talk, results


def in_order(talk: Conversation, count: int) -> bool:
    positions = [talk.sent().index(f"result {number}") for number in range(count)]
    return positions == sorted(positions)


@pytest.mark.parametrize("count", [2, 7])
async def test_permuted_results_are_rendered_in_the_calls_order(shared: Running, count: int) -> None:
    for seed in range(3):
        talk, results = await called(shared, f"case-40-{count}-{seed}", count)
        random.Random(seed).shuffle(results)
        await talk.say(*results, reply="Seen.")
        assert talk.goes_on_exactly()
        assert in_order(talk, count)
        random.Random(seed + 1).shuffle(results)
        talk.messages[2 : 2 + count] = results  # in another order again: the same history
        await talk.say(user("Sure?"), reply="Yes.")
        assert talk.goes_on_exactly()


async def test_an_unknown_id_is_refused_with_the_ids_that_are_known(shared: Running) -> None:
    talk, results = await called(shared, "case-40-unknown", 2)
    results[1]["tool_call_id"] = "call_zzz"
    body = {"model": "m", "messages": [*talk.messages, *results], **talk.fields}
    response = await shared.chat(talk.session, body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == "messages[3].tool_call_id"
    assert results[0]["tool_call_id"] in error["message"]


async def test_without_ids_the_order_is_kept_if_every_call_has_its_result(shared: Running) -> None:
    talk, results = await called(shared, "case-40-without", 2)
    bare = [{name: value for name, value in result.items() if name != "tool_call_id"} for result in results]
    response = await shared.chat(talk.session, {"model": "m", "messages": [*talk.messages, bare[0]], **talk.fields})
    assert response.status_code == 400
    await talk.say(*bare, reply="Seen.")
    assert in_order(talk, 2)
