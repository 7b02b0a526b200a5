"""Definitions of SQL in the metadata database: names with their tables, changed in the transaction of a commit.

An item has a name and a description; an item with rows also has a table with the same identifier. For Storage, a
description is a text, which only SQL parses.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from derive.errors import UsageError
from derive.protocol.collection import aside_name
from derive.storage.capability.table import release_expired
from derive.storage.metadata.collection import frontiers_of
from derive.storage.metadata.tables import (
    alter,
    begin_view,
    end_writing,
    find_table,
    forget_unread,
    insert_table,
    make_way,
    name_of,
    read_table,
    redefine_view,
    rename,
    take_over,
)
from derive.storage.metadata.transaction import Transaction
from derive.storage.table_types import GlobalId, Table, TableColumn
from derive.time import BEGINNING, END_OF_TIME, FOREVER


class StoredItem(NamedTuple):
    """An item of SQL: a table, source, view or index.

    Attributes:
        id: permanent identifier.
        kind: kind of the item.
        schema: schema of the name.
        name: name, unique in the schema.
        description: columns, definition and dependencies, as JSON of `derive/sql/catalog/items.py`.
    """

    id: GlobalId
    kind: str
    schema: str
    name: str
    description: str


@dataclass(frozen=True, slots=True)
class ItemChanges:
    """A change of SQL's items.

    Attributes:
        added: new items; their names are free after the removals and renames.
        removed: identifiers of dropped items.
        renamed: new names by identifier; items may swap names.
        described: new descriptions by identifier.
    """

    added: tuple[StoredItem, ...] = ()
    removed: tuple[GlobalId, ...] = ()
    renamed: Mapping[GlobalId, str] = field(default_factory=dict)
    described: Mapping[GlobalId, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NewTable:
    """A table to be created.

    Attributes:
        id: identifier, from `Tables.new_ids`.
        name: name in Storage.
        columns: columns in order.
        inputs: identifiers of the inputs of a materialized view, whose history the view keeps; None for a table.
        key: names of the key columns; empty for the first column.
    """

    id: GlobalId
    name: str
    columns: tuple[TableColumn, ...]
    inputs: Collection[GlobalId] | None = None
    key: tuple[str, ...] = ()

    def begun_at(self, clock: int) -> Table:
        """Return the table in its first state, if its history begins at a timestamp."""
        names = self.key or [column.name for column in self.columns[:1]]
        key = tuple(column.pointer for column in self.columns if column.name in names)
        return Table(self.id, self.name, self.columns, key, clock, clock)


@dataclass(frozen=True, slots=True)
class Definitions:
    """Definitions of one commit: changes of items, and of the tables of items.

    Attributes:
        items: change of the items; None to change only tables.
        created: new tables; their names are free after the drops and renames.
        dropped: identifiers of tables to drop.
        renamed: new names in Storage by identifier; tables may swap names.
        altered: new columns by identifier.
        redefined: for each materialized view with another definition from this commit on, the identifiers of its
            inputs.
    """

    items: ItemChanges | None = None
    created: tuple[NewTable, ...] = ()
    dropped: tuple[GlobalId, ...] = ()
    renamed: Mapping[GlobalId, str] = field(default_factory=dict)
    altered: Mapping[GlobalId, tuple[TableColumn, ...]] = field(default_factory=dict)
    redefined: Mapping[GlobalId, Collection[GlobalId]] = field(default_factory=dict)


def define(db: Transaction, definitions: Definitions, clock: int) -> None:
    """Apply definitions, in a write transaction.

    Args:
        db: the write transaction.
        definitions: the definitions.
        clock: timestamp of the commit, at which the history of new tables begins.

    Raises:
        UsageError: a name of a table is in use.
    """
    release_expired(db)
    for identifier in definitions.dropped:
        end_writing(db, identifier)
    forget_unread(db)
    for identifier in definitions.renamed:  # release all names before names are assigned
        name = str(name_of(db, identifier))
        rename(db, name, aside_name(name, identifier))
    for table in definitions.created:
        _create(db, table, clock)
    for identifier, name in definitions.renamed.items():
        free(db, name)
        rename(db, str(name_of(db, identifier)), name)
    for identifier, columns in definitions.altered.items():
        alter(db, identifier, columns)
    for identifier, inputs in definitions.redefined.items():
        redefine_view(db, identifier, _names(db, inputs), clock)
    if definitions.items is not None:
        change_items(db, definitions.items)


def stage(db: Transaction, new: NewTable) -> None:
    """Add a new table in the state of a dropped table, so that its segments can be written before the commit."""
    if read_table(db, new.id) is None:
        table = new.begun_at(END_OF_TIME)
        insert_table(db, aside_name(new.name, new.id), table.columns, table.key, END_OF_TIME, new.id)


def _create(db: Transaction, new: NewTable, clock: int) -> None:
    """Create a table, or bind a staged table to its name."""
    frontier = clock if new.inputs is None else _first_time(db, new.inputs, clock)
    table = new.begun_at(frontier)
    if read_table(db, new.id) is not None:
        free(db, new.name)
        rename(db, str(name_of(db, new.id)), new.name)
        db.execute("UPDATE collection SET since = ?, upper = ? WHERE id = ?", (frontier, frontier, new.id))
    elif not take_over(db, new.name, table.columns, table.key, frontier, new.id):
        free(db, new.name)
        insert_table(db, new.name, table.columns, table.key, frontier, new.id)
    if new.inputs is not None:
        begin_view(db, new.id, _names(db, new.inputs), frontier)


def _names(db: Transaction, identifiers: Collection[GlobalId]) -> list[str]:
    """Return the names of the collections that exist."""
    return [name for name in (name_of(db, identifier) for identifier in identifiers) if name is not None]


def _first_time(db: Transaction, inputs: Collection[GlobalId], clock: int) -> int:
    """Return the first time of a view: the newest complete time of its inputs, or `clock` if they never change."""
    since, upper = BEGINNING, END_OF_TIME
    for identifier in inputs:
        name = name_of(db, identifier)
        frontiers = None if name is None else frontiers_of(db, name)
        if frontiers is None:
            return BEGINNING + 1
        since, upper = max(since, frontiers[0]), min(upper, frontiers[1])
    return max(since, upper - 1, BEGINNING + 1) if upper < FOREVER else clock


def free(db: Transaction, name: str) -> None:
    """Release a name, like `make_way`.

    Raises:
        UsageError: the name is in use.
    """
    if not make_way(db, name):
        what = "collection" if find_table(db, name) is None else "table"
        raise UsageError(f"{what} '{name}' exists already", hint="use another name")


# Items


def read_version(db: Transaction) -> int:
    """Return the number of changes of the items so far."""
    version: int = db.execute("SELECT version FROM sql_catalog").get
    return version


def read_items(db: Transaction) -> list[StoredItem]:
    """Return all items, the oldest first."""
    rows: list[Any] = db.execute("SELECT id, kind, schema, name, description FROM item ORDER BY id").fetchall()
    return [StoredItem(*row) for row in rows]


def change_items(db: Transaction, change: ItemChanges) -> None:
    """Apply a change of the items, in a write transaction."""
    db.executemany("DELETE FROM item WHERE id = ?", [(identifier,) for identifier in change.removed])
    removed = "DELETE FROM item WHERE id = ? RETURNING kind, schema, description"  # two items may swap names
    renamed = [(id_, name, db.execute(removed, (id_,)).fetchall()) for id_, name in change.renamed.items()]
    for identifier, name, rows in renamed:
        for kind, schema, description in rows:
            db.execute("INSERT INTO item VALUES (?, ?, ?, ?, ?)", (identifier, kind, schema, name, description))
    for identifier, description in change.described.items():
        db.execute("UPDATE item SET description = ? WHERE id = ?", (description, identifier))
    db.executemany("INSERT INTO item VALUES (?, ?, ?, ?, ?)", change.added)
    db.execute("UPDATE sql_catalog SET version = version + 1")
