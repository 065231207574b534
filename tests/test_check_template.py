"""`tito-sidecar check-template`: the verdict, the deltas and the exit code, as a user and as a CI job see them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from sidecar.check_template.examine import TemplateReport, examine
from sidecar.check_template.output import print_report, report_json
from sidecar.check_template.subjects import Reader, Subject, find_subject
from sidecar.model_files import ModelFilesError
from sidecar.terminal import quoted_lines, safe, visible
from sidecar.tito.model import ModelText
from tests.tito.builders import byte_tokenizer

ROOT = Path(__file__).resolve().parents[1]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% if m.tool_calls %}<tool_call>{{ m.tool_calls | tojson }}</tool_call>{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
COUNTED = CHATML.replace("{{ m.role }}", "{{ m.role }} {{ loop.index }}")
"""Numbers its messages: another delta behind another history."""
CHANGED = CHATML.replace("{{ m.content }}", "{{ m.content }}{% if '⟦' in messages | string %}!{% endif %}")
"""Prints something else beside a sentinel: no delta of it can be trusted."""


def run(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command as a user runs it, on a terminal of 80 columns without colour."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TITO_")}
    return subprocess.run(
        [sys.executable, "-m", "sidecar.cli", "check-template", *map(str, arguments)],
        capture_output=True, text=True, timeout=120, cwd=ROOT, check=False,
        env={**clean, "COLUMNS": "80", "HF_HUB_OFFLINE": "1", **environment},
    )  # fmt: skip


def report_of(template: str, tokenizer: Tokenizer | None = None, **special_tokens: str) -> TemplateReport:
    """The report on a template with a small ChatML tokenizer."""
    tokenizer = tokenizer or byte_tokenizer("<|im_start|>", "<|im_end|>")
    text = ModelText("small", tokenizer, template, {"eos_token": "<|im_end|>", **special_tokens}, frozenset())
    return examine(Subject("small.jinja", "small", Path("small.jinja")), text)


def shown(report: TemplateReport, capsys: pytest.CaptureFixture[str]) -> str:
    """What a terminal of 80 columns shows of it."""
    print_report(Console(width=80, highlight=False), report)
    return capsys.readouterr().out


@pytest.fixture
def templates(tmp_path: Path) -> Path:
    """A directory with one template of each verdict, and one that is no template."""
    texts = {"exact": CHATML, "stateful": COUNTED, "refused": CHANGED, "broken": CHATML[:-3]}
    for name, text in texts.items():
        (tmp_path / f"{name}.jinja").write_text(text, encoding="utf-8")
    return tmp_path


@pytest.fixture(scope="module")
def small_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ChatML tokenizer that is read in no time, without a template."""
    directory = tmp_path_factory.mktemp("small")
    byte_tokenizer("<|im_start|>", "<|im_end|>").save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text('{"eos_token": "<|im_end|>"}')
    return directory


def test_qwen3_is_exact_and_every_delta_is_shown(qwen3_dir: Path) -> None:
    done = run(qwen3_dir)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert all(len(line) <= 80 for line in lines)
    words = [line.split() for line in lines]
    assert ["family", "qwen3"] in words
    assert ["parsers", "tool", "calls", "hermes,", "reasoning", "think"] in words
    assert ["boundary", "<|im_end|>", "151645", "closes", "a", "reply"] in words
    assert "dropped after the next user message" in done.stdout
    for event in ("user", "user_without_system", "tool", "parallel_tools", "tool_then_user", "user_after_tools"):
        assert any(line.split()[:1] == [event] for line in lines), event
    assert "</tool_response><|im_end|>\\n" in done.stdout, "line breaks are visible"
    assert "198 151644 77091 198" in done.stdout, "the generation prompt's ids"


