"""Reading segments in order, with flat memory.

Segments are sorted, so reading many of them in order is a merge, which goes by row groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from derive.storage.segments.merge import Cursor, merge
from derive.storage.segments.segment_file import open_segment, readable
from derive.time.segment import Segment
from derive.time.source_read import SourceRead

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
SOURCE_ORDER = ("adjusted", "transform", "seq", "key")
"""Columns that order documents for lambdas."""

STORED_ORDER = ("adjusted", "seq", "key")
"""The order of documents in a collection, where `transform` does not tell a transform."""

_BATCH = 10_000
_BATCH_BYTES = 16 << 20


def _stored(root: Path, read: SourceRead, segment: Segment) -> Iterator[pa.RecordBatch]:
    """The rows of one segment that a transform reads, row group by row group."""
    with open_segment(root, segment) as file:
        for number in range(file.metadata.num_row_groups):
            statistics = file.metadata.row_group(number).column(0).statistics
            if statistics is not None and (statistics.max < read.clock_begin or statistics.min >= read.clock_end):
                continue
            with readable(segment):
                group = file.read_row_group(number, columns=_COLUMNS)
            clocks = group.column("clock").to_numpy()
            begin, end = np.searchsorted(clocks, [read.clock_begin, read.clock_end])
            yield from _rows(read, group.slice(begin, end - begin), clocks[begin:end]).to_batches()


def _rows(read: SourceRead, group: pa.Table, clocks: Any) -> pa.Table:
    transforms = np.full(len(clocks), read.index, dtype=np.int16)
    columns = [pa.array(clocks + read.offset), pa.array(transforms)]
    return pa.table([*columns, *(group.column(name) for name in _COLUMNS[1:])], schema=SOURCE_ROWS)


def read_sorted(
    root: Path, reads: Sequence[SourceRead], order: Sequence[str] = SOURCE_ORDER
) -> Iterator[pa.RecordBatch]:
    """Rows (`SOURCE_ROWS`) of all reads, in order.

    Args:
        root: the data folder.
        reads: what to read; at most one per transform.
        order: columns by which to sort, of which `adjusted` is the first; by law L4 if it is not given.

    Yields:
        Batches of at most 10,000 rows and, where rows are no longer than that, 16 MiB; batch borders mean nothing.

    Raises:
        SegmentError: a file is missing, damaged or cannot be read.
    """
    cursors = [
        Cursor((max(segment.clock_min, read.clock_begin) + read.offset,), _stored(root, read, segment), order)
        for read in reads
        for segment in read.segments
    ]
    for rows in merge(cursors):
        step = max(1, min(_BATCH, _BATCH_BYTES * rows.num_rows // rows.nbytes))
        for begin in range(0, rows.num_rows, step):
            yield rows.slice(begin, step)
