"""Tables and columns, as they should be and as they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from connectors.materialize_sql.kind import Kind


@dataclass(frozen=True, slots=True)
class Column:
    """A column that a binding needs.

    Attributes:
        field: whose values it has.
        name: what it is called in the table.
        kind: what its values are; of a table that is there, as what they are stored.
        type: the database's name for that.
        is_key: whether it is a component of the key.
        not_null: whether every row has a value.
        comment: what it is, for people.
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
        path: its name, after that of the schema it is in where there are schemas.
        columns: those of the key, those of the values, and then the document's, if it has one.
        delta_updates: whether rows are only ever added, and no key is of one row.
        document: name of the column of whole documents.
        comment: what it is, for people.
    """

    path: tuple[str, ...]
    columns: tuple[Column, ...]
    delta_updates: bool = False
    document: str | None = None
    comment: str = ""

    @property
    def keys(self) -> tuple[Column, ...]:
        """Columns of the key."""
        return tuple(column for column in self.columns if column.is_key)

    @property
    def values(self) -> tuple[Column, ...]:
        """The other columns, that of the document among them."""
        return tuple(column for column in self.columns if not column.is_key)


@dataclass(frozen=True, slots=True)
class ExistingColumn:
    """A column that is there.

    Attributes:
        name: what it is called.
        type: as the database spells it.
        not_null: whether it refuses NULL.
        comment: empty if there is none.
        has_default: whether a row that says nothing of it has a value nevertheless.
    """

    name: str
    type: str
    not_null: bool = False
    comment: str = ""
    has_default: bool = False


@dataclass(frozen=True, slots=True)
class ExistingTable:
    """A table that is there.

    Attributes:
        columns: by name.
        key: names of the primary key's columns; empty if it has none.
        belongings: statements that create what would be lost with the table, such as its indexes.
    """

    columns: Mapping[str, ExistingColumn]
    key: frozenset[str] = frozenset()
    belongings: tuple[str, ...] = ()
