"""A model's directory from a published template and a tokenizer, and a sidecar that serves it.

Where no registry has the real tokenizer, Qwen3's with the family's control tokens stands in: ids differ from
the real model's, the text that a template prints does not.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from tests.fake_sglang import FakeSGLang
from tests.support.running import Running, running_sidecar


def substitute_model(
    directory: Path,
    tokenizer: Tokenizer,
    template: str,
    *,
    stops: Sequence[str],
    special: Sequence[str] = (),
    **tokens: str,
) -> Path:
    """Write the model into `directory`: `stops` end its replies, `special` are further control tokens, and `tokens`
    are those that the template prints by name (`bos_token`). Those that `tokenizer` lacks are added to it."""
    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    missing = [spelling for spelling in (*stops, *special, *tokens.values()) if spelling not in known]
    tokenizer.add_special_tokens([AddedToken(spelling, special=True, normalized=False) for spelling in missing])
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    config: dict[str, Any] = {"eos_token": stops[0], "chat_template": template, **tokens}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    ids = [tokenizer.token_to_id(spelling) for spelling in stops]
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": ids}))
    return directory


def with_template(directory: Path, base: Path, template: str) -> Path:
    """Qwen3's own model in `directory`, with another template."""
    directory.mkdir(parents=True, exist_ok=True)
    shutil.copy(base / "tokenizer.json", directory / "tokenizer.json")
    config = json.loads((base / "tokenizer_config.json").read_text())
    (directory / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": template}))
    return directory


@asynccontextmanager
async def served(directory: Path, state_dir: Path, *stops: str, **settings: Any) -> AsyncIterator[Running]:
    """A sidecar in front of an engine that serves that model and stops at `stops`."""
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    ids = [tokenizer.token_to_id(spelling) for spelling in stops]
    async with (
        FakeSGLang(eos_token_ids=ids, tokenizer=tokenizer, tokenizer_path=str(directory)) as engine,
        running_sidecar(engine, state_dir, **settings) as running,
    ):
        yield running
