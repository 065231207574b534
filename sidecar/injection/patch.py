"""The JSON patch (RFC 6902) from one JSON value to another. Pure.

It names what changed and leaves the rest alone; a list that is not merely longer or changed in place is replaced
whole, which is shorter than its moves.
"""

from __future__ import annotations

from typing import Any


def json_patch(old: Any, new: Any, path: str = "") -> list[dict[str, Any]]:
    """Operations that turn `old` into `new`; none if they are equal. `path` is where both are."""
    if _same(old, new):
        return []
    if isinstance(old, dict) and isinstance(new, dict):
        return _object_patch(old, new, path)
    if isinstance(old, list) and isinstance(new, list) and _grown(old, new):
        operations = [
            operation
            for index, entry in enumerate(old)
            for operation in json_patch(entry, new[index], f"{path}/{index}")
        ]
        return operations + [{"op": "add", "path": f"{path}/-", "value": entry} for entry in new[len(old) :]]
    return [{"op": "replace", "path": path, "value": new}]


def _object_patch(old: dict[str, Any], new: dict[str, Any], path: str) -> list[dict[str, Any]]:
    operations: list[dict[str, Any]] = []
    for name in sorted(old.keys() - new.keys()):
        operations.append({"op": "remove", "path": f"{path}/{_escaped(name)}"})
    for name, value in new.items():
        where = f"{path}/{_escaped(name)}"
        if name not in old:
            operations.append({"op": "add", "path": where, "value": value})
        else:
            operations += json_patch(old[name], value, where)
    return operations


def _grown(old: list[Any], new: list[Any]) -> bool:
    """Whether the entries of `old` are still where they were; entries that are objects may have changed inside."""
    return 0 < len(old) <= len(new) and all(_in_place(*pair) for pair in zip(old, new, strict=False))


def _in_place(old: Any, new: Any) -> bool:
    if isinstance(old, dict) and isinstance(new, dict) and old.get("name") == new.get("name"):
        return True
    return _same(old, new)


def _same(old: Any, new: Any) -> bool:
    """Equal as JSON: Python holds `True == 1` and `1 == 1.0`."""
    if isinstance(old, dict) and isinstance(new, dict):
        return old.keys() == new.keys() and all(_same(value, new[name]) for name, value in old.items())
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(map(_same, old, new))
    return type(old) is type(new) and bool(old == new)


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
