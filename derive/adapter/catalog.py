"""The catalog of SQL: what names stand for, durably, and every change of it in one order.

It is a database of its own in the data folder. What is stored under an identifier is Storage's; what it is called, and
what a view means, is known here. A view's text is bound to the identifiers that its names had when it was created, so a
name that is given to another thing later changes no view.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import apsw
import orjson

from derive.adapter.parser.definition import ObjectKind
from derive.adapter.planner.names import NamedColumn
from derive.compute.algebra.relation import GlobalId
from derive.compute.algebra.types import Type
from derive.document.pointer import JSON
from derive.errors import StorageError

FILE = "sql.db"
_FORMAT = 1
_TABLES = """
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

Bindings: TypeAlias = Mapping[str, GlobalId]
"""By name as it is in a view's text, what it stood for when the view was created."""


@dataclass(frozen=True, slots=True)
class Item:
    """Something that has a name.

    Attributes:
        id: identifies it for all time.
        kind: what it is.
        schema: in which its name is.
        name: unique in its schema.
        columns: of a relation; of an index none.
        definition: the text of a view's query.
        bindings: of the names in that.
        on: for an index, what it is on.
        indexed: for an index, names of its columns.
        origin: for a source, where its rows come from.
    """

    id: GlobalId
    kind: ObjectKind
    schema: str
    name: str
    columns: tuple[NamedColumn, ...] = ()
    definition: str | None = None
    bindings: Bindings = field(default_factory=dict)
    on: GlobalId | None = None
    indexed: tuple[str, ...] = ()
    origin: Mapping[str, JSON] = field(default_factory=dict)

    @property
    def uses(self) -> frozenset[GlobalId]:
        """What it cannot do without."""
        return frozenset(self.bindings.values()) | ({self.on} if self.on is not None else frozenset())

    @property
    def position(self) -> GlobalId | None:
        """The table that tells how far a source with rows of its own is."""
        place = self.origin.get("position")
        return place if isinstance(place, int) else None

    @property
    def is_written(self) -> bool:
        """Whether the adapter writes its rows into a table of Storage, at times of the timeline."""
        return self.kind is ObjectKind.TABLE or (self.kind is ObjectKind.SOURCE and "collection" not in self.origin)

    @property
    def is_stored(self) -> bool:
        """Whether it is a table of Storage."""
        return self.is_written or self.kind is ObjectKind.MATERIALIZED_VIEW


def stored_name(schema: str, name: str) -> str:
    """What an item's table is called in Storage, and in catalogs that read it."""
    return f"sql/{schema}/{name}"


def position_name(schema: str, name: str) -> str:
    """What the table that tells how far a source is, is called in Storage."""
    return f"sql/{schema}/{name}/position"


class Catalog:
    """The catalog of one data folder.

    Args:
        root: the data folder.

    Raises:
        StorageError: it was written by a newer flowctl.
    """

    def __init__(self, root: Path) -> None:
        self._db = apsw.Connection(str(root / FILE))
        self._db.set_busy_timeout(5_000)
        self._db.pragma("journal_mode", "wal")
        self._db.pragma("synchronous", "FULL")
        with self._transaction():
            if self._db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'format'").get is None:
                self._db.execute(_TABLES)
                self._db.execute("INSERT INTO format VALUES (?)", (_FORMAT,))
        version = self._db.execute("SELECT version FROM format").get
        if version != _FORMAT:
            raise StorageError(
                f"the names of SQL are stored in format {version}, and this flowctl knows {_FORMAT}",
                hint="use the flowctl that has written them, or a newer one",
            )

    def close(self) -> None:
        """Release the database."""
        self._db.close()

    def version(self) -> int:
        """How many changes there were."""
        version: int = self._db.execute("SELECT coalesce(max(sequence), 0) FROM change").get
        return version

    def items(self) -> list[Item]:
        """All that have a name, the oldest first."""
        rows = self._db.execute("SELECT id, kind, schema, name, description FROM item ORDER BY id")
        return [_item(*row) for row in rows]

    def change(
        self,
        statement: str,
        *,
        added: Sequence[Item] = (),
        removed: Sequence[GlobalId] = (),
        renamed: Mapping[GlobalId, str] | None = None,
    ) -> None:
        """Change what names stand for, all or nothing; durable when it returns.

        Args:
            statement: what asked for it.
            added: items whose names are free once others are removed.
            removed: those that are no more.
            renamed: new names.
        """
        with self._transaction():
            for identifier in removed:
                self._db.execute("DELETE FROM item WHERE id = ?", (identifier,))
            for identifier, name in (renamed or {}).items():
                self._db.execute("UPDATE item SET name = ? WHERE id = ?", (name, identifier))
            for item in added:
                row = (item.id, item.kind.value, item.schema, item.name, _description(item))
                self._db.execute("INSERT INTO item VALUES (?, ?, ?, ?, ?)", row)
            self._db.execute("INSERT INTO change (statement) VALUES (?)", (statement,))

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")


def _description(item: Item) -> str:
    described: dict[str, Any] = {
        "columns": [[column.name, column.type.value, column.is_nullable] for column in item.columns],
        "definition": item.definition,
        "bindings": dict(item.bindings),
        "on": item.on,
        "indexed": item.indexed,
        "origin": dict(item.origin),
    }
    return orjson.dumps(described).decode()


def _item(identifier: GlobalId, kind: str, schema: str, name: str, description: str) -> Item:
    described = orjson.loads(description)
    return Item(
        identifier,
        ObjectKind(kind),
        schema,
        name,
        tuple(NamedColumn(name, Type(type_), nullable) for name, type_, nullable in described["columns"]),
        described["definition"],
        described["bindings"],
        described["on"],
        tuple(described["indexed"]),
        described["origin"],
    )
