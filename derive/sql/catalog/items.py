"""The catalog of SQL: durable names and items, and all changes of them in one order.

The catalog is a database of its own in the data folder. Storage keeps the rows of an identifier; the catalog keeps its
name and a view's definition. A view's text is bound to the identifiers that its names had at creation, so giving a name
to another relation later changes no view.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import apsw
import orjson

from derive.algebra.relation import GlobalId
from derive.algebra.types import ModifiedType, Type, TypeModifier
from derive.document.pointer import JSON
from derive.errors import StorageError
from derive.failpoint import reach
from derive.sql.catalog.replica_place import ReplicaPlace
from derive.sql.parser.statement import ObjectKind
from derive.sql.planner.names import NamedColumn
from derive.storage.disk_errors import translated
from derive.storage.fence import superseded

FILE = "sql.db"
_FORMAT = 3
_PREPARED = """
CREATE TABLE prepared (
    version INTEGER PRIMARY KEY,        -- of the catalog once it has happened
    change TEXT NOT NULL                -- JSON
);
"""
_REPLICAS = """
CREATE TABLE replica (
    name TEXT PRIMARY KEY,
    address TEXT NOT NULL               -- host:port; empty for a process that the server starts
);
"""
_TABLES = (
    """
CREATE TABLE format (version INTEGER NOT NULL);
CREATE TABLE item (
    id INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,
    schema TEXT NOT NULL,
    name TEXT NOT NULL,
    description TEXT NOT NULL,          -- JSON
    UNIQUE (schema, name)
);
CREATE TABLE change (
    sequence INTEGER PRIMARY KEY,       -- the order of all changes
    statement TEXT NOT NULL
);
"""
    + _PREPARED
    + _REPLICAS
)
_UPGRADES = {1: _PREPARED, 2: _REPLICAS}
"""SQL by format: upgrades the catalog to the next format."""

PROVISIONAL: GlobalId = 1 << 30
"""Least provisional identifier: of items that a transaction has defined and not yet committed."""

Bindings: TypeAlias = Mapping[str, GlobalId]
"""Identifiers by name in a view's text, as of the view's creation."""


@dataclass(frozen=True, slots=True)
class Item:
    """A named object of the catalog.

    Attributes:
        id: permanent identifier.
        kind: kind of the object.
        schema: schema of the name.
        name: name, unique in the schema.
        columns: columns of a relation; none for an index.
        definition: text of a view's query.
        bindings: identifiers of the names in the definition.
        read: by such a name, the columns that a collection of `flow.yaml` had when the view was created.
        on: for an index, the indexed relation.
        indexed: for an index, names of its columns.
        origin: for a source, where its rows come from; for a table, the time from which its rows have its columns.
        alters: for a table altered by an uncommitted transaction, the identifier of the original table; else None.
    """

    id: GlobalId
    kind: ObjectKind
    schema: str
    name: str
    columns: tuple[NamedColumn, ...] = ()
    definition: str | None = None
    bindings: Bindings = field(default_factory=dict)
    read: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    on: GlobalId | None = None
    indexed: tuple[str, ...] = ()
    origin: Mapping[str, JSON] = field(default_factory=dict)
    alters: GlobalId | None = None

    def rebound(self, ids: Mapping[GlobalId, GlobalId]) -> Item:
        """Return this item with some identifiers replaced."""
        origin = self.origin
        if self.position is not None:
            origin = {**origin, "position": ids.get(self.position, self.position)}
        return replace(
            self,
            id=ids.get(self.id, self.id),
            bindings={name: ids.get(bound, bound) for name, bound in self.bindings.items()},
            on=None if self.on is None else ids.get(self.on, self.on),
            origin=origin,
        )

    @property
    def uses(self) -> frozenset[GlobalId]:
        """Return the identifiers of the relations that the item depends on."""
        return frozenset(self.bindings.values()) | ({self.on} if self.on is not None else frozenset())

    @property
    def position(self) -> GlobalId | None:
        """Return the table that records how far a source has read; None without one."""
        place = self.origin.get("position")
        return place if isinstance(place, int) else None

    @property
    def known_from(self) -> int:
        """Return the approximate time from which the rows of a table have its columns; 0 if they always had."""
        time = self.origin.get("known from")
        return time if isinstance(time, int) else 0

    @property
    def is_written(self) -> bool:
        """Return whether SQL writes the item's rows into a table of Storage, at times of the timeline."""
        return self.kind is ObjectKind.TABLE or (self.kind is ObjectKind.SOURCE and "collection" not in self.origin)

    @property
    def is_stored(self) -> bool:
        """Return whether the item has a table in Storage."""
        return self.is_written or self.kind is ObjectKind.MATERIALIZED_VIEW


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the catalog.

    Attributes:
        statement: text of the DDL statements.
        added: new items; their names are free after the removals and renames.
        removed: identifiers of dropped items.
        renamed: new names by identifier.
        altered: items with changed columns.
    """

    statement: str
    added: tuple[Item, ...] = ()
    removed: tuple[GlobalId, ...] = ()
    renamed: Mapping[GlobalId, str] = field(default_factory=dict)
    altered: tuple[Item, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Return whether the change is empty."""
        return not (self.added or self.removed or self.renamed or self.altered)


