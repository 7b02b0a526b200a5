"""The kind of values in a file's column, from the inferred types of a field."""

from __future__ import annotations

from typing import Literal, TypeAlias

from connectors.kit import Field

Kind: TypeAlias = Literal["boolean", "integer", "number", "string", "json"]
"""`json` is for objects, arrays, and values of several types: each is its JSON text."""

DELETED = "flow_deleted"
"""Name of the last column: whether the row's key is deleted."""


def kind_of(field: Field) -> Kind:
    """Return the kind of values in a field's column."""
    types = set(field.types) - {"null"}
    if types == {"boolean"}:
        return "boolean"
    if types == {"integer"}:
        return "integer"
    if types and types <= {"integer", "number"}:
        return "number"
    return "string" if types == {"string"} else "json"
