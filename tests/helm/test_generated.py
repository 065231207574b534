"""What is derived in the chart is not stale. Needs no helm."""

from __future__ import annotations

import importlib.util
import json
import tomllib
from types import ModuleType

import pytest
import yaml

from tests.helm.tools import CHART, ROOT


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    """`helm/generate.py`."""
    spec = importlib.util.spec_from_file_location("generate", ROOT / "helm" / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_of_values_is_the_one_of_values_yaml(generate: ModuleType) -> None:
    readme, values = generate.README.read_text(), generate.VALUES.read_text()
    assert readme == generate.readme_with(generate.table(values), readme), "run python helm/generate.py"


def test_the_schema_accepts_the_settings_that_serve_has(generate: ModuleType) -> None:
    schema = json.loads(generate.SCHEMA.read_text())
    accepted = schema["$defs"]["settings"]["propertyNames"]["enum"]
    assert accepted == generate.accepted_settings(), "run python helm/generate.py"


def test_every_value_has_a_row_and_a_place_in_the_schema(generate: ModuleType) -> None:
    schema = json.loads(generate.SCHEMA.read_text())
    rows = {key for key, _, _ in generate.value_rows(generate.VALUES.read_text())}

    def compare(values: object, part: dict[str, object], path: str) -> None:
        properties = part.get("properties")
        if path in rows or not isinstance(values, dict):
            assert path in rows, f"{path} has no row"
            return
        assert isinstance(properties, dict) and properties.keys() - {"global"} == values.keys(), path
        for name, value in values.items():
            compare(value, properties[name], f"{path}.{name}".lstrip("."))

    compare(yaml.safe_load(generate.VALUES.read_text()), schema, "")


def test_a_value_without_a_comment_is_noticed(generate: ModuleType) -> None:
    with pytest.raises(ValueError, match=r"webhook\.new"):
        generate.value_rows("webhook:\n  # -- it is\n  enabled: true\n  new: 3\n")


def test_the_chart_has_the_version_of_the_package() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == values["image"]["tag"] == version