def test_the_deltas_are_what_transformers_prints_and_encodes(qwen3_dir: Path) -> None:
    done = run(qwen3_dir, "--json")
    assert done.returncode == 0, done.stderr
    [report] = [json.loads(line) for line in done.stdout.splitlines()]
    assert report["template"] == report["tokenizer"] == str(qwen3_dir)
    assert (report["verdict"], report["reason"]) == ("exact", None)
    events = {event["name"]: event for event in report["events"]}
    assert {event["outcome"] for event in events.values()} == {"exact"}
    oracle: Any = AutoTokenizer.from_pretrained(qwen3_dir)
    call = {"type": "function", "id": "c", "function": {"name": "look_up", "arguments": {"word": "sidecar"}}}
    conversation = [
        {"role": "user", "content": "What is a sidecar?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "a small car"},
    ]
    printed = oracle.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
    behind = printed.split("</tool_call><|im_end|>")[1]
    assert events["tool"]["delta"] == behind
    assert events["tool"]["ids"] == oracle.encode(behind, add_special_tokens=False)
    assert events["tool"]["closed_by"] == {"id": 151645, "text": "<|im_end|>"}
    assert events["tool"]["difference"] is None


def test_several_templates_give_an_object_each_and_the_worst_decides(templates: Path, small_dir: Path) -> None:
    paths = [templates / f"{name}.jinja" for name in ("exact", "stateful", "refused", "broken")]
    done = run(*paths, "--tokenizer", small_dir, "--json")
    assert done.returncode == 1, done.stderr
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    assert [report["template"] for report in reports] == list(map(str, paths))
    assert [report["tokenizer"] for report in reports] == [str(small_dir)] * 4
    assert [report["verdict"] for report in reports] == ["exact", "stateful", "refused", "refused"]
    assert [report["reason"] is None for report in reports] == [True, False, False, False]
    assert "cannot be compiled" in reports[3]["reason"]
    assert reports[3]["events"] == []
    difference = reports[1]["events"][0]["difference"]
    assert difference["unit"] == "character"
    assert difference["position"] == len("\n<|im_start|>user ")
    assert difference["expected"].startswith("6\nThanks.")
    assert difference["found"].startswith("4\nThanks.")


def test_stateful_templates_pass_and_the_summary_counts(templates: Path, small_dir: Path) -> None:
    done = run(templates / "exact.jinja", templates / "stateful.jinja", "--tokenizer", small_dir)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "2 templates: 1 exact, 1 stateful"
    assert "first difference, with a short history: character 18" in " ".join(done.stdout.split())
    assert f"tokenizer  {small_dir}"[:60] in done.stdout


def test_a_path_that_cannot_be_read_does_not_hide_the_others(templates: Path, small_dir: Path) -> None:
    done = run(templates / "none.jinja", templates / "refused.jinja", "--tokenizer", small_dir, "--json")
    assert done.returncode == 2
    assert [json.loads(line)["verdict"] for line in done.stdout.splitlines()] == ["refused"]
    assert "none.jinja: there is no such file or directory" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["PATH"]),
        (["{templates}/exact.jinja"], ["exact.jinja is a template", "--tokenizer PATH_OR_ID"]),
        (["{templates}"], ["has no tokenizer.json"]),
        (["{small}"], ["has no chat template"]),
        (["{templates}/exact.jinja", "--tokenizer", "{templates}"], ["has no tokenizer.json"]),
        (["no/such-model"], ["'no/such-model'", "no such directory"]),
        (["./no-such-directory"], ["./no-such-directory: there is no such file or directory"]),
        (["{small}", "--model-family", "gwen"], ["--model-family is 'gwen'", "qwen3"]),
        (["{small}", "--tool-call-parser", "xml"], ["--tool-call-parser is 'xml'", "qwen3_coder"]),
        (["{small}", "--reasoning-parser", "hermes"], ["--reasoning-parser is 'hermes'", "deepseek-r1"]),
        (["{small}", "--config", "{templates}/none.yaml"], ["there is no such file"]),
        (["{small}", "--jsn"], ["--jsn"]),
    ],
)
def test_wrong_use_ends_with_exit_code_2_and_the_remedy(
    arguments: list[str], words: list[str], templates: Path, small_dir: Path
) -> None:
    done = run(*(argument.format(templates=templates, small=small_dir) for argument in arguments))
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr


