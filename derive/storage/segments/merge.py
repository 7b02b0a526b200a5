"""Merge several sorted sequences of rows into one, with constant memory.

One batch of each sequence is loaded. All rows up to the least end of these batches precede every unloaded row, so they
are sorted in Arrow and yielded. The merge compares whole sort keys, so rows with equal first columns need not fit in
memory.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, TypeAlias

import pyarrow as pa

from derive.storage.segments.order import sort_batch

SortKey: TypeAlias = tuple[Any, ...]
"""Values of the sort columns, or a prefix of them: a lower bound of every key with that prefix."""


class Cursor:
    """One sorted sequence with its read position.

    Args:
        first: lower bound of the first row.
        batches: batches of rows, loaded on demand.
        order: sort columns; rows are unique in them.
    """

    def __init__(self, first: SortKey, batches: Iterator[pa.RecordBatch], order: Sequence[str]) -> None:
        self.first = first
        self.last: SortKey = ()
        self.order = order
        self._batches = batches
        self._rows: pa.RecordBatch | None = None

    def load(self) -> bool:
        """Load a batch, with `last` as its last sort key; return False at the end of the sequence."""
        while self._rows is None:
            rows = next(self._batches, None)
            if rows is None:
                return False
            if rows.num_rows:
                self._rows = rows
                self.first, self.last = self._sort_key(rows, 0), self._sort_key(rows, rows.num_rows - 1)
        return True

    def take_through(self, end: SortKey) -> pa.RecordBatch | None:
        """Take the loaded rows up to `end`, inclusive."""
        rows = self._rows
        if rows is None or self.first > end:
            return None
        if self.last <= end:
            self._rows = None
            return rows
        count = bisect_right(range(rows.num_rows), end, key=lambda row: self._sort_key(rows, row))
        self._rows = rows.slice(count)
        self.first = self._sort_key(rows, count)
        return rows.slice(0, count)

    def _sort_key(self, rows: pa.RecordBatch, row: int) -> SortKey:
        return tuple(rows.column(name)[row].as_py() for name in self.order)


def merge(cursors: Iterable[Cursor], until: SortKey | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of several sequences in order.

    Args:
        cursors: sequences with the same order; their positions move past the yielded rows.
        until: exclusive upper bound; None for all rows.
    """
    waiting = sorted(cursors, key=attrgetter("first"), reverse=True)
    active: list[Cursor] = []
    while waiting or active:
        if not active:
            active = [waiting.pop()]
        active = [cursor for cursor in active if cursor.load()]
        end = min((cursor.last for cursor in active), default=None)
        while end is not None and waiting and waiting[-1].first <= end:
            cursor = waiting.pop()
            if cursor.load():
                active.append(cursor)
                end = min(end, cursor.last)
        if end is None:
            continue
        if until is not None:
            end = min(end, until)
        yield from _in_order([cursor.take_through(end) for cursor in active], active[0].order)
        if end == until:
            return


def _in_order(parts: Sequence[pa.RecordBatch | None], order: Sequence[str]) -> Iterator[pa.RecordBatch]:
    ready = [rows for rows in parts if rows is not None]
    if len(ready) == 1:
        yield ready[0]
    elif ready:
        yield sort_batch(pa.concat_batches(ready), order)
