"""Kubernetes' amounts (`250m`, `1Gi`) as numbers, because the API server writes them its own way. Pure."""

from __future__ import annotations

import re
from fractions import Fraction

_BINARY = {f"{letter}i": 1 << (10 * power) for power, letter in enumerate("KMGTPE", 1)}
_DECIMAL = {"n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000), "": Fraction(1)} | {
    letter: Fraction(1000**power) for power, letter in enumerate("kMGTPE", 1)
}


def quantity(text: str) -> Fraction:
    """The amount. Raises `ValueError` for what Kubernetes would refuse."""
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)([a-zA-Z]*|[eE][+-]?\d+)", text)
    if match is None:
        raise ValueError(f"{text!r} is no amount; write 250m, 1, 512Mi, 2Gi")
    number, suffix = Fraction(match.group(1)), match.group(2)
    if suffix in _BINARY:
        return number * _BINARY[suffix]
    if suffix in _DECIMAL:
        return number * _DECIMAL[suffix]
    if re.fullmatch(r"[eE][+-]?\d{1,2}", suffix):
        return number * Fraction(f"1e{int(suffix[1:])}")
    raise ValueError(f"{text!r} is no amount: there is no unit {suffix!r}; write 250m, 1, 512Mi, 2Gi")


def same_amount(one: object, other: object) -> bool:
    """Whether two values are amounts and equal: `1024Mi` and `1Gi`, 1 and `1000m`."""
    try:
        return quantity(str(one)) == quantity(str(other))
    except ValueError:
        return False
