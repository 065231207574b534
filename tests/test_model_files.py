"""A model's files are read as they are published, and what is missing is named with the remedy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.models import BPE

from sidecar.model_files import ModelFilesError, lasting_name, read_model


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory with the least that is needed."""
    tokenizer = Tokenizer(BPE(vocab={"a": 0, "b": 1}, merges=[]))
    tokenizer.add_special_tokens(["<end>"])
    tokenizer.enable_truncation(1)
    tokenizer.enable_padding()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    write(tmp_path, "tokenizer_config.json", {"chat_template": "from config", "eos_token": "<end>"})
    return tmp_path


def write(directory: Path, name: str, content: Any) -> None:
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    (directory / name).write_text(text, encoding="utf-8")


class TestRealModels:
    def test_qwen3_is_read_as_published(self, qwen3_dir: Path) -> None:
        model = read_model(str(qwen3_dir))
        assert model.name == str(qwen3_dir)
        assert model.special_tokens["eos_token"] == "<|im_end|>"
        assert model.tokenizer.token_to_id("<|im_end|>") == 151645
        assert "<tool_call>" in model.chat_template
        assert model.stop_ids == frozenset()  # npm's package has no generation config

    def test_smollm2_is_read_from_its_model_file(self, smollm2_dir: Path) -> None:
        model = read_model(str(smollm2_dir))
        assert model.stop_ids == {model.tokenizer.token_to_id("<|im_end|>")}
        assert "<|im_start|>" in model.chat_template


class TestTokenizer:
    def test_padding_and_truncation_are_off(self, directory: Path) -> None:
        tokenizer = read_model(str(directory)).tokenizer
        assert tokenizer.encode("abab").ids == [0, 1, 0, 1]
        assert [e.ids for e in tokenizer.encode_batch(["ab", "a"])] == [[0, 1], [0]]

    def test_a_directory_without_one_is_refused(self, directory: Path) -> None:
        (directory / "tokenizer.json").unlink()
        with pytest.raises(ModelFilesError, match=r"has no tokenizer.json; --tokenizer needs a fast tokenizer's"):
            read_model(str(directory))

    def test_one_that_is_broken_is_named(self, directory: Path) -> None:
        write(directory, "tokenizer.json", "{}")
        with pytest.raises(ModelFilesError, match=r"tokenizer.json cannot be read"):
            read_model(str(directory))

    def test_a_name_that_is_neither_a_directory_nor_on_the_hub_is_named(self) -> None:
        with pytest.raises(ModelFilesError, match="--tokenizer is 'no such name//'"):
            read_model("no such name//")


class TestTemplate:
    def template(self, directory: Path) -> str:
        return read_model(str(directory)).chat_template

    def test_the_most_recent_of_the_published_forms_is_taken(self, directory: Path) -> None:
        assert self.template(directory) == "from config"
        write(directory, "chat_template.json", {"chat_template": "from json"})
        assert self.template(directory) == "from json"
        write(directory, "chat_template.jinja", "from jinja ｜é")
        assert self.template(directory) == "from jinja ｜é"

    def test_of_several_named_ones_that_for_tools_is_taken(self, directory: Path) -> None:
        named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
        write(directory, "tokenizer_config.json", {"chat_template": named})
        assert self.template(directory) == "tools"
        write(directory, "tokenizer_config.json", {"chat_template": named[:1]})
        assert self.template(directory) == "plain"

    @pytest.mark.parametrize("config", [{}, {"chat_template": None}, {"chat_template": []}, []])
    def test_without_one_the_flag_is_named(self, directory: Path, config: Any) -> None:
        write(directory, "tokenizer_config.json", config)
        with pytest.raises(ModelFilesError, match="has no chat template; name one with --chat-template FILE"):
            self.template(directory)

    def test_a_pinned_file_wins(self, directory: Path, tmp_path: Path) -> None:
        write(tmp_path, "mine.jinja", "｜mine｜")
        assert read_model(str(directory), tmp_path / "mine.jinja").chat_template == "｜mine｜"

    def test_a_pinned_file_that_cannot_be_read_is_named(self, directory: Path) -> None:
        with pytest.raises(ModelFilesError, match=r"--chat-template .*missing.jinja cannot be read"):
            read_model(str(directory), directory / "missing.jinja")
        (directory / "binary.jinja").write_bytes(b"\xff\xfe\x00")
        with pytest.raises(ModelFilesError, match=r"binary.jinja cannot be read"):
            read_model(str(directory), directory / "binary.jinja")


class TestSpecialTokens:
    def test_both_spellings_of_a_token_are_read_and_the_config_wins(self, directory: Path) -> None:
        config = {
            "chat_template": "t",
            "bos_token": {"content": "<s>", "special": True},
            "eos_token": "<end>",
            "pad_token": None,
            "add_bos_token": False,
        }
        write(directory, "tokenizer_config.json", config)
        write(directory, "special_tokens_map.json", {"eos_token": "<old>", "unk_token": {"content": "<unk>"}})
        assert read_model(str(directory)).special_tokens == {
            "bos_token": "<s>",
            "eos_token": "<end>",
            "unk_token": "<unk>",
        }


class TestStopIds:
    @pytest.mark.parametrize(
        ("generation", "model", "expected"),
        [
            ({"eos_token_id": [1, 2]}, {"eos_token_id": 3}, {1, 2}),
            ({"eos_token_id": 1}, None, {1}),
            ({}, {"eos_token_id": 3}, {3}),
            (None, {"eos_token_id": [3, 4]}, {3, 4}),
            ({"eos_token_id": 0}, {"eos_token_id": 3}, {0}),
            ({"eos_token_id": None}, {}, set()),
            (None, None, set()),
        ],
    )
    def test_the_generation_config_names_them_else_the_models(
        self, directory: Path, generation: Any, model: Any, expected: set[int]
    ) -> None:
        for name, content in (("generation_config.json", generation), ("config.json", model)):
            if content is not None:
                write(directory, name, content)
        assert read_model(str(directory)).stop_ids == expected

    @pytest.mark.parametrize("content", ["{", "\udcff"])
    def test_a_file_that_is_no_json_is_named(self, directory: Path, content: str) -> None:
        (directory / "config.json").write_bytes(content.encode(errors="surrogateescape"))
        with pytest.raises(ModelFilesError, match=r"config.json is no JSON"):
            read_model(str(directory))


class TestVocabulary:
    @pytest.mark.parametrize(
        ("config", "rows"),
        [
            ({"vocab_size": 2}, 2),
            ({"text_config": {"vocab_size": 3}}, 3),
            ({"vocab_size": None, "text_config": None}, None),
            (None, None),
        ],
    )
    def test_the_models_config_says_how_many_ids_it_has_rows_for(
        self, directory: Path, config: Any, rows: int | None
    ) -> None:
        if config is not None:
            write(directory, "config.json", config)
        assert read_model(str(directory)).vocab_size == rows


def test_a_directory_is_recorded_as_an_absolute_path_and_a_hub_id_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path)
    for name in ("model", "./model", str(tmp_path / "model")):
        assert lasting_name(name) == str(tmp_path / "model")
    assert lasting_name("Qwen/Qwen3-0.6B") == "Qwen/Qwen3-0.6B"
