"""The extent of a transaction: its end, its size, its limits, and its division into slices.

Pace: a lost worker has usually run out of memory. So the next attempt has half the size of the lost attempt. After a
success, the size is doubled again, up to the limits. Each further loss doubles the number of successes before the next
increase, because the lost size would usually fail again.

Transactions and slices end at tick boundaries, because the documents of a tick belong together. Sizes are estimates
that assume evenly spread timestamps within a segment.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from derive.time import tick_begin, tick_end
from derive.time.positions import Segment, SourceRead
from derive.time.segment_columns import SegmentColumns

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits for work. Sizes are estimates; bytes are compressed, as stored.

    Attributes:
        documents: approximate limit for the documents of a transaction; a tick is never divided.
        bytes: approximate limit for the bytes of a transaction.
        segments: limit for the segments of a transaction, because each is described in the plan, and is opened.
        slice_documents: approximate limit for the documents of a slice, large compared to the cost of a Spark task.
        small_documents: greatest number of documents for which one task is faster than two tasks.
        small_bytes: greatest number of bytes for which one task is faster than two tasks.
        small_segments: greatest number of segments for which one task is faster than two tasks.
    """

    documents: int = 2_000_000
    bytes: int = 512 << 20
    segments: int = 8_192
    slice_documents: int = 250_000
    small_documents: int = 20_000
    small_bytes: int = 8 << 20
    small_segments: int = 512

    def hold(self, size: Size) -> bool:
        """Return true if a transaction of this size is within the limits."""
        return size.documents <= self.documents and size.bytes <= self.bytes and size.segments <= self.segments

    def is_small(self, size: Size) -> bool:
        """Return true if a read of this size is too small to be divided among several tasks."""
        few = size.documents <= self.small_documents and size.segments <= self.small_segments
        return few and size.bytes <= self.small_bytes

    def most_slices(self, size: Size) -> int:
        """Return the greatest number of slices of a read of this size, each of which is worth a task."""
        if self.is_small(size):
            return 1
        small = max(
            size.documents // max(1, self.small_documents),
            size.bytes // max(1, self.small_bytes),
            size.segments // max(1, self.small_segments),
        )
        return max(_WORTHWHILE * max(1, small), -(-size.documents // self.slice_documents))


_WORTHWHILE = 8
"""Number of slices into which a read that is just too large for one task is divided at most."""


@dataclass(frozen=True, slots=True)
class Size:
    """Approximate size of a read.

    Attributes:
        documents: number of documents.
        bytes: bytes as stored.
        segments: number of segments that contain the documents.
    """

    documents: int
    bytes: int
    segments: int = 0

    def __add__(self, other: Size) -> Size:
        return Size(self.documents + other.documents, self.bytes + other.bytes, self.segments + other.segments)


@dataclass(frozen=True, slots=True)
class Load:
    """Waiting work of a task.

    Attributes:
        task: name of the task.
        size: approximate size.
        parts: number of parts that can be processed in parallel.
        is_bound: whether only the process of the driver can process it.
    """

    task: str
    size: Size
    parts: int
    is_bound: bool = False


_MOST_PATIENCE = 64


class Pace:
    """The size of one task's transactions.

    Args:
        limits: upper bound of the limits.

    Attributes:
        most: upper bound of the limits.
        limits: the present limits.
    """

    def __init__(self, limits: Limits) -> None:
        self.most = limits
        self.limits = limits
        self._patience = 0  # number of successes that are needed for the next increase
        self._succeeded = 0  # number of successes after the last change

    def slow_down(self, lost: Size) -> None:
        """Reduce the limits to half the size of a lost attempt."""
        self._patience = min(2 * self._patience, _MOST_PATIENCE) or 1
        self._succeeded = 0
        self.limits = replace(self.limits, documents=max(lost.documents // 2, 1), bytes=max(lost.bytes // 2, 1))

    def speed_up(self) -> None:
        """Double the limits, up to the upper bound, after enough consecutive successes."""
        now, most = self.limits, self.most
        if now == most:
            self._patience = 0
        self._succeeded += 1
        if self._succeeded < self._patience:
            return
        self._succeeded = 0
        self.limits = replace(
            now, documents=min(2 * now.documents, most.documents), bytes=min(2 * now.bytes, most.bytes)
        )


class Spread:
    """The sizes of the documents of reads before many timestamps, each in about logarithmic time.

    Args:
        reads: the reads.
        begin: first adjusted timestamp.
    """

    def __init__(self, reads: Sequence[SourceRead], begin: int) -> None:
        import numpy as np

        parts = [_parts(read, begin) for read in reads]
        firsts, ends, documents, sizes, spans = map(np.concatenate, zip(*parts, strict=True))
        by_first, by_end = np.argsort(firsts, kind="stable"), np.argsort(ends, kind="stable")
        columns = (firsts, ends, documents, sizes, spans)
        self._by_first = tuple(_quick(column[by_first]) for column in columns)
        self._ends = _quick(ends[by_end])
        shares = [documents.copy(), sizes.copy()]
        for place in (ends - firsts != spans).nonzero()[0].tolist():  # few: those that the bounds of a read divide
            part = tuple(int(column[place]) for column in columns)
            shares[0][place], shares[1][place] = _size(part, part[1])
        sums = (_quick(np.concatenate(([0], np.cumsum(share[by_end])))) for share in shares)
        self._documents, self._bytes = sums

    def before(self, end: int) -> Size:
        """Return the size of the documents before an adjusted timestamp: `size_of` of the reads within it."""
        firsts, ends, counts, sizes, spans = self._by_first
        complete, begun = bisect_right(self._ends, end), bisect_left(firsts, end)
        documents, size = int(self._documents[complete]), int(self._bytes[complete])
        number, incomplete = begun, begun - complete
        while incomplete:
            number -= 1
            if ends[number] > end:
                part = int(firsts[number]), int(ends[number]), int(counts[number]), int(sizes[number])
                more_documents, more_bytes = _size((*part, int(spans[number])), end)
                documents, size, incomplete = documents + more_documents, size + more_bytes, incomplete - 1
        return Size(documents, size, begun)


_QUICK = 1_024
"""Number of elements up to which a list of numbers is faster to search than an array."""


def _quick(column: NDArray[np.int64]) -> Sequence[int]:
    """Return numbers as the sequence in which single ones are found fast."""
    numbers: Sequence[int] = column.tolist() if len(column) <= _QUICK else column  # type: ignore[assignment]
    return numbers


_Part: TypeAlias = tuple[int, ...]
"""The part of a segment that a read covers: its first adjusted timestamp, its exclusive end; and the documents, bytes
and length in time of the segment."""


def _parts(read: SourceRead, begin: int) -> tuple[NDArray[np.int64], ...]:
    """Return the parts of the segments of a read from an adjusted timestamp on, as columns."""
    import numpy as np

    columns = SegmentColumns.of(read.segments)
    clock_begin, clock_end, offset = max(read.clock_begin, begin - read.offset), read.clock_end, read.offset
    firsts, ends = np.maximum(columns.clock_min, clock_begin), np.minimum(columns.clock_max + 1, clock_end)
    spans = columns.clock_max - columns.clock_min + 1
    is_read = firsts < ends
    parts = (firsts + offset, ends + offset, columns.documents, columns.bytes, spans)
    return parts if is_read.all() else tuple(column[is_read] for column in parts)


def _size(part: _Part, end: int) -> tuple[int, int]:
    """Return the approximate number of documents of a part before an adjusted timestamp, and of their bytes."""
    first, last, documents, size, span = part
    covered = min(last, end) - first
    if covered == span:
        return documents, size
    return documents * covered // span, size * covered // span


def choose_end(reads: Sequence[SourceRead], begin: int, bound: int, tick: int, limits: Limits) -> int:
    """Return the end of the next transaction: as late as its limits allow, and at most `bound`.

    Args:
        reads: reads of all documents before `bound`.
        begin: adjusted timestamp before `bound`, below which all documents are processed.
        bound: a tick boundary.
        tick: length of a tick, microseconds.
        limits: limits of the transaction.
    """
    if limits.hold(size_of(reads)):
        return bound
    spread, low, high = Spread(reads, begin), begin, bound
    while high - low > tick:
        middle = (low + high) // 2
        if limits.hold(spread.before(middle)):
            low = middle
        else:
            high = middle
    return min(bound, tick_end(low, tick))


def size_of(reads: Sequence[SourceRead]) -> Size:
    """Return the approximate size of these reads."""
    documents = size = count = 0
    for read in reads:
        begin, end = read.clock_begin, read.clock_end
        segments = read.segments
        if isinstance(segments, SegmentColumns):
            is_complete = (segments.clock_min >= begin) & (segments.clock_max < end)
            documents += int(segments.documents[is_complete].sum())
            size, count = size + int(segments.bytes[is_complete].sum()), count + int(is_complete.sum())
            segments = segments.chosen(~is_complete)
        for segment in segments:
            first, last = segment.clock_min, segment.clock_max
            if first >= begin and last < end:
                documents, size, count = documents + segment.documents, size + segment.bytes, count + 1
                continue
            covered = min(last + 1, end) - max(first, begin)
            if covered > 0:
                span = last - first + 1
                documents += segment.documents * covered // span
                size += segment.bytes * covered // span
                count += 1
    return Size(documents, size, count)


class Enough:
    """Decides, segment by segment, when a read has enough segments for every transaction within limits.

    `choose_end` chooses the same end with these segments as with all segments: the documents before a tick boundary,
    before which no later segment begins, already exceed the limits. The least timestamp of an unread document is the
    same, too, because a segment that begins in the interval has a document at its least timestamp.

    Args:
        begin: first timestamp of the read.
        end: exclusive upper bound of its timestamps.
        offset: microseconds from a timestamp to its adjusted timestamp.
        tick: length of a tick, microseconds.
        limits: greatest limits of a transaction.

    Attributes:
        left: least timestamp of the segments that were left out; None if all were taken.
    """

    def __init__(self, begin: int, end: int, offset: int, tick: int, limits: Limits) -> None:
        self._begin, self._end, self._offset, self._tick, self._limits = begin, end, offset, tick, limits
        self.left: int | None = None
        self._segments: list[Segment] = []
        self._columns: list[SegmentColumns] = []
        self._first: int | None = None  # least timestamp of a segment that begins in the interval
        self._documents = self._bytes = 0  # size of the segments so far
        self._next = 0  # number of segments at the next check, so that all checks together take linear time

    def __call__(self, segment: Segment) -> bool:
        """Return true if the segments before this one are enough; called in the order of the least timestamp."""
        if segment.clock_min >= self._end:
            return True
        count, limits = len(self._segments), self._limits
        if count >= self._next and (
            self._documents > limits.documents or self._bytes > limits.bytes or count > limits.segments
        ):
            if self._exceeds(segment.clock_min):
                self.left = segment.clock_min
                return True
            self._next = count + count // 4
        self._segments.append(segment)
        self._documents += segment.documents
        self._bytes += segment.bytes
        if self._first is None and segment.clock_min >= self._begin:
            self._first = segment.clock_min
        return False

    def takes(self, segments: SegmentColumns) -> bool:
        """Return true if the segments before these are enough; called with all segments in order, and not each."""
        first, limits = int(segments.clock_min[0]), self._limits
        if first >= self._end:
            return True
        count = sum(map(len, self._columns))
        if (self._documents > limits.documents or self._bytes > limits.bytes or count > limits.segments) and (
            self._exceeds(first)
        ):
            self.left = first
            return True
        self._columns.append(segments)
        self._documents += int(segments.documents.sum())
        self._bytes += int(segments.bytes.sum())
        begun = segments.clock_min[segments.clock_min >= self._begin]
        if self._first is None and len(begun):
            self._first = int(begun[0])
        return False

    def _exceeds(self, clock: int) -> bool:
        """Return true if the documents before the tick of a timestamp exceed the limits."""
        border = tick_begin(clock + self._offset, self._tick) - self._offset
        if self._first is None or self._first >= border:
            return False
        parts = (self._segments, *self._columns)
        reads = [SourceRead(0, self._offset, self._begin, min(border, self._end), part) for part in parts]
        return not self._limits.hold(size_of(reads))


def is_one_tick(reads: Sequence[SourceRead], tick: int) -> bool:
    """Return true if the documents of these reads are within one tick, which cannot be divided."""
    begin, end = _span(reads)
    return tick_begin(begin, tick) == tick_begin(end - 1, tick)


def _span(reads: Sequence[SourceRead]) -> tuple[int, int]:
    """Return the first and the last adjusted timestamp of these non-empty reads."""
    begins, ends = [], []
    for read in filter(_has_segments, reads):
        first, last = _bounds(read.segments)
        begins.append(max(first, read.clock_begin) + read.offset)
        ends.append(min(last + 1, read.clock_end) + read.offset)
    return min(begins), max(ends)


def _has_segments(read: SourceRead) -> bool:
    return len(read.segments) > 0


def _bounds(segments: Sequence[Segment]) -> tuple[int, int]:
    """Return the least and the greatest timestamp of some segments."""
    if isinstance(segments, SegmentColumns):
        return int(segments.clock_min.min()), int(segments.clock_max.max())
    return min(segment.clock_min for segment in segments), max(segment.clock_max for segment in segments)


def slice_borders(
    reads: Sequence[SourceRead], end: int, tick: int, clamp: int, abreast: int, limits: Limits
) -> tuple[int, ...]:
    """Divide a transaction into slices of time with borders at tick boundaries.

    No tick is divided, so documents that combine are in the same slice. All timestamps that are clamped to the output's
    `upper` count as one tick.

    Args:
        reads: reads of the transaction.
        end: adjusted timestamp of its end.
        tick: length of a tick, microseconds.
        clamp: the output's `upper`.
        abreast: expected number of slices that run at the same time.
        limits: limits of a slice.

    Returns:
        Ascending borders in adjusted time, where slice i is `[borders[i], borders[i + 1])`; empty if there is nothing
            to read.
    """
    if not any(map(_has_segments, reads)):
        return ()
    begin, last = _span(reads)
    first, last = tick_begin(begin, tick), min(end, tick_end(last - 1, tick))
    size = size_of(reads)
    total = size.documents
    rounds = -(-total // (limits.slice_documents * abreast))
    count = min(rounds * abreast, limits.most_slices(size))
    if count <= 1:
        return (first, last)
    borders, spread = [first], Spread(reads, first)
    # Bisection finds the borders of equal counts.
    for number in range(1, count):
        low, high = borders[-1], last
        while high - low > tick:
            middle = (low + high) // 2
            below = spread.before(middle).documents
            low, high = (middle, high) if below * count < number * total else (low, middle)
        border = tick_begin(high, tick)
        if border > max(borders[-1], clamp) and border < last:
            borders.append(border)
    return (*borders, last)