def test_settings_come_from_the_environment_and_the_file_too(templates: Path, small_dir: Path) -> None:
    path = templates / "exact.jinja"
    done = run(path, "--json", TITO_TOKENIZER=str(small_dir))
    assert json.loads(done.stdout)["tokenizer"] == str(small_dir)
    config = templates / "tito.yaml"
    config.write_text(json.dumps({"tokenizer": str(small_dir), "model_family": "smollm2"}))
    done = run(path, "--json", "--config", config)
    assert json.loads(done.stdout)["family"] == "smollm2"


def test_parsers_and_family_can_be_named_on_the_command_line_and_win(templates: Path, small_dir: Path) -> None:
    config = templates / "tito.yaml"
    config.write_text(json.dumps({"tokenizer": str(small_dir), "tool_call_parser": "pythonic"}))
    flags = ("--model-family", "glm", "--tool-call-parser", "qwen3_coder", "--reasoning-parser", "kimi")
    done = run(templates / "exact.jinja", "--json", "--config", config, *flags, TITO_REASONING_PARSER="none")
    report = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert (report["family"], report["tool_call_parser"], report["reasoning_parser"]) == (
        "glm",
        "qwen3_coder",
        "kimi",
    )
    done = run(templates / "exact.jinja", "--json", "--config", config, "--reasoning-parser", "none")
    report = json.loads(done.stdout)
    assert (report["tool_call_parser"], report["reasoning_parser"]) == ("pythonic", None)


def test_parsers_that_do_not_go_together_are_refused_as_serve_refuses_them(
    templates: Path, small_dir: Path
) -> None:
    flags = ("--tool-call-parser", "gpt-oss", "--reasoning-parser", "think")
    done = run(templates / "exact.jinja", "--tokenizer", small_dir, "--json", *flags)
    report = json.loads(done.stdout)
    assert (done.returncode, report["verdict"], report["events"]) == (1, "refused", [])
    assert "gpt-oss goes with gpt-oss or none, set both" in report["reason"]


def test_our_own_templates_are_known_by_name(small_dir: Path) -> None:
    done = run("qwen3-keep-thinking", "--tokenizer", small_dir, "--json")
    report = json.loads(done.stdout)
    assert (done.returncode, report["verdict"], report["earlier_reasoning"]) == (0, "exact", "kept")


def test_a_refused_template_shows_what_was_expected_and_what_was_found(capsys: pytest.CaptureFixture[str]) -> None:
    report = report_of(CHANGED)
    assert report.verdict == "refused"
    assert report.reason is not None
    assert report.reason.startswith("user: the delta is")
    text = shown(report, capsys)
    assert "refused: serve does not start with it" in text
    difference = report_json(report)["events"][0]["difference"]
    assert difference["expected"].startswith("<|im_end|>"), "the template prints no exclamation mark there"
    assert difference["found"].startswith("!<|im_end|>")
    assert 'found    "!<|im_end|>' in text


def test_a_tokenizer_that_merges_across_the_boundary_is_shown_by_ids() -> None:
    tokenizer = byte_tokenizer("<|im_start|>", vocab=["|Ċ"], merges=[("|", "Ċ")])
    report = report_of(CHATML.replace("<|im_end|>", "|"), tokenizer, eos_token="|")
    assert report.verdict == "refused"
    difference = report_json(report)["events"][0]["difference"]
    assert difference["unit"] == "id"
    assert difference["expected"][0] == tokenizer.token_to_id("|Ċ")
    assert list(difference["found"][:2]) == [tokenizer.token_to_id("|"), tokenizer.token_to_id("Ċ")]


def test_control_characters_and_markup_reach_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    template = CHATML.replace("<|im_start|>{{ m.role }}", "<|im_start|>[bold]\x1b[31m{{ m.role }}\\ ​")
    text = shown(report_of(template), capsys)
    assert "\x1b" not in text
    assert "[bold]\\x1b[31muser\\\\ \\u200b\\n" in text


