"""The launch script of docs/slime.md uses slime's flags as this checkout knows them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.slime_conformance.checkout import slime_path

CHECKOUT = slime_path()
SCRIPT = (Path(__file__).resolve().parents[2] / "docs" / "slime.md").read_text().partition("# 3. slime's flags.")[2]
FLAGS = sorted(set(re.findall(r"(?<=\s)--([a-z][a-z0-9-]+)", SCRIPT.partition("# 4. The training loop")[0])))


@pytest.fixture(scope="module")
def known() -> str:
    """All of slime's Python and shell files, where its own flags and those of Megatron that it uses are named."""
    files = [path for end in ("py", "sh") for path in CHECKOUT.rglob(f"*.{end}")]
    return "\n".join(path.read_text(errors="replace") for path in files)


@pytest.mark.parametrize("flag", FLAGS)
def test_slime_knows_the_flag(flag: str, known: str) -> None:
    """SGLang's own flags stand behind `--sglang-`, which slime takes from SGLang when it starts."""
    if flag.startswith("sglang-") and not re.search(rf"--{flag}\b", known):
        flag = flag.removeprefix("sglang-")
        assert re.search(rf"\b{flag.replace('-', '_')}\b", known)
    else:
        assert re.search(rf"--{flag}\b", known)


def test_the_models_arguments_are_where_the_script_looks() -> None:
    assert "MODEL_ARGS=(" in (CHECKOUT / "scripts" / "models" / "qwen3-4B.sh").read_text()
