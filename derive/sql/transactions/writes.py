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


@final
@dataclass(frozen=True, slots=True)
class ChangedRows(Sequence[Write]):
    """Writes that change the counts of rows of one table.

    Attributes:
        table: the table.
        rows: the rows.
        diffs: the changes of their counts.
    """

    table: GlobalId
    rows: Sequence[Row]
    diffs: Sequence[int]

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> Write: ...

    @overload
    def __getitem__(self, index: slice) -> ChangedRows: ...

    def __getitem__(self, index: int | slice) -> Write | ChangedRows:
        if isinstance(index, slice):
            return ChangedRows(self.table, self.rows[index], self.diffs[index])
        return self.table, self.rows[index], self.diffs[index]

    def __iter__(self) -> Iterator[Write]:
        return zip(repeat(self.table), self.rows, self.diffs, strict=False)


def followed(writes: Sequence[Write], others: Sequence[Write]) -> Sequence[Write]:
    """Return writes followed by others; the result may be `writes`, changed, which the caller owns."""
    if type(writes) is InsertedRows and type(others) is InsertedRows and writes.table == others.table:
        if isinstance(writes.rows, list):
            writes.rows.extend(others.rows)
            return writes
        return InsertedRows(writes.table, [*writes.rows, *others.rows])
    if not writes:
        return InsertedRows(others.table, list(others.rows)) if type(others) is InsertedRows else list(others)
    if isinstance(writes, list):
        writes.extend(others)
        return writes
    return [*writes, *others] if others else writes


def tables_of(writes: Sequence[Write]) -> frozenset[GlobalId]:
    """Return the tables of writes."""
    if isinstance(writes, InsertedRows | ChangedRows):
        return frozenset({writes.table} if writes.rows else ())
    return frozenset([table for table, _, _ in writes])


def by_table(writes: Sequence[Write]) -> dict[GlobalId, tuple[Sequence[Row], Sequence[int]]]:
    """Return the rows of writes by table, with the changes of their counts; an empty sequence if each is 1."""
    if type(writes) is InsertedRows:
        return {writes.table: (writes.rows, ())} if writes.rows else {}
    if type(writes) is ChangedRows:
        return {writes.table: (writes.rows, writes.diffs)} if writes.rows else {}
    grouped: dict[GlobalId, list[tuple[Row, int]]] = defaultdict(list)
    for table, row, diff in writes:
        grouped[table].append((row, diff))
    parts: dict[GlobalId, tuple[Sequence[Row], Sequence[int]]] = {}
    for table, changes in grouped.items():
        rows, diffs = zip(*changes, strict=True)
        parts[table] = rows, () if set(diffs) == {1} else diffs
    return parts
