"""The extent of a transaction: how far it goes, how much that is, and into which slices of time it is cut.

A transaction ends at a tick boundary, and so does a slice of one, because documents of a tick belong together. How much
lies between two times is an estimate, which takes the clocks of a segment as evenly spread.
"""

from __future__ import annotations

from collections.abc import Sequence

from derive.time.frontier import tick_begin, tick_end
from derive.time.limits import Limits, Size
from derive.time.source_read import SourceRead


def choose_end(reads: Sequence[SourceRead], begin: int, bound: int, tick: int, limits: Limits) -> int:
    """The end of the next transaction: at most `bound`, and with about as much before it as its limits allow.

    Args:
        reads: what there is to read before `bound`.
        begin: adjusted clock below which nothing is left to read, and below `bound`.
        bound: a tick boundary.
        tick: length of a tick, microseconds.
        limits: of the transaction.
    """
    if limits.hold(size_of(reads)):
        return bound
    low, high = begin, bound
    while high - low > tick:
        middle = (low + high) // 2
        if limits.hold(size_of([read.within(begin, middle) for read in reads])):
            low = middle
        else:
            high = middle
    return min(bound, tick_end(low, tick))


def size_of(reads: Sequence[SourceRead]) -> Size:
    """About how much these reads hold."""
    documents = size = 0
    for read in reads:
        for segment in read.segments:
            span = segment.clock_max - segment.clock_min + 1
            covered = min(segment.clock_max + 1, read.clock_end) - max(segment.clock_min, read.clock_begin)
            covered = max(0, min(span, covered))
            documents += segment.documents * covered // span
            size += segment.bytes * covered // span
    return Size(documents, size)


def is_one_tick(reads: Sequence[SourceRead], tick: int) -> bool:
    """Whether all that these reads hold is of one tick, which is never cut."""
    begin, end = _span(reads)
    return tick_begin(begin, tick) == tick_begin(end - 1, tick)


def _span(reads: Sequence[SourceRead]) -> tuple[int, int]:
    """The adjusted clocks between which lies what these reads hold; they hold something."""
    begins = [max(segment.clock_min, read.clock_begin) + read.offset for read in reads for segment in read.segments]
    ends = [min(segment.clock_max + 1, read.clock_end) + read.offset for read in reads for segment in read.segments]
    return min(begins), max(ends)


def slice_borders(
    reads: Sequence[SourceRead], end: int, tick: int, clamp: int, abreast: int, limits: Limits
) -> tuple[int, ...]:
    """Cut a transaction into slices of time that begin and end at tick boundaries.

    No tick is divided, so documents that combine are always in one slice; everything that is clamped to the output's
    `upper` is of one tick, too.

    Args:
        reads: what the transaction reads.
        end: adjusted clock at which it ends.
        tick: length of a tick, microseconds.
        clamp: the output's `upper`.
        abreast: how many slices are expected to run at the same time.
        limits: of a slice.

    Returns:
        Ascending borders in adjusted time; slice i is `[borders[i], borders[i + 1])`. None if there is nothing to read.
    """
    if not any(read.segments for read in reads):
        return ()
    begin, last = _span(reads)
    first, last = tick_begin(begin, tick), min(end, tick_end(last - 1, tick))
    size = size_of(reads)
    total = size.documents
    rounds = -(-total // (limits.slice_documents * abreast))
    count = 1 if limits.is_small(size) else rounds * abreast
    borders = [first]
    # Borders at equal counts: the clock below which the wanted share of documents lies, by bisection.
    for number in range(1, count):
        low, high = borders[-1], last
        while high - low > tick:
            middle = (low + high) // 2
            below = size_of([read.within(first, middle) for read in reads]).documents
            low, high = (middle, high) if below * count < number * total else (low, middle)
        border = tick_begin(high, tick)
        if border > max(borders[-1], clamp) and border < last:
            borders.append(border)
    return (*borders, last)
