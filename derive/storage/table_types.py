"""Tables: multisets of rows, which every module except SQL sees as documents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from derive.document.pointer import JSON, escape
from derive.position import Position
from derive.protocol.specs import CollectionSpec
from derive.schema.projection import project
from derive.schema.shape import infer

if TYPE_CHECKING:
    import pyarrow as pa

GlobalId: TypeAlias = int
"""Identifier of a collection, view or index; never reused."""

AppendedRow: TypeAlias = tuple[int, int, int, bytes, str]
"""Timestamp, sequence number, diff, packed key and text of an update that is in no segment yet."""

_SCHEMAS: Mapping[str, JSON] = {
    "boolean": {"type": "boolean"},
    "smallint": {"type": "integer"},
    "integer": {"type": "integer"},
    "bigint": {"type": "integer"},
    "mz_timestamp": {"type": "integer"},
    "real": {"type": "number"},
    "double precision": {"type": "number"},  # NaN and infinities are texts; a column of numbers parses them
    "jsonb": {},
}
"""JSON schemas of values by SQL type; values of other types are texts, and arrays have elements of these schemas."""


def _schema_of(kind: str) -> JSON:
    if kind.endswith("[]"):
        element = _SCHEMAS.get(kind.removesuffix("[]"), {"type": "string"})
        if not element:  # several dimensions of jsonb are a text, because JSON has arrays itself
            return {"type": ["array", "string"]}
        return {"type": "array", "items": {"anyOf": [element, {"type": "null"}, {"type": "array"}]}}
    return _SCHEMAS.get(kind, {"type": "string"})


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of a table.

    Attributes:
        name: unique in the table.
        type: name of its SQL type.
        nullable: true if rows may lack the property, which means NULL.
    """

    name: str
    type: str
    nullable: bool = True

    @property
    def pointer(self) -> str:
        """Return the JSON pointer of the column in a document."""
        return f"/{escape(self.name)}"


@dataclass(frozen=True, slots=True)
class Table:
    """A consolidated collection: a table or a materialized view.

    Attributes:
        id: permanent identifier.
        name: name to which the table is bound.
        columns: columns in order.
        key: JSON pointers by which rows are ordered and shuffled; the key need not be unique.
        since: timestamp from which the contents are exact.
        upper: timestamp below which the contents are final; `END_OF_TIME` for a dropped table.
        definition: number of a materialized view's definition, from 1; negative until the first update of this
            definition; 0 for a table.
    """

    id: GlobalId
    name: str
    columns: tuple[TableColumn, ...]
    key: tuple[str, ...]
    since: int
    upper: int
    definition: int = 0

    @property
    def spec(self) -> CollectionSpec:
        """Return this table as a collection."""
        return table_spec(self.name, self.columns, self.key)


def table_spec(name: str, columns: tuple[TableColumn, ...], key: tuple[str, ...]) -> CollectionSpec:
    """Return a table as a collection of documents, one for each row."""
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


class RowUpdate(NamedTuple):
    """A change of the count of a row.

    Attributes:
        clock: timestamp of the change.
        text: canonical JSON text of the row.
        key: packed values of the key columns.
        diff: number of insertions; negative for retractions.
    """

    clock: int
    text: str
    key: bytes
    diff: int


def in_order(updates: Iterable[RowUpdate]) -> list[RowUpdate]:
    """Return the updates of one commit ordered by timestamp, with retractions before insertions.

    So a reader with a unique key sees the inserted row last. A row that was inserted and retracted at one time has at
    most one update; this happens if a transaction creates and changes a table.
    """
    listed = list(updates)
    if len({clock for clock, _, _, _ in listed}) <= 1 and all(diff > 0 for _, _, _, diff in listed):
        return listed
    return sorted(_net(listed), key=lambda update: 2 * update.clock + (update.diff > 0))


def _net(updates: list[RowUpdate]) -> list[RowUpdate]:
    """Return updates in which one sum replaces the insertion and the retraction of a row."""
    retracted = {(update.clock, update.text, update.key) for update in updates if update.diff < 0}
    counts = Counter[tuple[int, str, bytes]]()
    if retracted:
        for update in updates:
            if update.diff > 0 and (row := (update.clock, update.text, update.key)) in retracted:
                counts[row] += update.diff
    if not counts:
        return updates
    for update in updates:
        if update.diff < 0 and (row := (update.clock, update.text, update.key)) in counts:
            counts[row] += update.diff
    kept = [update for update in updates if (update.clock, update.text, update.key) not in counts]
    return kept + [RowUpdate(*row, diff) for row, diff in counts.items() if diff]


class RowBatch(NamedTuple):
    """Some rows as Arrow arrays.

    Attributes:
        diff: number of insertions of each row; negative for retractions.
        texts: canonical JSON texts.
        keys: packed values of the key columns.
        fields: the typed columns as one array; None without typed columns.
    """

    diff: int
    texts: pa.StringArray
    keys: pa.BinaryArray
    fields: pa.StructArray | None


@dataclass(frozen=True, slots=True)
class BulkChanges:
    """Many changed rows of one commit as columns: retractions, and then insertions of other rows.

    Attributes:
        count: number of rows.
        batches: returns the rows in batches; each may be computed while the one before is written.
    """

    count: int
    batches: Callable[[], Iterable[RowBatch]]

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.count


@dataclass(frozen=True, slots=True)
class ErrorUpdate:
    """An insertion or retraction of an error of a materialized view.

    Attributes:
        clock: timestamp of the change.
        sqlstate: SQLSTATE of the error.
        message: text of the error.
        diff: 1 for an insertion, -1 for a retraction.
    """

    clock: int
    sqlstate: str
    message: str
    diff: int


@dataclass(frozen=True, slots=True)
class TableUpdate:
    """The changes of one commit to a table.

    Attributes:
        id: identifier of the table.
        begin: the expected `upper` of the table; None for any.
        end: the `upper` after the commit, as far as write capabilities allow.
        updates: row updates with timestamps at or above the table's `upper` and below `end`.
        errors: error updates in the same interval, in order.
        since: new `since`, at or above the table's `upper`; None to leave `since`.
        bulk: changes at the timestamp before `end`, in place of row updates; None for none.
        definition: the required number of the view's definition; None for a table.
    """

    id: GlobalId
    begin: int | None
    end: int
    updates: tuple[RowUpdate, ...] = ()
    errors: tuple[ErrorUpdate, ...] = ()
    since: int | None = None
    bulk: BulkChanges | None = None
    definition: int | None = None

    @property
    def clocks(self) -> list[int]:
        """Return the timestamps of the changes."""
        clocks = [change.clock for changes in (self.updates, self.errors) for change in changes]
        return clocks if self.bulk is None else [*clocks, self.end - 1]

    @property
    def is_idle(self) -> bool:
        """Return whether the update only advances the `upper`."""
        return self.begin is None and self.bulk is None and not (self.updates or self.errors)

    @property
    def count(self) -> int:
        """Return the number of row updates."""
        return len(self.updates) if self.bulk is None else len(self.bulk)
