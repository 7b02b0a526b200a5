"""The columns of collections as relations.

A collection of a catalog has a column for each of its fields, the key's first, then the document and its publication
time. A table has the columns of its definition.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from derive.algebra.types import Type
from derive.document.pointer import JSON
from derive.protocol.specs import CollectionSpec, ProjectionSpec
from derive.schema.projection import UUID_POINTER
from derive.storage.table import Table

Source: TypeAlias = CollectionSpec | Table
"""A collection of a catalog, or a table."""

_TYPES: Mapping[frozenset[str], Type] = {
    frozenset({"integer"}): Type.BIGINT,
    frozenset({"integer", "fractional"}): Type.DOUBLE,
    frozenset({"fractional"}): Type.DOUBLE,
    frozenset({"string"}): Type.TEXT,
    frozenset({"boolean"}): Type.BOOLEAN,
}
"""SQL types by the JSON types of a field; other fields are `jsonb`."""


@dataclass(frozen=True, slots=True)
class RelationColumn:
    """A column of a collection.

    Attributes:
        name: name in SQL; unique in its collection.
        type: type of its data.
        nullable: whether it may be NULL.
        pointer: JSON pointer of its location in documents; that of `flow_published_at` is no location.
        default: value for documents without the location, as a tuple of one; empty for NULL.
    """

    name: str
    type: Type
    nullable: bool
    pointer: str
    default: tuple[JSON, ...] = ()


def columns_of(source: Source) -> tuple[RelationColumn, ...]:
    """Return the columns of a collection of a catalog, or of a table."""
    if isinstance(source, Table):
        return tuple(
            RelationColumn(column.name, Type(column.type), column.nullable, column.pointer) for column in source.columns
        )
    order = {pointer: index for index, pointer in enumerate(source.key)}
    fields = sorted(source.projections, key=lambda item: (_rank(item, order), item.field))
    return tuple(map(_column, fields))


def _rank(projection: ProjectionSpec, order: Mapping[str, int]) -> tuple[int, int]:
    """Return the sort key of a field: key fields, other fields, the document, its publication time."""
    if projection.pointer in order:
        return 0, order[projection.pointer]
    return ("", UUID_POINTER).index(projection.pointer) + 2 if projection.pointer in ("", UUID_POINTER) else 1, 0


def _column(projection: ProjectionSpec) -> RelationColumn:
    if projection.pointer == UUID_POINTER:
        return RelationColumn(projection.field, Type.TIMESTAMPTZ, nullable=False, pointer=UUID_POINTER)
    if projection.pointer == "":
        return RelationColumn(projection.field, Type.JSONB, nullable=False, pointer="")
    kind = _TYPES.get(projection.types - {"null"}, Type.JSONB)
    default = projection.default if projection.default and projection.default[0] is not None else ()
    nullable = "null" in projection.types or (projection.exists != "must" and not default)
    return RelationColumn(projection.field, kind, nullable, projection.pointer, default)
