"""What a request brought, as JSON again. Pure.

orjson reads 1,024 levels of nesting and writes 254. Values are written here two levels deeper than they are, so
that what passes can also be stored within a row's fields.
"""

from __future__ import annotations

from typing import Any

import orjson

from sidecar.tito.errors import MessageError


def wire_json(value: Any, param: str, option: int = 0) -> bytes:
    """A field's JSON, compact. Raises `MessageError` that names `param` where it is nested too deeply."""
    try:
        return orjson.dumps([[value]], option=option)[2:-2]
    except TypeError as error:
        raise MessageError(f"{param}: {error}; nest it in at most 250 levels", param) from error
