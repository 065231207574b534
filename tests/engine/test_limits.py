"""What the engine would refuse or die of never reaches it, and what is sent is what it takes, to the last token."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from sidecar.config import SettingsError
from tests.engine.steps import story
from tests.engine.subject import CONTEXT, Subject
from tests.support.chat import ask, streaming, text_of
from tests.support.running import Running, running_sidecar


async def test_a_prompt_beyond_the_context_is_refused_here(subject: Subject, running: Running) -> None:
    response = await running.chat("s", ask("word " * (CONTEXT + 100)))
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"
    assert not subject.tap.generations("s")


async def test_a_budget_beyond_the_context_is_cut_to_what_the_engine_just_takes(
    subject: Subject, running: Running
) -> None:
    async with streaming(running, "s", story(10 * CONTEXT)) as agent:
        await agent.until_text()
        [call] = subject.tap.generations("s")
        budget = call.asked["sampling_params"]["max_new_tokens"]
        assert len(call.input_ids) + budget == CONTEXT
        assert agent.response.headers["x-tito-max-tokens"] == str(budget)
    # one more is more than it takes
    refused = await subject.client.post(
        "/generate", json={"input_ids": call.input_ids, "sampling_params": {"max_new_tokens": budget + 1}}
    )
    assert refused.status_code == 400
    await subject.until_idle()


async def test_the_last_token_of_the_context_can_be_asked_for(subject: Subject, running: Running) -> None:
    text = "word " * (CONTEXT - 60)
    response = await running.chat("s", ask(text, temperature=0))
    assert response.status_code == 200, response.text
    [call] = subject.tap.generations("s")
    room = CONTEXT - len(call.input_ids)
    assert 0 < room < 60
    assert call.asked["sampling_params"]["max_new_tokens"] == room
    assert response.json()["choices"][0]["finish_reason"] in ("length", "stop")


async def test_an_id_that_the_model_has_no_row_for_never_reaches_the_engine(
    subject: Subject, tmp_path: Path
) -> None:
    """Such an id takes a whole SGLang server down; a tokenizer that is larger than the model makes them."""
    directory = enlarged(Path(subject.first), tmp_path / "model")
    settings: dict[str, Any] = {
        "tokenizer": str(directory),
        "special_tokens_in_content": "control",
        **subject.settings,
    }
    async with running_sidecar(subject, tmp_path / "state", **settings) as running:  # type: ignore[arg-type]
        response = await running.chat("s", ask("Say <|brand-new|>.", max_tokens=4))
        assert response.status_code == 500, response.text
        assert "vocabulary" in response.json()["error"]["message"]
        assert not subject.tap.generations("s")
        assert text_of(await running.chat("t", ask("Say something.", max_tokens=4)))


def enlarged(source: Path, target: Path) -> Path:
    """A copy of a model's tokenizer that knows one id more than the model has rows for: `<|brand-new|>`."""
    target.mkdir()
    tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
    rows, config = tokenizer.get_vocab_size(), source / "config.json"
    if config.is_file():
        rows = json.loads(config.read_text())["vocab_size"]
    fillers = [f"<|filler-{number}|>" for number in range(tokenizer.get_vocab_size(), rows)]
    tokenizer.add_special_tokens([*fillers, "<|brand-new|>"])
    assert tokenizer.token_to_id("<|brand-new|>") == rows
    tokenizer.save(str(target / "tokenizer.json"))
    (target / "config.json").write_text(json.dumps({"vocab_size": rows}))
    shutil.copyfile(source / "tokenizer_config.json", target / "tokenizer_config.json")
    return target


async def test_generations_carry_the_users_key_and_aborts_the_admins(subject: Subject, running: Running) -> None:
    if subject.variant.keys is None:
        pytest.skip("a server without keys")
    user, admin = subject.variant.keys
    async with streaming(running, "s", story(400)) as agent:
        await agent.until_text()
        paused = await running.post("/v1/rollout/pause")
        assert paused["quiesced"]
        await running.post("/v1/rollout/resume")
        await agent.until_text()
    sent = {exchange.path: exchange.headers.get("authorization") for exchange in subject.tap.exchanges}
    assert sent["/generate"] == f"Bearer {user}"
    assert sent["/abort_request"] == f"Bearer {admin}"
    assert {key for path, key in sent.items() if path != "/abort_request"} == {f"Bearer {user}"}
    await subject.until_idle()


async def test_a_wrong_key_is_told_at_the_start(subject: Subject, tmp_path: Path) -> None:
    if subject.variant.keys is None:
        pytest.skip("a server without keys")
    settings: dict[str, Any] = {**subject.settings, "engine_api_key": "wrong"}
    with pytest.raises(SettingsError, match="engine-api-key"):
        async with running_sidecar(subject, tmp_path / "state", **settings):  # type: ignore[arg-type]
            raise AssertionError("started with a wrong key")
