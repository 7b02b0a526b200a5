"""What one transform reads in a transaction: a range of time, and the segments that hold it."""

from __future__ import annotations

from dataclasses import dataclass

from derive.time.segment import Segment


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
