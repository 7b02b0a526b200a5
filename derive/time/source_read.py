"""What one input reads in a transaction: a range of time, and the segments that hold it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from derive.protocol.specs import InputSpec
from derive.time.frontier import BEGINNING, END_OF_TIME
from derive.time.positions import offset_of
from derive.time.segment import Segment


@dataclass(frozen=True, slots=True)
class SourceRead:
    """Which documents one input reads.

    Attributes:
        index: place of the input among those of its task.
        offset: microseconds from a document's clock to its adjusted clock.
        clock_begin: least clock to read.
        clock_end: clock before which to stop.
        segments: files that may hold such documents.
    """

    index: int
    offset: int
    clock_begin: int
    clock_end: int
    segments: tuple[Segment, ...]

    def within(self, adjusted_begin: int, adjusted_end: int) -> SourceRead:
        """The part of this read with adjusted clocks in `[adjusted_begin, adjusted_end)`."""
        begin = max(self.clock_begin, adjusted_begin - self.offset)
        end = min(self.clock_end, adjusted_end - self.offset)
        segments = tuple(segment for segment in self.segments if segment.clock_max >= begin and segment.clock_min < end)
        return SourceRead(self.index, self.offset, begin, end, segments)


def read_input(spec: InputSpec, tick: int, segments: Sequence[Segment], begin: int, end: int) -> SourceRead:
    """What an input reads for adjusted clocks in `[begin, end)`, which its bounds may narrow.

    Args:
        spec: the input.
        tick: length of its task's ticks, microseconds.
        segments: of its source; those that hold nothing of it are left out.
        begin: adjusted clock from which on to read.
        end: adjusted clock before which to stop.
    """
    offset = offset_of(spec, tick)
    clock_begin, clock_end = spec.not_before or BEGINNING, END_OF_TIME if spec.not_after is None else spec.not_after
    return SourceRead(spec.index, offset, clock_begin, clock_end, tuple(segments)).within(begin, end)
