"""Segments that travel to workers: packed in chunks, of which a worker opens those that it reads.

A transaction may read 100,000 segments. As objects, their descriptions would be most of a plan, and each worker would
need about a second to open them, although it reads one slice of time. So they travel as columns of bytes, in chunks
with their bounds in time.
"""

from __future__ import annotations

import pickle
import zlib
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, overload

from typing_extensions import override

from derive.time.positions import Segment, SourceRead
from derive.time.segment_columns import SegmentColumns

_CHUNK = 512
"""Number of segments of a chunk: a slice of a transaction has about as many, or more."""


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Consecutive segments, packed.

    Attributes:
        clock_min: least timestamp.
        clock_max: greatest timestamp.
        count: number of segments.
        data: the columns of the segments, compressed.
    """

    clock_min: int
    clock_max: int
    count: int
    data: bytes

    @staticmethod
    def of(segments: SegmentColumns) -> _Chunk:
        """Pack segments."""
        partitions = {id(partition): partition for partition in segments.partitions}  # 1 and True are equal
        places = {key: place for place, key in enumerate(partitions)}
        is_single = len(partitions) == 1
        placed = bytes(4 * len(segments)) if is_single else array("I", [places[id(one)] for one in segments.partitions])
        numbers = (segments.clock_min, segments.clock_max, segments.documents, segments.bytes)
        columns = (
            list(segments.collections),
            "\n".join(segments.paths),
            (tuple(partitions.values()), bytes(placed)),
            b"".join(column.tobytes() for column in numbers),
            "\n".join(segments.checksums),
        )
        texts = pickle.dumps(columns)
        data = zlib.compress(texts, 1)
        first, last = int(segments.clock_min.min()), int(segments.clock_max.max())
        return _Chunk(first, last, len(segments), data)

    def segments(self) -> list[Segment]:
        """Return the segments."""
        texts = zlib.decompress(self.data)
        collections, paths, (partitions, placed), packed, checksums = pickle.loads(texts)
        numbers, places = array("q"), array("I")
        numbers.frombytes(packed)
        places.frombytes(placed)
        columns: Any = zip(
            collections,
            paths.split("\n"),
            [partitions[place] for place in places],
            *(numbers[column * self.count : (column + 1) * self.count] for column in range(4)),
            checksums.split("\n"),
            strict=True,
        )
        return list(map(Segment._make, columns))


class PackedSegments(Sequence[Segment]):
    """Segments in order; each access opens the chunks that it needs.

    Args:
        segments: the segments. No path has a line break.
    """

    def __init__(self, segments: Sequence[Segment]) -> None:
        columns = SegmentColumns.of(segments)
        self._chunks = tuple(_Chunk.of(columns[begin : begin + _CHUNK]) for begin in range(0, len(columns), _CHUNK))

    def __len__(self) -> int:
        return sum(chunk.count for chunk in self._chunks)

    def __iter__(self) -> Iterator[Segment]:
        return chain.from_iterable(chunk.segments() for chunk in self._chunks)

    @overload
    def __getitem__(self, index: int) -> Segment: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Segment]: ...

    def __getitem__(self, index: int | slice) -> Segment | Sequence[Segment]:
        return tuple(self)[index]

    def between(self, begin: int, end: int) -> Iterator[Segment]:
        """Yield the segments of all chunks with timestamps in `[begin, end)`, and perhaps others."""
        for chunk in self._chunks:
            if chunk.clock_max >= begin and chunk.clock_min < end:
                yield from chunk.segments()


@dataclass(frozen=True, slots=True)
class PackedRead(SourceRead):
    """A read whose segments are packed."""

    @override
    def within(self, adjusted_begin: int, adjusted_end: int) -> SourceRead:
        """Return the part of this read between two adjusted timestamps; only its chunks are opened."""
        begin = max(self.clock_begin, adjusted_begin - self.offset)
        end = min(self.clock_end, adjusted_end - self.offset)
        segments = self.segments
        assert isinstance(segments, PackedSegments)
        read = SourceRead(
            self.index, self.offset, self.clock_begin, self.clock_end, tuple(segments.between(begin, end))
        )
        return read.within(adjusted_begin, adjusted_end)


def packed_reads(reads: Sequence[SourceRead]) -> tuple[SourceRead, ...]:
    """Return reads whose segments are packed if they are many; the segments are the same, in the same order."""
    return tuple(map(_packed, reads))


def _packed(read: SourceRead) -> SourceRead:
    if len(read.segments) <= _CHUNK:
        return replace(read, segments=tuple(read.segments))
    segments = PackedSegments(read.segments)
    return PackedRead(read.index, read.offset, read.clock_begin, read.clock_end, segments)
