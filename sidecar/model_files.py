"""Reads a model's tokenizer and chat template from a directory or from the Hugging Face hub. The only I/O is here.

`AutoTokenizer` rebuilds some tokenizers wrongly (GPT-4o's, transformers 5.24), so ids come from `tokenizer.json`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from adapters.models.templates import TEMPLATE_NAMES
from sidecar.tito.model import ModelText

_FILES = [
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "config.json",
    "chat_template.jinja",
    "chat_template.json",
    "special_tokens_map.json",
]


class ModelFilesError(Exception):
    """The model's files cannot be used; the text names the file and the remedy."""


def read_model(name: str, chat_template: Path | None = None) -> ModelText:
    """Tokenizer, template and stop ids of `name`, a directory or a hub id. Raises `ModelFilesError`."""
    directory = _directory(name)
    tokenizer = _tokenizer(directory)
    config = _json(directory / "tokenizer_config.json")
    model_config = _json(directory / "config.json")
    return ModelText(
        name=name,
        tokenizer=tokenizer,
        chat_template=_template(directory, config, chat_template),
        special_tokens=_special_tokens(config, _json(directory / "special_tokens_map.json")),
        stop_ids=_stop_ids(_json(directory / "generation_config.json"), model_config),
        vocab_size=_vocab_size(model_config),
    )


def lasting_name(name: str) -> str:
    """`name` such that it can be recorded: a directory's path from any working directory."""
    return str(Path(name).absolute()) if Path(name).is_dir() else name


def read_tokenizer(name: str) -> Tokenizer:
    """The tokenizer of `name` alone, a directory or a hub id: no template is needed. Raises `ModelFilesError`."""
    return _tokenizer(_directory(name))


def read_config(name: str) -> dict[str, Any]:
    """The config.json of `name`, a directory or a hub id; empty without one. Raises `ModelFilesError`."""
    return _json(_directory(name) / "config.json")


def _directory(name: str) -> Path:
    return Path(name) if Path(name).is_dir() else _from_hub(name)


def _tokenizer(directory: Path) -> Tokenizer:
    path = directory / "tokenizer.json"
    if not path.is_file():
        raise ModelFilesError(f"{directory} has no tokenizer.json; --tokenizer needs a fast tokenizer's directory")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare exceptions
        raise ModelFilesError(f"{path} cannot be read: {error}") from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def _from_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download  # slow to import, and a local directory does not need it
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=_FILES))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError, ValueError) as error:
        raise ModelFilesError(
            f"--tokenizer is {name!r}: no such directory, and the hub does not give it ({error})"
        ) from error


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        parsed = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelFilesError(f"{path} is no JSON: {error}") from error
    return parsed if isinstance(parsed, dict) else {}


def _template(directory: Path, config: dict[str, Any], chosen: Path | None) -> str:
    if chosen is not None:
        try:
            return chosen.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            ours = ", ".join(TEMPLATE_NAMES)
            raise ModelFilesError(
                f"--chat-template {chosen} cannot be read: {error}; name a Jinja file or one of ours: {ours}"
            ) from error
    file = directory / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = _json(directory / "chat_template.json").get("chat_template") or config.get("chat_template")
    if isinstance(template, list):  # several named templates
        named = {entry["name"]: entry["template"] for entry in template}
        template = named.get("tool_use") or named.get("default")
    if not isinstance(template, str):
        raise ModelFilesError(f"{directory} has no chat template; name one with --chat-template FILE")
    return template


def _special_tokens(config: dict[str, Any], special: dict[str, Any]) -> dict[str, str]:
    tokens = {}
    for name, value in {**special, **config}.items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            tokens[name] = text
    return tokens


def _vocab_size(config: dict[str, Any]) -> int | None:
    """Rows of the embedding table; a model that also reads images has them in its `text_config`."""
    text_config = config.get("text_config")
    nested = text_config.get("vocab_size") if isinstance(text_config, dict) else None
    size = config.get("vocab_size", nested)
    return size if isinstance(size, int) and size > 0 else None


def _stop_ids(*configs: dict[str, Any]) -> frozenset[int]:
    for config in configs:  # the generation config names all stop ids, the model config often one of them
        value = config.get("eos_token_id")
        if value is not None:
            return frozenset(value if isinstance(value, list) else [value])
    return frozenset()
