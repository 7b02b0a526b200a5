"""Compare specs without their positions: an edit above a definition moves its lines, and changes nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from derive.position import Position, Script


def is_same_definition(one: object, other: object) -> bool:
    """Return true if two specs, or parts of them, differ in positions only.

    Maps with different orders of entries differ, because the order of properties may be the order of columns.
    """
    if type(one) is not type(other):
        return False
    if isinstance(one, Position):
        return True
    if isinstance(one, Script) and isinstance(other, Script):
        return one.text == other.text
    parts, others = _parts(one), _parts(other)
    if parts is None or others is None:
        return one == other
    return list(parts) == list(others) and all(is_same_definition(parts[name], others[name]) for name in parts)


def _parts(value: object) -> Mapping[Any, object] | None:
    """Return the parts of a value by name or index; None for a value without parts."""
    if is_dataclass(value):
        return {part.name: getattr(value, part.name) for part in fields(value)}
    if isinstance(value, tuple | list):
        return dict(enumerate(value))
    return value if isinstance(value, Mapping) else None
