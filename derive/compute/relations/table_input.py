"""Tables and materialized views: what they hold at a time, and what changes in them."""

from __future__ import annotations

from collections.abc import Generator, Iterator

from derive.compute.algebra.types import Row, Type
from derive.compute.relations.columns import columns_of
from derive.compute.relations.hold import Hold
from derive.compute.relations.table_rows import TableRows
from derive.document.clock import format_rfc3339
from derive.errors import FrontierError
from derive.storage.roles import Readable
from derive.storage.table import Table
from derive.storage.table_subscription import read_updates, table_contents

_BATCH = 10_000


def table_at(store: Readable, table: Table, as_of: int) -> Generator[list[Row]]:
    """The rows that a table holds at a time, each as often as it is there, in batches.

    Raises:
        FrontierError: the contents at that time are no longer, or not yet, known.
    """
    capability = store.leases.lease(_name(store, table), as_of)
    with store.leases.kept(capability):
        upper = store.upper(_name(store, table))
        if as_of >= upper:
            raise FrontierError(f"'{table.name}' is known up to {format_rfc3339(upper)}, and not yet at that time")
        counts = table_contents(store, table.id, as_of)
        texts = [text for (text, _), count in counts.items() for _ in range(count)]
        rows = TableRows(table)
        for begin in range(0, len(texts), _BATCH):
            yield rows.rows(texts[begin : begin + _BATCH])


def _name(store: Readable, table: Table) -> str:
    """What the table is called now."""
    return store.tables.name_of(table.id) or table.name


class TableInput:
    """A table from a time on, for a dataflow.

    It holds the right to read the table, from where it is, until it is closed.

    Args:
        store: holds the table.
        table: the table.
        as_of: clock, at or above its `since` and below its `upper`.

    Attributes:
        types: of the columns.
        since: the time from which on updates are told.

    Raises:
        FrontierError: the contents at that time are no longer known.
    """

    def __init__(self, store: Readable, table: Table, as_of: int) -> None:
        self.types: tuple[Type, ...] = tuple(column.type for column in columns_of(table))
        self.since = as_of
        self._store = store
        self._table = table
        self._rows = TableRows(table)
        self._frontier = as_of + 1
        self._hold = Hold(store, _name(store, table), as_of)

    def close(self) -> None:
        """Give the right to read back."""
        self._hold.close()

    def snapshot(self, as_of: int) -> Iterator[list[Row]]:
        """The rows at `since`, which is the time that may be asked for."""
        assert as_of == self.since
        return table_at(self._store, self._table, as_of)

    def poll(self) -> tuple[int, list[tuple[int, Row, int]]]:
        """What is final by now and was not told yet.

        Returns:
            A frontier, and all updates below it that were not told before: times, rows and diffs, by time.
        """
        known = self._store.tables.table(self._table.id)
        upper = self._frontier if known is None else known.upper
        if upper <= self._frontier:
            return self._frontier, []
        read = read_updates(self._store, self._table.id, self._frontier, upper)
        told = sorted(read, key=lambda update: update.clock)
        rows = self._rows.rows([update.text for update in told])
        self._frontier = upper
        self._hold.move(upper)
        return upper, [(update.clock, row, update.diff) for update, row in zip(told, rows, strict=True)]
