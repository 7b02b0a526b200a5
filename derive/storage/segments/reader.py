"""Read segments in order, with constant memory.

Segments are sorted, so reading several of them in order is a merge by row groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from derive.storage.segments.rows import CLOCK, ReadRows, StoredRows
from derive.storage.segments.segment_file import open_segment, readable
from derive.storage.segments.selection import DOCUMENTS, Condition, RowFilter, SelectedColumns, Selection
from derive.storage.segments.sorter import Cursor, merge
from derive.time.source_read import Segment, SourceRead

_CLOCK = StoredRows.SCHEMA.get_field_index(CLOCK)
MOST_ROWS = 10_000
"""Largest number of rows in a yielded batch."""

_MOST_BYTES = 16 << 20


def read_sorted(
    root: Path,
    reads: Sequence[SourceRead],
    order: Sequence[str] = ReadRows.ORDER,
    most_rows: int = MOST_ROWS,
    selection: Selection = DOCUMENTS,
) -> Iterator[ReadRows]:
    """Yield the rows of all reads, in order.

    Args:
        root: the data folder.
        reads: reads, at most one per transform.
        order: sort columns, beginning with the adjusted timestamp; the order of law L4 by default.
        most_rows: largest number of rows in a batch.
        selection: columns to read besides the sort columns.

    Yields:
        Batches of up to `most_rows` rows and about 16 MiB; their division has no meaning.

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
    """Return a lower bound of the rows of a read in a segment."""
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
    """Yield the rows of one segment that are part of a read, in order, by row group.

    Args:
        root: the data folder.
        read: the read.
        segment: one of its segments.
        selection: columns to read besides the sort columns.
        conditions: filters that all must match.

    Raises:
        SegmentError: the file is missing, damaged or cannot be read.
    """
    with open_segment(root, segment) as file:
        columns, desired = SelectedColumns(file, selection, read.index), RowFilter(file, conditions)
        for number in range(file.metadata.num_row_groups):
            statistics = file.metadata.row_group(number).column(_CLOCK).statistics
            if statistics is not None and (statistics.max < read.clock_begin or statistics.min >= read.clock_end):
                continue
            with readable(segment):
                mask = desired.of(number)
                if mask is not None and not len(mask):
                    continue
                group = columns.read(number, read.clock_begin, read.clock_end, mask)
            yield from ReadRows.of_stored(group, read.index, read.offset)
