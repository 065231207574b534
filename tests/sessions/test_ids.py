"""An id outside the vocabulary takes a whole SGLang server down (0.5.23), so none leaves the sidecar."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sidecar.sessions import admission
from sidecar.tito.plan import PlannedPrompt
from tests.fake_sglang import Reply
from tests.support.chat import ask, completion
from tests.support.running import Running


@pytest.mark.parametrize("where", ["below", "just beyond", "far beyond"])
async def test_an_id_outside_the_vocabulary_is_refused_before_the_engine(
    sidecar: Running, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    size = sidecar.sidecar.model.vocab_size
    bad = {"below": -1, "just beyond": size, "far beyond": 999_999_999}[where]
    render = admission.render

    def rendered(*arguments: Any) -> PlannedPrompt:
        prompt = render(*arguments)
        ids = np.append(prompt.context_ids, np.int32(bad)).astype(np.int32)
        return PlannedPrompt(ids, prompt.segment_reason, prompt.tail, prompt.protected, prompt.break_reason)

    monkeypatch.setattr(admission, "render", rendered)
    response = await sidecar.chat("s", ask())
    assert response.status_code == 500
    assert "outside the model's vocabulary" in response.json()["error"]["message"]
    assert not sidecar.engine.requests
    assert (await sidecar.view("s"))["steps"] == []

    monkeypatch.undo()
    sidecar.engine.replies.append(Reply(text="ok"))
    completion(await sidecar.chat("s", ask()))


async def test_the_last_id_of_the_vocabulary_is_none_of_them(
    sidecar: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    render, last = admission.render, sidecar.sidecar.model.vocab_size - 1

    def rendered(*arguments: Any) -> PlannedPrompt:
        prompt = render(*arguments)
        ids = np.append(prompt.context_ids, np.int32(last)).astype(np.int32)
        return PlannedPrompt(ids, prompt.segment_reason, prompt.tail, prompt.protected, prompt.break_reason)

    monkeypatch.setattr(admission, "render", rendered)
    sidecar.engine.replies.append(Reply(text="ok"))
    completion(await sidecar.chat("s", ask()))
    assert sidecar.engine.requests[0].input_ids[-1] == last
