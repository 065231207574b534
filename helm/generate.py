"""Writes what is derived in the chart: the table of values in its README, and the settings that its schema accepts.

Run `python helm/generate.py` after a change of `values.yaml` or of `sidecar/config.py`: tests/helm refuses a stale
chart. Pure but for reading and writing those files.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import yaml

from sidecar.config import Settings

CHART = Path(__file__).resolve().parent / "tito-sidecar"
README, VALUES, SCHEMA = CHART / "README.md", CHART / "values.yaml", CHART / "values.schema.json"
BEGIN, END = "<!-- values: written by helm/generate.py -->", "<!-- end of values -->"

CHART_SETS = frozenset(
    (
        "advertise_control_url", "advertise_url", "ca_bundle", "ca_dir", "control_listen", "control_token",
        "data_auth", "drain_seconds", "engine_admin_key", "engine_api_key", "engine_url", "health_listen",
        "intercept", "listen", "session_id", "session_secret", "state_dir", "store",
    )
)  # fmt: skip
"""Settings of `serve` that the chart derives from other values; given twice, one of them would be a lie."""


def value_rows(text: str) -> list[tuple[str, str, str]]:
    """`(key, default as JSON, description)` for each value with a `# --` comment in `values.yaml`.

    Raises `ValueError` for a value without one: the table would lack it."""
    defaults = yaml.safe_load(text)
    rows: list[tuple[str, str, str]] = []
    path: list[str] = []
    described_above, description = -1, ""
    for line in text.splitlines():
        if comment := re.fullmatch(r"\s*# -- (.*)", line):
            description = comment.group(1)
            continue
        key = re.match(r"( *)([A-Za-z]+):(.*)", line)
        if key is None:
            continue
        depth = len(key.group(1)) // 2
        if 0 <= described_above < depth:
            continue  # part of a value that has its row already
        path = [*path[:depth], key.group(2)]
        described_above = depth if description else -1
        if description:
            rows.append((".".join(path), json.dumps(_at(defaults, path)), description))
            description = ""
        elif key.group(3).strip():
            raise ValueError(f"values.yaml: {'.'.join(path)} has no comment; write `# -- what it is` above it")
    return rows


def _at(values: object, path: list[str]) -> object:
    for part in path:
        assert isinstance(values, dict), path
        values = values[part]
    return values


def table(text: str) -> str:
    """The rows as Markdown."""
    lines = ["| value | default | what |", "|---|---|---|"]
    lines += [f"| `{key}` | `{default}` | {description} |" for key, default, description in value_rows(text)]
    return "\n".join(lines)


def readme_with(table_text: str, readme: str) -> str:
    """`readme` with the table between its marks."""
    before, _, rest = readme.partition(BEGIN)
    return f"{before}{BEGIN}\n{table_text}\n{END}{rest.partition(END)[2]}"


def schema_with(settings: list[str], schema: str) -> str:
    """`schema` with the names of settings that `sidecar.settings` and `gateway.settings` accept."""
    parsed = json.loads(schema)
    parsed["$defs"]["settings"]["propertyNames"]["enum"] = settings
    return json.dumps(parsed, indent=2) + "\n"


def accepted_settings() -> list[str]:
    """Settings of `tito-sidecar serve` that the chart leaves to its user."""
    return sorted(set(Settings.model_fields) - CHART_SETS)


def main() -> None:
    """Write both files anew."""
    README.write_text(readme_with(table(VALUES.read_text()), README.read_text()))
    SCHEMA.write_text(schema_with(accepted_settings(), SCHEMA.read_text()))


if __name__ == "__main__":
    main()
