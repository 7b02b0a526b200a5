"""Tables: multisets of rows, which are documents to everyone but SQL, and what is known of one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from derive.document.pointer import escape
from derive.position import Position
from derive.protocol.specs import JSON, CollectionSpec
from derive.schema.infer import infer
from derive.schema.projection import project

GlobalId: TypeAlias = int
"""What identifies a collection, view or index; never used again for another one."""

AppendedRow: TypeAlias = tuple[int, int, int, bytes, str]
"""Clock, seq, diff, packed key and text of an update that is in no segment yet."""

_SCHEMAS: Mapping[str, JSON] = {
    "boolean": {"type": "boolean"},
    "smallint": {"type": "integer"},
    "integer": {"type": "integer"},
    "bigint": {"type": "integer"},
    "mz_timestamp": {"type": "integer"},
    "double precision": {"type": "number"},  # NaN and infinities are texts, which a column of numbers looks up
    "jsonb": {},
}
"""By type, the schema of its values as JSON; those of all other types are texts, and arrays are arrays of these."""


def _schema_of(kind: str) -> JSON:
    if kind.endswith("[]"):
        element = _SCHEMAS.get(kind.removesuffix("[]"), {"type": "string"})
        return {"type": "array", "items": {"anyOf": [element, {"type": "null"}]} if element else {}}
    return _SCHEMAS.get(kind, {"type": "string"})


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of a table.

    Attributes:
        name: unique in the table.
        type: name of its type in SQL.
        nullable: whether rows may lack it, which is how a document says NULL.
    """

    name: str
    type: str
    nullable: bool = True

    @property
    def pointer(self) -> str:
        """Where documents have it."""
        return f"/{escape(self.name)}"


@dataclass(frozen=True, slots=True)
class Table:
    """A consolidated collection: a table, or a materialized view, whose rows are changed by whoever writes it.

    Attributes:
        id: identifies it for all time.
        name: to which it is bound.
        columns: in their order.
        key: JSON pointers by which rows are ordered and shuffled; several rows may have equal ones.
        since: its contents are exact from here on.
        upper: everything below is final; `END_OF_TIME` of one that was dropped.
    """

    id: GlobalId
    name: str
    columns: tuple[TableColumn, ...]
    key: tuple[str, ...]
    since: int
    upper: int

    @property
    def spec(self) -> CollectionSpec:
        """This table as a collection."""
        return table_spec(self.name, self.columns, self.key)


def table_spec(name: str, columns: tuple[TableColumn, ...], key: tuple[str, ...]) -> CollectionSpec:
    """A table as a collection of documents, each of which is a row."""
    properties = {column.name: _schema_of(column.type) for column in columns}
    required = [column.name for column in columns if not column.nullable]
    schema: dict[str, Any] = {"type": "object", "properties": properties, "required": required}
    return CollectionSpec(
        name=name,
        key=key,
        key_defaults=(None,) * len(key),
        write_schema=schema,
        read_schema=schema,
        projections=project(infer(schema), key, {}),
        position=Position(name),
        kind="consolidated",
    )


@dataclass(frozen=True, slots=True)
class RowUpdate:
    """A change of how often a row is in a table.

    Attributes:
        clock: when.
        text: the row as JSON, in one form for equal rows.
        key: packed, of the columns that the table's key names.
        diff: how often it is added; a negative number takes it away.
    """

    clock: int
    text: str
    key: bytes
    diff: int


def in_order(updates: Iterable[RowUpdate]) -> list[RowUpdate]:
    """Updates of one commit by clock; of each clock, those that take rows away come first.

    To whoever reads them as documents, with a key of its own, the last one of a key tells what is there.
    """
    return sorted(updates, key=lambda update: 2 * update.clock + (update.diff > 0))


@dataclass(frozen=True, slots=True)
class ErrorUpdate:
    """An error that comes to be in the place of a materialized view's rows, or is there no more.

    Attributes:
        clock: when.
        sqlstate: what kind of error it is.
        message: what it says.
        diff: 1 where it comes, -1 where it goes.
    """

    clock: int
    sqlstate: str
    message: str
    diff: int


@dataclass(frozen=True, slots=True)
class TableUpdate:
    """What one commit does to a table.

    Attributes:
        id: of the table.
        begin: the `upper` that it must have; None for any.
        end: the `upper` that it has after that, as far as whoever has a right to write it allows.
        updates: with clocks at or above the table's `upper` and below `end`.
        errors: with clocks there as well, in their order.
        since: at or above the table's `upper`; its contents are exact from there on, and not known before it.
    """

    id: GlobalId
    begin: int | None
    end: int
    updates: tuple[RowUpdate, ...] = ()
    errors: tuple[ErrorUpdate, ...] = ()
    since: int | None = None
