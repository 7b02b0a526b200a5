"""Tables with other columns: ALTER TABLE keeps the table, and all who read it go on.

A row is stored as a document that lacks what is NULL. So a column that is added has NULL in the rows that are there,
and nothing is written for it. Where a column has a default, or goes, or has another name, the rows with it are updated:
the old ones are taken away, and new ones come. A transaction sees the table that it alters as another one until
COMMIT, when the two are compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from derive.algebra.relation import GlobalId
from derive.relations.tables.rows import StoredRow, rows_of
from derive.sql.catalog.items import Change, Item
from derive.sql.planner.names import NamedColumn
from derive.sql.transactions.timeline import Write
from derive.storage.roles import Readable
from derive.storage.table import TableColumn
from derive.storage.table_subscription import table_contents
from derive.time.frontier import END_OF_TIME


@dataclass(frozen=True, slots=True)
class AlteredTable:
    """A table with other columns.

    Attributes:
        id: of the table.
        item: the table as the transaction sees it.
        writes: what changes in its rows.
        is_rewritten: whether rows that were there change, or lose a column: before, they have not the columns of now.
    """

    id: GlobalId
    item: Item
    writes: list[Write]
    is_rewritten: bool

    def applied(self, change: Change, before: Item, time: int) -> Change:
        """Return a change in which the table is altered, and not another one.

        Args:
            change: in which another table takes its place.
            before: the table as it was.
            time: about when that is.
        """
        origin = {"known from": time} if self.is_rewritten else before.origin
        is_renamed = self.item.name != before.name
        return replace(
            change,
            added=tuple(item for item in change.added if item.id != self.item.id),
            removed=tuple(identifier for identifier in change.removed if identifier != self.id),
            renamed={**change.renamed, self.id: self.item.name} if is_renamed else change.renamed,
            altered=(*change.altered, replace(self.item, id=self.id, alters=None, origin=origin)),
        )


def stored_column(column: NamedColumn) -> TableColumn:
    """Return a column as Storage has it."""
    return TableColumn(column.name, column.type.value, column.is_nullable)


def altered_table(store: Readable, item: Item, writes: Sequence[Write]) -> AlteredTable | None:
    """Return the table that an item of a transaction alters; None if it is another table.

    It is another one where a column of its key is gone, which is its first column at CREATE TABLE.

    Args:
        store: the data folder, in which nobody else writes the table.
        item: begun by the transaction.
        writes: of the transaction; its rows among them are all that the table is to hold.
    """
    table = None if item.alters is None else store.tables.table(item.alters)
    columns = tuple(map(stored_column, item.columns))
    if table is None or not set(table.key) <= {column.pointer for column in columns}:
        return None
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
