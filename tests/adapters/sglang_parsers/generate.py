"""Writes `expected.json`: what SGLang's own parsers answer for every sample of `samples.json`.

Runs only in an environment that has the pinned wheel (see `PROVENANCE.md`); tests read the data and never run
this. Imports nothing of ours. SGLang's package and its heavy imports (torch, transformers, xgrammar, IPython) are
replaced by inert stubs, so its pure-Python parsers load in a second. Single-threaded, no state kept.
"""

from __future__ import annotations

import argparse
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import json
import logging
import sys
import sysconfig
import types
from pathlib import Path
from typing import Any

PINNED = "0.5.23"
HERE = Path(__file__).resolve().parent
STUBBED = ("torch", "transformers", "xgrammar", "IPython")


class _StubModule(types.ModuleType):
    """Answers every attribute with an empty class, so `from torch import X` works and nothing more does."""

    __path__ = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        from pydantic import BaseModel  # a stub used in a pydantic field must have a schema

        stub = type(name, (BaseModel,), {"__module__": self.__name__})
        setattr(self, name, stub)
        return stub


class _StubFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the stubbed top-level packages and all their submodules."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname.split(".")[0] in STUBBED:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _StubModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run."""


def load_sglang() -> tuple[Any, Any, Any]:
    """SGLang's tool parser, reasoning parser and tool model. Exits if another version is installed."""
    installed = importlib.metadata.version("sglang")
    if installed != PINNED:
        raise SystemExit(f"sglang is {installed}; install sglang=={PINNED} (see PROVENANCE.md)")
    sys.meta_path.insert(0, _StubFinder())
    package = types.ModuleType("sglang")  # its own __init__ imports torch
    package.__path__ = [str(Path(sysconfig.get_paths()["purelib"]) / "sglang")]
    sys.modules["sglang"] = package
    from sglang.srt.entrypoints.openai.protocol import Tool
    from sglang.srt.function_call.function_call_parser import FunctionCallParser
    from sglang.srt.parser.reasoning_parser import ReasoningParser

    return FunctionCallParser, ReasoningParser, Tool


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _call(item: Any) -> dict[str, Any]:
    """A call with its arguments as a JSON value; `raw` keeps the text where it says more than the value."""
    try:
        arguments = json.loads(item.parameters, parse_constant=_reject_constant)
    except ValueError:
        return {"name": item.name, "raw": item.parameters}
    call = {"name": item.name, "arguments": arguments}
    if json.dumps(arguments, ensure_ascii=False) != item.parameters:
        call["raw"] = item.parameters
    return call


def parse(sample: dict[str, Any], tools: list[Any], tool_class: Any, reasoning_class: Any) -> dict[str, Any]:
    """One reply through both parsers in the order of SGLang's chat endpoint, non-streaming: reasoning first, then
    calls in what is left, and only if the tool parser sees its own marker there."""
    text, result = sample["text"], {}
    if "reasoning_parser" in sample:
        parser = reasoning_class(
            model_type=sample["reasoning_parser"],
            stream_reasoning=False,
            force_reasoning=sample.get("reasoning_open", False),
            tool_call_parser_active="tool_parser" in sample,
        )
        result["reasoning"], text = parser.parse_non_stream(text)
    calls = []
    if "tool_parser" in sample:
        parser = tool_class(tools, sample["tool_parser"])
        try:
            if parser.has_tool_call(text):
                text, calls = parser.parse_non_stream(text)
        except Exception as error:  # its chat endpoint then answers with the text as it was
            result["raised"] = type(error).__name__
    return {**result, "normal_text": text, "calls": [_call(item) for item in calls]}


def _lines(results: dict[str, Any]) -> str:
    rows = [f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in results.items()]
    return f'{{"sglang": "{PINNED}", "results": {{\n' + ",\n".join(rows) + "\n}}\n"


def main() -> None:
    """Write `expected.json`, or with `--check` fail if it differs from what SGLang says now."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--check", action="store_true")
    check = arguments.parse_args().check
    logging.disable(logging.CRITICAL)  # SGLang logs every malformed call
    tool_class, reasoning_class, tool_model = load_sglang()
    corpus = json.loads((HERE / "samples.json").read_text(encoding="utf-8"))
    results = {}
    for sample in corpus["samples"]:
        if sample["id"] in results:
            raise SystemExit(f"samples.json: id {sample['id']} is used twice")
        tools = [tool_model.model_validate(tool) for tool in corpus["toolsets"][sample["tools"]]]
        results[sample["id"]] = parse(sample, tools, tool_class, reasoning_class)
    path, text = HERE / "expected.json", _lines(results)
    if not check:
        path.write_text(text, encoding="utf-8")
    elif path.read_text(encoding="utf-8") != text:
        raise SystemExit("expected.json is stale: run generate.py")
    print(f"{len(results)} samples")


if __name__ == "__main__":
    main()
