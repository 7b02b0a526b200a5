"""Tables and columns, needed and existing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from connectors.materialize_sql.kind import Kind


@dataclass(frozen=True, slots=True)
class Column:
    """A column that a binding needs.

    Attributes:
        field: field of the column's values.
        name: name in the table.
        kind: kind of the values; in an existing table, the kind as which they are stored.
        type: name of the type in the database.
        is_key: whether the column is a component of the key.
        not_null: whether every row has a value.
        comment: comment for users.
    """

    field: str
    name: str
    kind: Kind
    type: str
    is_key: bool = False
    not_null: bool = False
    comment: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """The table of a binding.

    Attributes:
        path: name of the table, after the name of its schema if there are schemas.
        columns: columns of the key, of the values, and of the document, if there is one.
        delta_updates: whether rows are only appended, and a key may have several rows.
        document: name of the column of whole documents.
        comment: comment for users.
    """

    path: tuple[str, ...]
    columns: tuple[Column, ...]
    delta_updates: bool = False
    document: str | None = None
    comment: str = ""

    @property
    def keys(self) -> tuple[Column, ...]:
        """Return the columns of the key."""
        return tuple(column for column in self.columns if column.is_key)

    @property
    def values(self) -> tuple[Column, ...]:
        """Return the other columns, including the document's."""
        return tuple(column for column in self.columns if not column.is_key)


@dataclass(frozen=True, slots=True)
class ExistingColumn:
    """An existing column.

    Attributes:
        name: name in the table.
        type: type as the database writes it.
        not_null: whether the column refuses NULL.
        comment: its comment; empty if there is none.
        has_default: whether an inserted row without a value gets one.
    """

    name: str
    type: str
    not_null: bool = False
    comment: str = ""
    has_default: bool = False


@dataclass(frozen=True, slots=True)
class ExistingTable:
    """An existing table.

    Attributes:
        columns: columns by name.
        key: names of the primary key's columns; empty if there is none.
        belongings: statements that create objects that are dropped with the table, such as its indexes.
    """

    columns: Mapping[str, ExistingColumn]
    key: frozenset[str] = frozenset()
    belongings: tuple[str, ...] = ()
