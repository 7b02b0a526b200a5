"""What a column of a file holds, by what is known of a field."""

from __future__ import annotations

from typing import Literal, TypeAlias

from connectors.kit import Field

Kind: TypeAlias = Literal["boolean", "integer", "number", "string", "json"]
"""`json` is for objects, arrays, and values of which there may be several types: each is its JSON text."""

DELETED = "flow_deleted"
"""Name of the last column: whether the row's key is deleted."""


def kind_of(field: Field) -> Kind:
    """What a field's column holds."""
    types = set(field.types) - {"null"}
    if types == {"boolean"}:
        return "boolean"
    if types == {"integer"}:
        return "integer"
    if types and types <= {"integer", "number"}:
        return "number"
    return "string" if types == {"string"} else "json"
