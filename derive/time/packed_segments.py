"""Segments that travel to workers: packed in chunks, of which a worker opens those that it reads.

A transaction may read 100,000 segments. As objects, their descriptions would be most of a plan, and each worker would
need about a second to open them, although it reads one slice of time. So they travel as columns of bytes, in chunks
with their bounds in time.
"""

from __future__ import annotations

import pickle
from array import array
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, overload

from typing_extensions import override

from derive.time.positions import Segment, SourceRead
from derive.time.segment_columns import SegmentColumns

if TYPE_CHECKING:
    from derive.time.segment_columns import Numbers

_CHUNK = 512
"""Number of segments of a chunk: a slice of a transaction has about as many, or more."""


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Consecutive segments, packed.

    Attributes:
        clock_min: least timestamp.
        clock_max: greatest timestamp.
        count: number of segments.
        data: the columns of the segments, packed: bytes of a plan are cheaper than the time to compress them.
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
        placed = array("I", () if is_single else [places[id(one)] for one in segments.partitions])
        names = dict.fromkeys(segments.collections)
        lengths = segments.clock_max - segments.clock_min
        columns = (
            [*names] if len(names) == 1 else segments.collections,
            _Lines.of(segments.paths),
            (tuple(partitions.values()), placed.tobytes()),
            [_Numbers.of(column) for column in (segments.clock_min, lengths, segments.documents, segments.bytes)],
            _digests(segments.checksums),
        )
        first, last = int(segments.clock_min.min()), int(segments.clock_max.max())
        return _Chunk(first, last, len(segments), pickle.dumps(columns))

    def segments(self) -> list[Segment]:
        """Return the segments."""
        collections, paths, (partitions, placed), numbers, checksums = pickle.loads(self.data)
        places = array("I")
        places.frombytes(placed)
        clock_min, lengths, documents, sizes = (column.opened() for column in numbers)
        columns: Any = zip(
            collections * self.count if len(collections) == 1 else collections,
            paths.opened(),
            [partitions[place] for place in places] if placed else partitions * self.count,
            clock_min.tolist(),
            (clock_min + lengths).tolist(),
            documents.tolist(),
            sizes.tolist(),
            _opened_digests(checksums, self.count),
            strict=True,
        )
        return list(map(Segment._make, columns))


class _Lines(NamedTuple):
    """Texts without line breaks, less what all of them begin and end with.

    Attributes:
        begin: beginning of all texts.
        rest: the rest of each text, in lines.
        end: end of all texts.
    """

    begin: str
    rest: str
    end: str

    @staticmethod
    def of(texts: Sequence[str]) -> _Lines:
        """Pack texts."""
        begin, end = _common(min(texts), max(texts)), ""
        lines = "\n".join(texts) + "\n"
        shortest = len(min(texts, key=len)) - len(begin)
        common = _common(texts[0][::-1], texts[-1][::-1])[:shortest][::-1]
        if common and lines.count(f"{common}\n") == len(texts):
            end = common
            lines = lines.replace(f"{end}\n", "\n")
        return _Lines(begin, lines[len(begin) : -1].replace(f"\n{begin}", "\n"), end)

    def opened(self) -> list[str]:
        """Return the texts."""
        return [f"{self.begin}{rest}{self.end}" for rest in self.rest.split("\n")]


def _common(one: str, other: str) -> str:
    """Return the beginning that two texts have in common."""
    for place, (letter, another) in enumerate(zip(one, other, strict=False)):
        if letter != another:
            return one[:place]
    return min(one, other, key=len)


class _Numbers(NamedTuple):
    """Numbers, as differences from the least one.

    Attributes:
        least: the least number.
        kind: type of the differences.
        differences: the differences, as bytes.
    """

    least: int
    kind: str
    differences: bytes

    @staticmethod
    def of(column: Numbers) -> _Numbers:
        """Pack numbers."""
        import numpy as np

        least = int(column.min())
        differences = column - least
        kind = np.min_scalar_type(int(differences.max()))
        return _Numbers(least, kind.str, differences.astype(kind).tobytes())

    def opened(self) -> Numbers:
        """Return the numbers."""
        import numpy as np

        return np.frombuffer(self.differences, self.kind).astype(np.int64) + self.least


def _digests(texts: Sequence[str]) -> bytes | str:
    """Return hexadecimal digests of one length as bytes; other texts in lines."""
    joined = "".join(texts)
    if texts[0] and len(texts[0]) * len(texts) == len(joined) and len({*map(len, texts)}) == 1:
        with suppress(ValueError):
            packed = bytes.fromhex(joined)
            if packed.hex() == joined:
                return packed
    return "\n".join(texts)


def _opened_digests(packed: bytes | str, count: int) -> list[str]:
    """Return the digests that `_digests` has packed."""
    if isinstance(packed, str):
        return packed.split("\n")
    joined = packed.hex()
    length = len(joined) // count
    return [joined[begin : begin + length] for begin in range(0, len(joined), length)]


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
