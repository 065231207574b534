"""What an export tells its user. Plain classes."""

from __future__ import annotations


class ExportError(Exception):
    """The export cannot be made as asked; the text says what to change."""


class ExportExtraError(ExportError):
    """A library of the extra is not installed."""

    def __init__(self, missing: ImportError) -> None:
        super().__init__(
            f"tito-sidecar export needs {missing.name or missing}; install the extra: "
            "pip install 'tito-sidecar[export]'"
        )
