"""Timestamps of stored documents: the first timestamp in an interval, and the number of documents.

The descriptions of segments usually suffice, so the modules that read files are imported only on demand.
"""

from __future__ import annotations

from derive.storage.location import Location
from derive.time.positions import Segment, SourceRead


def first_clock(location: Location, read: SourceRead) -> int | None:
    """Return the least timestamp of a document in an interval; None for none.

    Raises:
        SegmentError: a file cannot be read.
    """
    first: int | None = None
    for segment in read.segments:
        if first is not None and segment.clock_min >= first:
            continue
        clock = _first_from(location, segment, read.clock_begin)
        if clock is not None and clock < read.clock_end and (first is None or clock < first):
            first = clock
    return first


def count_documents(location: Location, read: SourceRead) -> int:
    """Return the number of documents in an interval.

    Raises:
        SegmentError: a file cannot be read.
    """
    return sum(_count(location, segment, read.clock_begin, read.clock_end) for segment in read.segments)


def _first_from(location: Location, segment: Segment, begin: int) -> int | None:
    if segment.clock_min >= begin:
        return segment.clock_min
    from derive.storage.segments.segment_file import read_clocks

    clocks = read_clocks(location, segment)
    row = int(clocks.searchsorted(begin))
    return int(clocks[row]) if row < len(clocks) else None


def _count(location: Location, segment: Segment, begin: int, end: int) -> int:
    if segment.clock_min >= begin and segment.clock_max < end:
        return segment.documents
    from derive.storage.segments.segment_file import read_clocks

    low, high = read_clocks(location, segment).searchsorted([begin, end])
    return max(0, int(high - low))
