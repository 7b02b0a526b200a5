"""Enumerated values of a schema: their types, and sets of values in document order, because values have no hash."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from derive.document.order import compare, order_key
from derive.document.pointer import JSON

Values: TypeAlias = tuple[JSON, ...]
"""Distinct values in document order; 1 equals 1.0, and 1 differs from true."""


def type_of(value: JSON) -> str:
    """Return the JSON type of a value; 1.0 is an integer."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "integer" if isinstance(value, int) or value.is_integer() else "fractional"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"


def distinct(values: Iterable[JSON]) -> Values:
    """Return the distinct values, in document order."""
    unique: list[JSON] = []
    for value in sorted(values, key=order_key):
        if not unique or compare(unique[-1], value):
            unique.append(value)
    return tuple(unique)


def common(left: Values, right: Values) -> Values:
    """Return the values on both sides."""
    return tuple(value for value in left if any(compare(value, other) == 0 for other in right))


def equal(left: Values, right: Values) -> bool:
    """Return true if both sides have the same values."""
    return compare(list(left), list(right)) == 0