def test_events_that_look_alike_share_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(report_of(CHATML), capsys)
    assert text.count("Thanks.<|im_end|>\\n") == 1
    lines = [line.split() for line in text.splitlines()]
    first = next(index for index, line in enumerate(lines) if line[:2] == ["user", "exact"])
    assert lines[first + 1][0] == "user_without_system"


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (CHATML, "not printed"),
        (CHATML.replace("{{ m.content }}", "{{ m.reasoning_content }}{{ m.content }}"), "kept"),
        (
            CHATML.replace(
                "{{ m.content }}",
                "{% if messages[-1].role != 'user' %}{{ m.reasoning_content }}{% endif %}{{ m.content }}",
            ),
            "dropped after the next user message",
        ),
        (
            CHATML.replace(
                "{{ m.content }}",
                "{% if messages[-1].role != 'tool' %}{{ m.reasoning_content }}{% endif %}{{ m.content }}",
            ),
            "dropped in tool loops",
        ),
    ],
)
def test_what_becomes_of_earlier_reasoning_is_told(template: str, expected: str) -> None:
    assert report_json(report_of(template))["earlier_reasoning"] == expected


def test_a_prompt_that_opens_the_reasoning_block_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    kept = CHATML.replace("{{ m.content }}", "<think>{{ m.reasoning_content }}</think>{{ m.content }}")
    report = report_of(kept.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}"))
    assert report_json(report)["prompt_opens_reasoning"] is True
    assert "the prompt opens the reasoning block" in " ".join(shown(report, capsys).split())
    assert report_json(report_of(kept))["prompt_opens_reasoning"] is False


def test_a_subject_is_a_directory_a_hub_id_or_a_template_with_its_tokenizer(tmp_path: Path) -> None:
    file = tmp_path / "t.jinja"
    file.write_text(CHATML)
    assert find_subject(str(tmp_path), None) == Subject(str(tmp_path), str(tmp_path), None)
    assert find_subject("Qwen/Qwen3-0.6B", "other") == Subject("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B", None)
    assert find_subject("gpt2", None) == Subject("gpt2", "gpt2", None)
    assert find_subject(str(file), "t") == Subject(str(file), "t", file)
    for path in ("a/b/c", "../model", "/model", "model.jinja", "~/model"):
        with pytest.raises(ModelFilesError, match="there is no such file or directory"):
            find_subject(path, "t")


def test_a_tokenizer_is_read_once_for_many_templates(tmp_path: Path) -> None:
    byte_tokenizer("<|im_end|>").save(str(tmp_path / "tokenizer.json"))
    for name in ("a", "b"):
        (tmp_path / f"{name}.jinja").write_text(name)
    reader = Reader()
    first = reader.read(find_subject(str(tmp_path / "a.jinja"), str(tmp_path)))
    second = reader.read(find_subject(str(tmp_path / "b.jinja"), str(tmp_path)))
    assert (first.chat_template, second.chat_template) == ("a", "b")
    assert first.tokenizer is second.tokenizer
    (tmp_path / "c.jinja").write_bytes(b"\xff")
    with pytest.raises(ModelFilesError, match=r"c\.jinja cannot be read"):
        reader.read(find_subject(str(tmp_path / "c.jinja"), str(tmp_path)))


def test_text_is_shown_so_that_it_can_be_told_exactly() -> None:
    assert visible("a\\n\n\t\x00é大 \u202e") == "a\\\\n\\n\\t\\x00é大 \\u202e"
    assert safe("a\\n\n") == "a\\n\\n", "for text that was spelled out already"
    assert visible("\ud800") == "\\ud800"
    assert quoted_lines("\n\na\nb \n") == '"\\n\\na\\n\nb \\n"'
    assert quoted_lines("") == '""'
    assert quoted_lines("\n\n") == '"\\n\\n"'
