"""Reading segments in order, with flat memory.

Segments are sorted, so reading many of them in order is a merge, which goes by row groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from derive.storage.segments.condition import Condition, WantedRows
from derive.storage.segments.merge import Cursor, merge
from derive.storage.segments.rows import CLOCK, ReadRows, StoredRows
from derive.storage.segments.segment_file import open_segment, readable
from derive.storage.segments.selection import DOCUMENTS, SelectedColumns, Selection
from derive.time.segment import Segment
from derive.time.source_read import SourceRead

_CLOCK = StoredRows.SCHEMA.get_field_index(CLOCK)
MOST_ROWS = 10_000
"""How many rows are handed on at once, at most."""

_MOST_BYTES = 16 << 20


def read_sorted(
    root: Path,
    reads: Sequence[SourceRead],
    order: Sequence[str] = ReadRows.ORDER,
    most_rows: int = MOST_ROWS,
    selection: Selection = DOCUMENTS,
) -> Iterator[ReadRows]:
    """Rows of all reads, in order.

    Args:
        root: the data folder.
        reads: what to read; at most one per transform.
        order: columns by which to sort, of which the adjusted clock is the first; by law L4 if it is not given.
        most_rows: how many to hand on at once, at most.
        selection: what to read beside the columns that order rows.

    Yields:
        Rows, so many at once and, where rows are no longer than that, 16 MiB; borders between them mean nothing.

    Raises:
        SegmentError: a file is missing, damaged or cannot be read.
    """
    cursors = [
        Cursor(_bound(read, segment), _batches(root, read, segment, selection), order)
        for read in reads
        for segment in read.segments
    ]
    for rows in map(ReadRows, merge(cursors)):
        step = max(1, min(most_rows, _MOST_BYTES * len(rows) // rows.nbytes))
        for begin in range(0, len(rows), step):
            yield rows.slice(begin, step)


def _bound(read: SourceRead, segment: Segment) -> tuple[int]:
    """No row of the segment that is read comes before this."""
    return (max(segment.clock_min, read.clock_begin) + read.offset,)


def _batches(root: Path, read: SourceRead, segment: Segment, selection: Selection) -> Iterator[pa.RecordBatch]:
    return (rows.batch for rows in read_segment(root, read, segment, selection))


def read_segment(
    root: Path,
    read: SourceRead,
    segment: Segment,
    selection: Selection = DOCUMENTS,
    conditions: Sequence[Condition] = (),
) -> Iterator[ReadRows]:
    """The rows of one segment that are part of a read, in order, row group by row group.

    Args:
        root: the data folder.
        read: what is read.
        segment: one of its segments.
        selection: what is read beside the columns that order rows.
        conditions: all of which the rows fulfil that are wanted; others are left out.

    Raises:
        SegmentError: the file is missing, damaged or cannot be read.
    """
    with open_segment(root, segment) as file:
        columns, wanted = SelectedColumns(file, selection, read.index), WantedRows(file, conditions)
        for number in range(file.metadata.num_row_groups):
            statistics = file.metadata.row_group(number).column(_CLOCK).statistics
            if statistics is not None and (statistics.max < read.clock_begin or statistics.min >= read.clock_end):
                continue
            with readable(segment):
                mask = wanted.of(number)
                if mask is not None and not len(mask):
                    continue
                group = columns.read(number, read.clock_begin, read.clock_end, mask)
            yield from ReadRows.of_stored(group, read.index, read.offset)
