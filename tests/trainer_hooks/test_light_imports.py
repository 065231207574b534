"""The hooks live in the trainer's process: importing them must cost little and need nothing but httpx and numpy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HEAVY = (
    "torch", "ray", "slime", "megatron", "mitmproxy", "starlette", "uvicorn", "aiohttp", "sqlalchemy",
    "transformers", "yaml", "openai", "sidecar", "adapters",
)  # fmt: skip


def test_no_hook_imports_anything_heavy() -> None:
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in sorted((ROOT / "trainer_hooks").rglob("*.py"))
        if path.name not in ("__init__.py", "__main__.py")
    ]
    assert len(modules) > 30
    code = (
        "import importlib, sys\n"
        f"for name in {modules}: importlib.import_module(name)\n"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert shown.stdout.strip() == "[]"
