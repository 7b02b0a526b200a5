"""Reading segments in order, with flat memory.

Segments are sorted, so reading many of them in order is a merge. It goes by row groups: what is loaded and certainly
comes before everything not yet loaded is sorted (in Arrow, outside Python) and handed on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from derive.storage.segment import Segment
from derive.storage.segment_file import open_segment, readable

SOURCE_ROWS = pa.schema(
    [
        pa.field("adjusted", pa.int64(), nullable=False),
        pa.field("transform", pa.int16(), nullable=False),
        pa.field("seq", pa.int32(), nullable=False),
        pa.field("key", pa.binary(), nullable=False),
        pa.field("doc", pa.string(), nullable=False),
    ]
)
"""Documents on their way to a lambda; the first four columns are their order (law L4)."""

_COLUMNS = ["clock", "seq", "key", "doc"]
_ORDER = ("adjusted", "transform", "seq", "key")
STORED_ORDER = ("adjusted", "seq", "key")
"""The order of documents in a collection, where `transform` does not tell a transform."""

_BATCH = 10_000


@dataclass(frozen=True, slots=True)
class SourceRead:
    """Which documents one transform reads.

    Attributes:
        transform: its index.
        offset: microseconds from a document's clock to its adjusted clock.
        clock_begin: least clock to read.
        clock_end: clock before which to stop.
        segments: files that may hold such documents.
    """

    transform: int
    offset: int
    clock_begin: int
    clock_end: int
    segments: tuple[Segment, ...]

    def within(self, adjusted_begin: int, adjusted_end: int) -> SourceRead:
        """The part of this read with adjusted clocks in `[adjusted_begin, adjusted_end)`."""
        begin = max(self.clock_begin, adjusted_begin - self.offset)
        end = min(self.clock_end, adjusted_end - self.offset)
        segments = tuple(each for each in self.segments if each.clock_max >= begin and each.clock_min < end)
        return SourceRead(self.transform, self.offset, begin, end, segments)


class _Cursor:
    """One segment being read for one transform."""

    def __init__(self, root: Path, read: SourceRead, segment: Segment) -> None:
        self.root = root
        self.read = read
        self.segment = segment
        self.first = max(segment.clock_min, read.clock_begin) + read.offset
        self.loaded: pa.Table | None = None
        self._file: pq.ParquetFile | None = None
        self._groups: list[int] = []

    def open(self) -> None:
        self._file = open_segment(self.root, self.segment)
        metadata = self._file.metadata
        for group in range(metadata.num_row_groups):
            statistics = metadata.row_group(group).column(0).statistics
            if statistics is None or (statistics.max >= self.read.clock_begin and statistics.min < self.read.clock_end):
                self._groups.append(group)
        self._groups.reverse()
        self.load()

    @property
    def exhausted(self) -> bool:
        return not self._groups

    @property
    def has_rows(self) -> bool:
        return self.loaded is not None and self.loaded.num_rows > 0

    @property
    def bound(self) -> int:
        """Every row not loaded yet has an adjusted clock at or above this."""
        assert self.loaded is not None
        if self.loaded.num_rows == 0:
            return self.first
        return int(self.loaded.column("adjusted")[-1].as_py())

    def load(self) -> None:
        """Load the next row group that has rows in range."""
        tables = [self.loaded] if self.loaded is not None and self.loaded.num_rows else []
        while self._groups:
            assert self._file is not None
            with readable(self.segment):
                group = self._file.read_row_group(self._groups.pop(), columns=_COLUMNS)
            clocks = group.column("clock").to_numpy()
            begin, end = np.searchsorted(clocks, [self.read.clock_begin, self.read.clock_end])
            if end > begin:
                tables.append(self._rows(group.slice(begin, end - begin), clocks[begin:end]))
                break
        self.loaded = pa.concat_tables(tables) if tables else SOURCE_ROWS.empty_table()
        if self.exhausted and self._file is not None:
            self._file.close()

    def _rows(self, group: pa.Table, clocks: Any) -> pa.Table:
        transforms = np.full(len(clocks), self.read.transform, dtype=np.int16)
        columns = [pa.array(clocks + self.read.offset), pa.array(transforms)]
        return pa.table([*columns, *(group.column(name) for name in _COLUMNS[1:])], schema=SOURCE_ROWS)

    def take_below(self, bound: int) -> pa.Table:
        assert self.loaded is not None
        count = int(np.searchsorted(self.loaded.column("adjusted").to_numpy(), bound))
        taken, self.loaded = self.loaded.slice(0, count), self.loaded.slice(count)
        return taken


def read_sorted(root: Path, reads: Sequence[SourceRead], order: Sequence[str] = _ORDER) -> Iterator[pa.RecordBatch]:
    """Rows (`SOURCE_ROWS`) of all reads, in order.

    Args:
        root: the data folder.
        reads: what to read; at most one per transform.
        order: columns by which to sort, of which `adjusted` is the first; by law L4 if it is not given.

    Yields:
        Batches of at most 10,000 rows; batch borders mean nothing.

    Raises:
        SegmentError: a file is missing, damaged or cannot be read.
    """
    waiting = [_Cursor(root, read, segment) for read in reads for segment in read.segments]
    waiting.sort(key=lambda cursor: cursor.first, reverse=True)
    open_cursors: list[_Cursor] = []
    while waiting or open_cursors:
        if not open_cursors:
            open_cursors.append(waiting.pop())
            open_cursors[-1].open()
        # Open whatever begins before the end of what is loaded, so that the bound below is a real one.
        bound = min((each.bound for each in open_cursors if not each.exhausted), default=None)
        last = max(each.bound for each in open_cursors)
        while waiting and waiting[-1].first <= (last if bound is None else bound):
            cursor = waiting.pop()
            cursor.open()
            open_cursors.append(cursor)
            if not cursor.exhausted:
                bound = cursor.bound if bound is None else min(bound, cursor.bound)
            last = max(last, cursor.bound)
        limit = last + 1 if bound is None else bound
        if waiting:
            limit = min(limit, waiting[-1].first)
        tables = [table for table in (each.take_below(limit) for each in open_cursors) if table.num_rows]
        yield from _batches(tables, order)
        for cursor in open_cursors:
            if not cursor.exhausted and cursor.bound <= limit:
                cursor.load()
        open_cursors = [each for each in open_cursors if not each.exhausted or each.has_rows]


def _batches(tables: list[pa.Table], order: Sequence[str]) -> Iterator[pa.RecordBatch]:
    if not tables:
        return
    table = (
        tables[0] if len(tables) == 1 else pa.concat_tables(tables).sort_by([(column, "ascending") for column in order])
    )
    yield from table.combine_chunks().to_batches(max_chunksize=_BATCH)
