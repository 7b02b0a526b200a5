"""Source reads: the interval of time and the segments that one input reads in a transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from derive.protocol.specs import InputSpec
from derive.time import BEGINNING, END_OF_TIME
from derive.time.positions import offset_of


@dataclass(frozen=True, slots=True)
class Segment:
    """One immutable file of a collection.

    Attributes:
        collection: name of the collection.
        path: path relative to the data folder.
        partition: values of its logical partition, in field order.
        clock_min: least timestamp.
        clock_max: greatest timestamp.
        documents: number of updates.
        bytes: size of the file.
        checksum: SHA-256 of the file, hexadecimal; empty for files of old versions.
    """

    collection: str
    path: str
    partition: tuple[Any, ...]
    clock_min: int
    clock_max: int
    documents: int
    bytes: int
    checksum: str = ""

    def to_json(self) -> list[Any]:
        """Return the description as JSON, for the transfer from a worker to the driver."""
        values = (self.clock_min, self.clock_max, self.documents, self.bytes, self.checksum)
        return [self.collection, self.path, list(self.partition), *values]

    @staticmethod
    def from_json(value: Sequence[Any]) -> Segment:
        """Return the segment that `to_json` described."""
        return Segment(value[0], value[1], tuple(value[2]), *value[3:])


@dataclass(frozen=True, slots=True)
class SourceRead:
    """The documents that one input reads.

    Attributes:
        index: index of the input in its task.
        offset: microseconds from a document's timestamp to its adjusted timestamp.
        clock_begin: first timestamp.
        clock_end: exclusive upper bound of the timestamps.
        segments: files that may contain such documents.
    """

    index: int
    offset: int
    clock_begin: int
    clock_end: int
    segments: tuple[Segment, ...]

    def within(self, adjusted_begin: int, adjusted_end: int) -> SourceRead:
        """Return the part of this read with adjusted timestamps in `[adjusted_begin, adjusted_end)`."""
        begin = max(self.clock_begin, adjusted_begin - self.offset)
        end = min(self.clock_end, adjusted_end - self.offset)
        segments = tuple(segment for segment in self.segments if segment.clock_max >= begin and segment.clock_min < end)
        return SourceRead(self.index, self.offset, begin, end, segments)


def read_input(spec: InputSpec, tick: int, segments: Sequence[Segment], begin: int, end: int) -> SourceRead:
    """Return the read of an input for adjusted timestamps in `[begin, end)`, within the input's own bounds.

    Args:
        spec: the input.
        tick: length of its task's ticks, microseconds.
        segments: segments of its source; segments outside of the interval are dropped.
        begin: first adjusted timestamp.
        end: exclusive upper bound of the adjusted timestamps.
    """
    offset = offset_of(spec, tick)
    clock_begin, clock_end = spec.not_before or BEGINNING, END_OF_TIME if spec.not_after is None else spec.not_after
    return SourceRead(spec.index, offset, clock_begin, clock_end, tuple(segments)).within(begin, end)
