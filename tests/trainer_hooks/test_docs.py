"""What the documents for trainers name is there: hook paths, settings, flags, files they link to."""

from __future__ import annotations

import importlib
import re
import subprocess
from pathlib import Path

import pytest

from sidecar.config import Settings
from tests.trainer_hooks.batches import Run, flat_batch
from tests.trainer_hooks.slime_stand_in import make_args
from trainer_hooks.slime.trajectory_metrics import trajectory_metrics

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = {
    name: (ROOT / "docs" / name).read_text()
    for name in ("slime.md", "coming-from-dressage.md", "training.md", "rollouts.md", "launchers.md")
}
HOOKS = "\n".join(path.read_text() for path in (ROOT / "trainer_hooks").rglob("*.py"))


def all_of(pattern: str) -> list[str]:
    return sorted({found for text in DOCUMENTS.values() for found in re.findall(pattern, text)})


@pytest.mark.parametrize("path", all_of(r"\btrainer_hooks\.slime(?:\.\w+)+"))
def test_every_hook_path_can_be_imported(path: str) -> None:
    module, _, name = path.rpartition(".")
    try:
        importlib.import_module(path)
    except ImportError:
        assert hasattr(importlib.import_module(module), name)


@pytest.mark.parametrize("name", all_of(r"\b(?:TITO|DRESSAGE_PROXY)_[A-Z_]+[A-Z]\b"))
def test_every_setting_is_read_by_a_hook_or_by_the_sidecar(name: str) -> None:
    assert f'"{name}"' in HOOKS or name.removeprefix("TITO_").lower() in Settings.model_fields


@pytest.mark.parametrize("key", all_of(r"(?m)^(tito_\w+):"))
def test_every_key_of_the_scripts_settings_file_is_read(key: str) -> None:
    assert f'"{key.upper()}"' in HOOKS


@pytest.mark.parametrize("link", all_of(r"\]\(([\w./-]+\.md)"))
def test_every_link_leads_somewhere(link: str) -> None:
    assert (ROOT / "docs" / link).is_file()


def test_the_sidecars_flags_in_the_script_exist() -> None:
    command = re.search(r"(?ms)^tito-sidecar serve (.*?) &$", DOCUMENTS["slime.md"])
    assert command is not None
    flags = re.findall(r"--([a-z-]+)", command[1])
    assert len(flags) > 4
    for flag in flags:
        assert flag.replace("-", "_") in Settings.model_fields


def test_the_script_is_a_script() -> None:
    [script] = re.findall(r"(?ms)^```bash\n(#!.*?)^```$", DOCUMENTS["slime.md"])
    subprocess.run(["bash", "-n"], input=script, text=True, check=True, timeout=30)


def test_the_table_of_metrics_names_what_is_measured() -> None:
    table = DOCUMENTS["slime.md"].partition("## Metrics")[2].partition("## ")[0]
    named = set(re.findall(r"`([a-z_]+)(?:/REASON)?`", table))
    samples = flat_batch([Run(0, [2, 3], 1.0), Run(0, [4], 0.0), Run(0, [], dead=True)])
    samples[1].metadata["untrainable_tokens"] = {"undelivered": 1}
    measured = {
        name.removeprefix("rollout/").partition("/")[0].removesuffix("_max")
        for name in trajectory_metrics(make_args(global_batch_size=1), samples)
    }
    assert measured - named == {name for name in measured if f"{name}_mean" in named}
