"""What keeps the real engine from being installed is said in words that help; nothing half made passes as ready."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine import recipe
from tests.engine.recipe import EngineUnavailable, engine_python


@pytest.fixture(autouse=True)
def empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A place where nothing is installed, on a machine that has what is needed."""
    monkeypatch.setattr(recipe, "CACHE", tmp_path / "engine")
    monkeypatch.setattr(recipe, "RUN_MEMORY", 0)
    monkeypatch.setattr(recipe, "INSTALL_DISK", 0)
    return tmp_path / "engine"


@pytest.mark.parametrize(("limit", "word"), [("RUN_MEMORY", "memory"), ("INSTALL_DISK", "disk")])
def test_too_small_a_machine_is_named(monkeypatch: pytest.MonkeyPatch, limit: str, word: str) -> None:
    monkeypatch.setattr(recipe, limit, 1 << 60)
    with pytest.raises(EngineUnavailable, match=rf"needs \d+ MiB of .*{word}"):
        engine_python()


def test_a_missing_interpreter_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipe, "INTERPRETERS", ("no-such-python",))
    with pytest.raises(EngineUnavailable, match=r"Python 3\.11 with venv"):
        engine_python()


def test_without_an_index_the_package_is_named_and_nothing_counts_as_installed(
    monkeypatch: pytest.MonkeyPatch, empty_cache: Path
) -> None:
    try:
        recipe._interpreter()
    except EngineUnavailable as reason:
        pytest.skip(str(reason))
    for name, value in {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": "/dev/null"}.items():
        monkeypatch.setenv(name, value)
    for _ in range(2):
        with pytest.raises(EngineUnavailable, match=r"torch==2\.13\.0\+cpu"):
            engine_python()
    assert not list(empty_cache.rglob(".ready"))


def test_another_recipe_is_another_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    before = recipe._fingerprint()
    monkeypatch.setattr(recipe, "PACKAGES", (*recipe.PACKAGES, "one-more"))
    assert recipe._fingerprint() != before
