"""Tables with changed columns: ALTER TABLE keeps the table and its readers.

A stored row is a document without the columns that are NULL. So an added column is NULL in existing rows, and no rows
are written. If a column has a default, is dropped or is renamed, the rows with this column are updated: old rows are
retracted, and new rows are inserted. A transaction sees an altered table as a new table until COMMIT, which compares
the two.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from derive.algebra.relation import GlobalId
from derive.contents.table_updates import table_contents
from derive.relations.table_rows import StoredRow, rows_of
from derive.sql.catalog.items import AT_COMMIT, KNOWN_FROM, Change, Item
from derive.sql.planner.interfaces import NamedColumn
from derive.sql.transactions.writes import Write
from derive.storage.roles import Readable
from derive.storage.table_types import Table, TableColumn
from derive.time import END_OF_TIME


@dataclass(frozen=True, slots=True)
class AlteredTable:
    """A table with changed columns.

    Attributes:
        id: identifier of the table.
        item: the table as the transaction sees it.
        writes: changes of its rows.
        is_rewritten: whether existing rows change or lose a column, so that earlier
            times do not have the current columns.
    """

    id: GlobalId
    item: Item
    writes: list[Write]
    is_rewritten: bool

    def applied(self, change: Change, before: Item) -> Change:
        """Return a change that alters the table in place of creating a new one.

        Args:
            change: a change that replaces the table.
            before: the table before the change.
        """
        origin = {KNOWN_FROM: AT_COMMIT} if self.is_rewritten else before.origin
        is_renamed = self.item.name != before.name
        return replace(
            change,
            added=tuple(item for item in change.added if item.id != self.item.id),
            removed=tuple(identifier for identifier in change.removed if identifier != self.id),
            renamed={**change.renamed, self.id: self.item.name} if is_renamed else change.renamed,
            altered=(*change.altered, replace(self.item, id=self.id, alters=None, origin=origin)),
        )


def stored_column(column: NamedColumn) -> TableColumn:
    """Return a column in the form of Storage."""
    return TableColumn(column.name, column.type.value, column.is_nullable)


def keeps_identity(table: Table, item: Item) -> bool:
    """Return whether an altered item can be the same table of Storage, because the key of tasks stays."""
    columns = tuple(map(stored_column, item.columns))
    if not set(table.key) <= {column.pointer for column in columns}:
        return False
    key = item.primary_key
    return not key or {column.pointer for column in columns if column.name in key} == set(table.key)


def altered_table(store: Readable, item: Item, writes: Sequence[Write]) -> AlteredTable | None:
    """Return the table that an item of a transaction alters; None if the item is a new table.

    The item is a new table if a column of the key was dropped, or another primary key was added. The key of a table is
    its primary key at CREATE TABLE, or its first column.

    Args:
        store: the data folder; no other process writes the table.
        item: an item of the transaction.
        writes: writes of the transaction; its rows among them are the table's whole contents.
    """
    table = None if item.alters is None else store.tables.table(item.alters)
    if table is None or not keeps_identity(table, item):
        return None
    columns = tuple(map(stored_column, item.columns))
    counts: Counter[StoredRow] = Counter()
    rows = [(row, diff) for identifier, row, diff in writes if identifier == item.id]
    for text, key, diff in rows_of(replace(table, columns=columns)).changes(rows):
        counts[StoredRow((text, key))] += diff
    for row, count in table_contents(store, table.id, END_OF_TIME - 1).items():
        counts[StoredRow(row)] -= count
    same = {(column.name, column.type) for column in columns}
    is_rewritten = any(count < 0 for count in counts.values()) or any(
        (column.name, column.type) not in same for column in table.columns
    )
    updates: list[Write] = [(table.id, row, count) for row, count in counts.items() if count]
    return AlteredTable(table.id, item, updates, is_rewritten)
