"""docs/parsers.md names every format, family and difference that there is, and the numbers that are true."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from adapters.models.formats import REASONING_FORMATS, TOOL_FORMATS
from adapters.models.registry import FAMILIES
from tests.adapters.replies import data

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "parsers.md").read_text(encoding="utf-8")
DELIBERATE = data("deliberate.json")


def section(title: str) -> str:
    return PAGE.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]


def test_every_format_is_there_under_every_name() -> None:
    assert [name for name in TOOL_FORMATS if f"`{name}`" not in section("Formats of tool calls")] == []
    assert [name for name in REASONING_FORMATS if f"`{name}`" not in section("Reasoning")] == []


def test_every_family_is_there_in_the_order_in_which_they_are_tried_with_its_stop_tokens() -> None:
    rows = [line for line in section("How `auto` chooses").splitlines() if line.startswith("| `")]
    names = [name.strip("` ") for row in rows for name in row.split("|")[1].split(",")]
    assert names == [family.name for family in FAMILIES]
    plain = section("How `auto` chooses").replace("\\|", "|")
    assert [stop for family in FAMILIES for stop in family.stop_tokens if f"`{stop}`" not in plain] == []


def test_every_deliberate_difference_is_explained_and_counted() -> None:
    counts = Counter(entry["reason"] for entry in DELIBERATE["samples"].values())
    rows = [f"| `{name}` | {counts[name]} | {why} |" for name, why in DELIBERATE["reasons"].items()]
    assert [row for row in rows if row not in PAGE.replace("\\|", "|")] == []
    total, listed, space = (
        len(data("samples.json")["samples"]),
        len(DELIBERATE["samples"]),
        len(DELIBERATE["white_space"]),
    )
    text = " ".join(section("Differences from SGLang").split())
    assert f"holds {total} replies" in text
    assert f"On {total - listed - space} ours are equal, on {space} but for white space" in text
    assert f"The other {listed} are listed" in text
