"""Materialized views written back to Storage, where they outlive what maintains them, and derivations read them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from derive.compute.algebra.relation import Finishing, Get, GlobalId
from derive.compute.algebra.types import Row
from derive.compute.instance import Instance
from derive.compute.relations.columns import columns_of
from derive.compute.relations.table_input import table_at
from derive.compute.relations.table_rows import TableRows
from derive.storage.store import Store
from derive.storage.table import RowUpdate, Table, TableUpdate
from derive.time.frontier import END_OF_TIME


def write_back(store: Store, instance: Instance, identifier: GlobalId) -> None:
    """Write what a view has come to, up to where it is maintained.

    Where the view begins anew, the difference to what was written before is written.

    Raises:
        SqlError: there is an error where there should be rows.
    """
    table = store.tables.table(identifier)
    since, upper = instance.frontiers(identifier)
    if table is None or table.upper >= END_OF_TIME or upper <= max(since, table.upper):
        return
    if table.upper <= since:
        updates = [(since, row, diff) for row, diff in _difference(store, instance, table, since)]
        updates += instance.updates(identifier, since + 1, upper) if upper > since + 1 else []
    else:
        updates = instance.updates(identifier, table.upper, upper)
    store.tables.commit([TableUpdate(identifier, table.upper, upper, tuple(_row_updates(table, updates)))])


def _difference(store: Store, instance: Instance, table: Table, time: int) -> list[tuple[Row, int]]:
    """What is to be added to the rows that were written so far, to have those of a time."""
    types = tuple(column.type for column in columns_of(table))
    counts: Counter[Row] = Counter()
    finishing = Finishing((), None, 0, tuple(range(len(types))))
    for batch in instance.peek(Get(table.id, types), finishing, time):
        counts.update(batch)
    if table.upper > table.since:
        for batch in table_at(store, table, table.upper - 1):
            counts.subtract(batch)
    return [(row, count) for row, count in counts.items() if count]


def _row_updates(table: Table, updates: Iterable[tuple[int, Row, int]]) -> list[RowUpdate]:
    listed = list(updates)
    changes = TableRows(table).changes([(row, diff) for _, row, diff in listed])
    return [RowUpdate(clock, *change) for (clock, _, _), change in zip(listed, changes, strict=True)]
