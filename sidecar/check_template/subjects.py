"""What the paths of `check-template` name: a model's directory or hub id, or a template file. Only reads files.

A bare template needs a tokenizer: ids, stop tokens and `bos_token` come from there, and the verdict holds for the
pair. Nothing stands in for it: guessed from a template's text, the stop tokens were wrong for one public template
in six (of 197).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from adapters.models.templates import TEMPLATE_NAMES, template_file
from sidecar.model_files import ModelFilesError, read_model
from sidecar.tito.model import ModelText

_FILE_ENDINGS = (".jinja", ".jinja2", ".j2", ".json", ".txt")


@dataclass(frozen=True, slots=True)
class Subject:
    """One template with its tokenizer. `file` is None where the template is the tokenizer's own."""

    path: str
    tokenizer: str
    file: Path | None


def find_subject(path: str, tokenizer: str | None) -> Subject:
    """What `path` names. Raises `ModelFilesError` for a template without a tokenizer, and for a path that is not
    there and no hub id either."""
    file = template_file(path) or (Path(path) if Path(path).is_file() else None)
    if file is not None:
        if tokenizer is None:
            raise ModelFilesError(f"{path} is a template; name its tokenizer too: --tokenizer PATH_OR_ID")
        return Subject(path, tokenizer, file)
    if not Path(path).is_dir() and not _may_be_hub_id(path):
        ours = ", ".join(TEMPLATE_NAMES)
        raise ModelFilesError(f"{path}: there is no such file or directory; templates of ours are {ours}")
    return Subject(path, path, None)


def _may_be_hub_id(path: str) -> bool:
    return not path.startswith((".", "/", "~")) and path.count("/") <= 1 and not path.endswith(_FILE_ENDINGS)


class Reader:
    """Reads subjects; the last tokenizer is kept, so that many templates for one tokenizer read it once."""

    def __init__(self) -> None:
        self._kept: ModelText | None = None

    def read(self, subject: Subject) -> ModelText:
        """Template and tokenizer of a subject. Raises `ModelFilesError`."""
        if subject.file is None or self._kept is None or self._kept.name != subject.tokenizer:
            self._kept = read_model(subject.tokenizer, subject.file)
            return self._kept
        return replace(self._kept, chat_template=_text(subject.file))


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelFilesError(f"{file} cannot be read: {error}; name a Jinja file") from error
