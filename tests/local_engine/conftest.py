"""One engine for all tests of this folder, with its real model, behind a real server."""

import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from transformers import AutoTokenizer

from sidecar.local_engine import LocalEngine, ModelFiles, build_app, prepare_model
from tests.local_engine.client import CONTEXT, LIVENESS, Client, until


@pytest.fixture(scope="package")
def files() -> Iterator[ModelFiles]:
    with tempfile.TemporaryDirectory() as folder:
        yield prepare_model(Path(folder))


@pytest.fixture(scope="package")
def caught_signals() -> Iterator[list[int]]:
    """A handler of SIGTERM that is in place before the engine starts, like an ASGI server's."""
    caught: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: caught.append(number))
    yield caught
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="package")
def engine(files: ModelFiles, caught_signals: list[int]) -> Iterator[LocalEngine]:
    yield LocalEngine(files, context_length=CONTEXT, slots=3, threads=1)  # 1: works beside other tests


@pytest.fixture(scope="package")
def address(engine: LocalEngine) -> Iterator[str]:
    server = uvicorn.Server(uvicorn.Config(build_app(engine), port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    until(lambda: server.started or not thread.is_alive())
    assert server.started, "the engine did not start"
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join(LIVENESS)
    assert not thread.is_alive(), "the engine did not stop"


@pytest.fixture
def client(address: str) -> Iterator[Client]:
    with Client(base_url=address, timeout=LIVENESS) as client:
        yield client
        client.post("/continue_generation")


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


@pytest.fixture(scope="package")
def tokenizer(files: ModelFiles) -> Any:
    return AutoTokenizer.from_pretrained(files.tokenizer_dir)


@pytest.fixture(scope="package")
def chat(tokenizer: Any) -> Callable[[str], list[int]]:
    def render(text: str) -> list[int]:
        message = [{"role": "user", "content": text}]
        rendered = tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
        return tokenizer.encode(rendered, add_special_tokens=False)

    return render


@pytest.fixture(scope="package")
def shipped(files: ModelFiles) -> Iterator[httpx.Client]:
    """llama.cpp's own server on the model file as it is shipped."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(files.gguf)
    params.n_ctx, params.n_parallel, params.cpuparams.n_threads = 512, 1, 1
    params.verbosity, params.ui, params.cache_ram_mib = 1, False, 0
    server = xllamacpp.Server(params)
    with httpx.Client(base_url=server.listening_address, timeout=LIVENESS) as client:
        yield client
