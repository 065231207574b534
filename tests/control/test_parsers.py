"""Which formats are in force can be seen, and a template of no known family is served with a warning."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from sidecar.config import SettingsError, load_settings
from tests.fake_sglang import Reply
from tests.support.chat import ask, call_text, completion, tool
from tests.support.running import Running, engine_for, running_sidecar

UNKNOWN = (
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}({{ c.function.arguments | tojson }}){% endfor %}"
    "<|im_end|>{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)


async def parsers(running: Running) -> dict[str, Any]:
    body = (await running.control.get("/integration/capabilities")).json()
    found: dict[str, Any] = body["parsers"]
    return found


async def test_capabilities_name_the_formats_in_force(sidecar: Running) -> None:
    assert await parsers(sidecar) == {
        "tool_calls": "hermes",
        "reasoning": "think",
        "engine": None,
        "warnings": [],
    }


async def test_a_template_of_no_family_is_served_with_a_warning(
    qwen3_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    template = tmp_path / "unknown.jinja"
    template.write_text(UNKNOWN, encoding="utf-8")
    with caplog.at_level(logging.WARNING, logger="sidecar"):
        async with (
            engine_for(qwen3_dir) as engine,
            running_sidecar(engine, tmp_path / "state", chat_template=template) as running,
        ):
            found = await parsers(running)
            assert (found["tool_calls"], found["reasoning"]) == (None, None)
            assert "belongs to no known model family" in found["warnings"][0]
            assert found["warnings"][0] in caplog.text
            engine.replies.append(Reply(text=call_text(at=1)))
            choice = completion(await running.chat("s", ask(tools=[tool()]))).choices[0]
            assert (choice.message.content, choice.finish_reason) == (call_text(at=1), "stop")
            capabilities = (await running.control.get("/integration/capabilities")).json()
            assert (capabilities["model_family"], capabilities["tools"]) == ("generic", False)


async def test_the_operator_may_name_the_format_of_such_a_template(qwen3_dir: Path, tmp_path: Path) -> None:
    template = tmp_path / "unknown.jinja"
    template.write_text(UNKNOWN, encoding="utf-8")
    settings = {"chat_template": template, "tool_call_parser": "qwen25", "reasoning_parser": "none"}
    async with engine_for(qwen3_dir) as engine, running_sidecar(engine, tmp_path / "state", **settings) as running:
        found = await parsers(running)
        assert (found["tool_calls"], found["reasoning"], found["warnings"]) == ("hermes", None, [])
        engine.replies.append(Reply(text=call_text(at=1)))
        choice = completion(await running.chat("s", ask(tools=[tool()]))).choices[0]
        assert [made.function.arguments for made in choice.message.tool_calls or ()] == ['{"at": 1}']  # type: ignore[union-attr]


async def test_auto_takes_what_the_engine_says(qwen3_dir: Path, tmp_path: Path) -> None:
    async with (
        engine_for(qwen3_dir, parsers=("qwen3", "qwen3_coder")) as engine,
        running_sidecar(engine, tmp_path / "state") as running,
    ):
        found = await parsers(running)
        assert (found["tool_calls"], found["reasoning"]) == ("qwen3_coder", "think")
        assert "the chat template suggests hermes" in found["warnings"][0]


@pytest.mark.parametrize("flag", ["tool_call_parser", "reasoning_parser"])
def test_an_unknown_format_is_refused_with_the_flag_and_the_known_ones(flag: str) -> None:
    with pytest.raises(SettingsError, match=f"--{flag.replace('_', '-')} is 'nope': .* choose from auto, none"):
        load_settings({flag: "nope"})