def is_provisional(identifier: GlobalId) -> bool:
    """Return whether an identifier belongs to an uncommitted transaction."""
    return identifier >= PROVISIONAL


def stored_name(schema: str, name: str) -> str:
    """Return the name of an item's table in Storage, and in catalogs that read the table."""
    return f"sql/{schema}/{name}"


def position_name(schema: str, name: str) -> str:
    """Return the name in Storage of the table that records how far a source has read."""
    return f"sql@position/{schema}/{name}"


class Catalog:
    """The catalog of one data folder.

    Args:
        root: the data folder.

    Raises:
        StorageError: the catalog was written by a newer flowctl.
    """

    def __init__(self, root: Path) -> None:
        self._path = root / FILE
        self._db = apsw.Connection(str(self._path))
        self._db.set_busy_timeout(5_000)
        self._db.pragma("journal_mode", "wal")
        self._db.pragma("synchronous", "FULL")
        self._epoch: int | None = None
        with self._transaction():
            if self._db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'format'").get is None:
                self._db.execute(_TABLES)
                self._db.execute("INSERT INTO format VALUES (?)", (_FORMAT,))
            version = self._db.execute("SELECT version FROM format").get
            while version in _UPGRADES:
                self._db.execute(_UPGRADES[version])
                version += 1
                self._db.execute("UPDATE format SET version = ?", (version,))
        if version != _FORMAT:
            raise StorageError(
                f"the names of SQL are stored in format {version}, and this flowctl knows {_FORMAT}",
                hint="use the flowctl that has written them, or a newer one",
            )

    def close(self) -> None:
        """Close the database."""
        self._db.close()

    def epoch(self) -> int:
        """Return the epoch of the last process that has begun to change the catalog."""
        epoch: int = self._db.pragma("user_version")
        return epoch

    def begin(self, epoch: int) -> None:
        """Begin to change the catalog, and fence all processes with a lower epoch, durably.

        Raises:
            FencedError: a process has begun with this epoch, or a higher one.
        """
        with self._transaction():
            if self.epoch() >= epoch:
                raise superseded()
            self._db.pragma("user_version", epoch)
        self._epoch = epoch

    def replicas(self) -> list[ReplicaPlace]:
        """Return the created replicas, by name."""
        return [ReplicaPlace(*row) for row in self._db.execute("SELECT name, address FROM replica ORDER BY name")]

    def add_replica(self, place: ReplicaPlace) -> None:
        """Record a replica, durably."""
        with self._transaction():
            self._db.execute("INSERT INTO replica VALUES (?, ?)", (place.name, place.address))

    def drop_replica(self, name: str) -> None:
        """Remove a replica, if it exists, durably."""
        with self._transaction():
            self._db.execute("DELETE FROM replica WHERE name = ?", (name,))

    def version(self) -> int:
        """Return the number of changes so far."""
        version: int = self._db.execute("SELECT coalesce(max(sequence), 0) FROM change").get
        return version

    def items(self) -> list[Item]:
        """Return all items, the oldest first."""
        rows = self._db.execute("SELECT id, kind, schema, name, description FROM item ORDER BY id")
        return [_item(*row) for row in rows]

    def change(self, change: Change) -> None:
        """Apply a change atomically and durably."""
        with self._transaction():
            self._carry_out(change)

    def prepare(self, change: Change) -> int:
        """Record a change durably, to be applied or discarded by `settle`.

        Returns:
            The version that the catalog has after the change.
        """
        version = self.version() + 1
        with self._transaction():
            self._db.execute("INSERT INTO prepared VALUES (?, ?)", (version, _written(change)))
        return version

    def prepared(self) -> int | None:
        """Return the version of the prepared change; None if there is none."""
        version: int | None = self._db.execute("SELECT version FROM prepared").get
        return version

    def settle(self, version: int, *, has_happened: bool) -> None:
        """Apply or discard a prepared change, unless another process has done so.

        Args:
            version: version of the change.
            has_happened: whether the commit in Storage has happened.
        """
        with self._transaction():
            written = self._db.execute("DELETE FROM prepared WHERE version = ? RETURNING change", (version,)).get
            if written is not None and has_happened:
                self._carry_out(_read(written))

    def _carry_out(self, change: Change) -> None:
        for identifier in change.removed:
            self._db.execute("DELETE FROM item WHERE id = ?", (identifier,))
        for identifier in change.renamed:  # two items may swap names
            self._db.execute("UPDATE item SET name = char(0) || id WHERE id = ?", (identifier,))  # no item's name
        for identifier, name in change.renamed.items():
            self._db.execute("UPDATE item SET name = ? WHERE id = ?", (name, identifier))
        for item in change.altered:
            self._db.execute("UPDATE item SET description = ? WHERE id = ?", (_description(item), item.id))
        for item in change.added:
            row = (item.id, item.kind.value, item.schema, item.name, _description(item))
            self._db.execute("INSERT INTO item VALUES (?, ?, ?, ?, ?)", row)
        self._db.execute("INSERT INTO change (statement) VALUES (?)", (change.statement,))

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with translated(self._path):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                if self._epoch is not None and self.epoch() != self._epoch:
                    raise superseded()
                yield
                reach("names.committing")
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # some errors of SQLite end the transaction
                    self._db.execute("ROLLBACK")
                raise
        reach("names.committed")


