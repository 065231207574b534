"""Lets SGLang start where its CUDA parts do not exist. Copied into the engine's environment.

Promise: `import torchvision` and `import sgl_kernel`, and whatever is imported from or below them, give modules
without content whose attributes are classes that do nothing. SGLang 0.5.23 imports both unconditionally, and on a
CPU without AMX calls neither for a text model (`--attention-backend torch_native`). Who only asks whether they are
installed (`importlib.util.find_spec`, as transformers does before it uses torchvision) is told that they are not.
Concurrency: set up once, when the interpreter starts (by a .pth file: Debian's Python has a `sitecustomize` of its
own); the server's child processes do it again for themselves.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec

_ABSENT = ("torchvision", "sgl_kernel")


class _Inert(type):
    """A class of this type has every attribute, and each is such a class again."""

    def __getattr__(cls, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return _inert(name)


def _inert(name: str) -> type:
    def nothing(self: object, *_: object, **__: object) -> None:
        """Takes anything, does nothing."""

    return _Inert(name, (), {"__init__": nothing})


class _EmptyModule(types.ModuleType):
    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return _inert(name)


class _Stubs(MetaPathFinder, Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.split(".")[0] not in _ABSENT or self._only_asked():
            return None
        return ModuleSpec(fullname, self, is_package=True)

    @staticmethod
    def _only_asked() -> bool:
        """Whether the question comes from `importlib.util.find_spec` rather than from an import statement."""
        frame = sys._getframe(1)
        for _ in range(4):
            if frame.f_back is None:
                break
            frame = frame.f_back
            if frame.f_code is importlib.util.find_spec.__code__:
                return True
        return False

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        return _EmptyModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """There is nothing to run."""


sys.meta_path.append(_Stubs())
