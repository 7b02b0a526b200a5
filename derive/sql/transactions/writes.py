"""Writes of tables, and insertions of many rows without an object for each.

Most large writes insert rows into one table. Each pass over their triples takes longer than the work of the pass, so
such writes stay a table and its rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import TypeAlias, final, overload

from derive.algebra.relation import GlobalId
from derive.algebra.types import Row

Write: TypeAlias = tuple[GlobalId, Row, int]
"""A table, a row, and the change of the row's count."""


@final
@dataclass(frozen=True, slots=True)
class InsertedRows(Sequence[Write]):
    """Writes that insert rows into one table.

    Attributes:
        table: the table.
        rows: the rows.
    """

    table: GlobalId
    rows: Sequence[Row]

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> Write: ...

    @overload
    def __getitem__(self, index: slice) -> InsertedRows: ...

    def __getitem__(self, index: int | slice) -> Write | InsertedRows:
        if isinstance(index, slice):
            return InsertedRows(self.table, self.rows[index])
        return self.table, self.rows[index], 1

    def __iter__(self) -> Iterator[Write]:
        return zip(repeat(self.table), self.rows, repeat(1), strict=False)


def tables_of(writes: Sequence[Write]) -> frozenset[GlobalId]:
    """Return the tables of writes."""
    if type(writes) is InsertedRows:
        return frozenset({writes.table} if writes.rows else ())
    return frozenset([table for table, _, _ in writes])


def by_table(writes: Sequence[Write]) -> dict[GlobalId, tuple[Sequence[Row], Sequence[int]]]:
    """Return the rows of writes by table, with the changes of their counts; an empty sequence if each is 1."""
    if type(writes) is InsertedRows:
        return {writes.table: (writes.rows, ())} if writes.rows else {}
    grouped: dict[GlobalId, list[tuple[Row, int]]] = defaultdict(list)
    for table, row, diff in writes:
        grouped[table].append((row, diff))
    parts: dict[GlobalId, tuple[Sequence[Row], Sequence[int]]] = {}
    for table, changes in grouped.items():
        rows, diffs = zip(*changes, strict=True)
        parts[table] = rows, () if set(diffs) == {1} else diffs
    return parts