def _written(change: Change) -> str:
    written = {
        "statement": change.statement,
        "added": list(map(_values, change.added)),
        "removed": change.removed,
        "renamed": list(change.renamed.items()),
        "altered": list(map(_values, change.altered)),
    }
    return orjson.dumps(written).decode()


def _values(item: Item) -> list[Any]:
    return [item.id, item.kind.value, item.schema, item.name, _description(item)]


def _read(written: str) -> Change:
    read = orjson.loads(written)
    added, altered = (tuple(_item(*row) for row in read.get(name, ())) for name in ("added", "altered"))
    return Change(read["statement"], added, tuple(read["removed"]), dict(read["renamed"]), altered)


def _description(item: Item) -> str:
    described: dict[str, Any] = {
        "columns": [_column_description(column) for column in item.columns],
        "defaults": {column.name: column.default for column in item.columns if column.default is not None},
        "definition": item.definition,
        "bindings": dict(item.bindings),
        "read": dict(item.read),
        "on": item.on,
        "indexed": item.indexed,
        "origin": dict(item.origin),
    }
    return orjson.dumps(described).decode()


def _column_description(column: NamedColumn) -> list[Any]:
    described = [column.name, column.type.value, column.is_nullable]
    return (
        [*described, column.modifier.name.name, column.modifier.size, column.modifier.scale]
        if column.modifier
        else described
    )


def _column(name: str, kind: str, is_nullable: bool, *modifier: Any, default: str | None) -> NamedColumn:
    return NamedColumn(
        name,
        Type(kind),
        is_nullable,
        TypeModifier(ModifiedType[modifier[0]], *modifier[1:]) if modifier else None,
        default,
    )


def _item(identifier: GlobalId, kind: str, schema: str, name: str, description: str) -> Item:
    described = orjson.loads(description)
    defaults = described.get("defaults", {})
    return Item(
        identifier,
        ObjectKind(kind),
        schema,
        name,
        tuple(_column(*column, default=defaults.get(column[0])) for column in described["columns"]),
        described["definition"],
        described["bindings"],
        {name: tuple(columns) for name, columns in described.get("read", {}).items()},
        described["on"],
        tuple(described["indexed"]),
        described["origin"],
    )
