"""How far a transaction goes, and how it is cut into slices."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from time_specs import input_of, limits, reads, segment, segments

from derive.storage.segments.clocks import first_clock
from derive.time import END_OF_TIME
from derive.time.extent import Enough, Limits, Size, Spread, choose_end, is_one_tick, size_of, slice_borders
from derive.time.positions import Segment, SourceRead, read_input

ticks = st.sampled_from([1, 10, 64, 1_000])


def read_of(*stored: tuple[int, int, int], begin: int = 0, end: int = 10_000, offset: int = 0) -> SourceRead:
    return read_input(input_of("all", read_delay=offset), 10, [segment(*values) for values in stored], begin, end)


def is_before(enough: Enough, segment: Segment) -> bool:
    """Return true if a segment belongs to the enough ones."""
    return not enough(segment)


def hold(cut: list[SourceRead], begin: int, end: int) -> Size:
    return size_of([read.within(begin, end) for read in cut])


@given(st.data(), ticks, st.integers(0, 30), limits)
def test_chosen_end_is_a_later_tick_boundary(data: st.DataObject, tick: int, before: int, limits: Limits) -> None:
    bound = tick * data.draw(st.integers(before + 1, before + 200))
    begin = data.draw(st.integers(max(0, tick * before - tick), tick * before))
    cut = data.draw(reads(tick, begin, bound))

    end = choose_end(cut, begin, bound, tick, limits)

    assert end % tick == 0
    assert begin < end <= bound


@given(st.data(), ticks, limits)
def test_chosen_end_exceeds_limits_by_less_than_one_tick(data: st.DataObject, tick: int, limits: Limits) -> None:
    bound = tick * data.draw(st.integers(1, 200))
    cut = data.draw(reads(tick, 0, bound))

    end = choose_end(cut, 0, bound, tick, limits)

    # It ends with the tick in which it outgrew its limits, and goes on for as long as it has not.
    assert limits.hold(hold(cut, 0, end)) or limits.hold(hold(cut, 0, end - tick)) or end == tick
    assert end == bound or not limits.hold(hold(cut, 0, end + tick))


@pytest.mark.parametrize(
    ("most", "expected"),
    [
        (1_000, 1_000),  # all of it fits
        (500, 510),  # five documents to a tick of 10: the tick in which the 500th lies is part of it
        (1, 10),  # a tick is never cut
    ],
)
def test_chosen_end_is_at_the_limit(most: int, expected: int) -> None:
    cut = [read_of((0, 999, 1_000), end=1_000)]
    assert choose_end(cut, 0, 1_000, 10, Limits(documents=most)) == expected


@given(st.data(), ticks, st.integers(1, 8), st.integers(0, 3_000), limits)
def test_slices_partition_the_documents_at_tick_boundaries(
    data: st.DataObject, tick: int, abreast: int, clamp: int, limits: Limits
) -> None:
    end = tick * data.draw(st.integers(1, 200))
    cut = data.draw(reads(tick, 0, end))
    assume(any(read.segments for read in cut))

    borders = slice_borders(cut, end, tick, clamp, abreast, limits)

    assert len(borders) >= 2
    assert all(border % tick == 0 for border in borders)
    assert all(first < second for first, second in itertools.pairwise(borders))
    assert borders[-1] <= end
    # What is clamped to the output's upper is of one tick, so no border lies at or below it but the first and the last.
    assert all(border > clamp for border in borders[1:-1])
    covered = [read.within(borders[0], borders[-1]) for read in cut]
    assert [read.segments for read in covered] == [read.segments for read in cut]
    assert size_of(covered) == size_of(cut)


def test_slices_have_equal_numbers_of_documents() -> None:
    cut = [read_of((0, 799, 800)), read_of((800, 999, 800))]
    limits = Limits(slice_documents=400, small_documents=10, small_bytes=10)
    assert slice_borders(cut, 1_000, 10, 0, 4, limits) == (0, 400, 800, 900, 1_000)


@pytest.mark.parametrize(
    ("documents", "segments", "abreast", "slices"),
    [
        (900, 1, 100, 1),  # small
        (1_100, 1, 100, 8),
        (1_100, 1, 2, 2),
        (10_100, 1, 100, 80),  # more slices would be too small to be worth a task
        (10_100, 1, 1_000, 80),
        (10_100, 1, 3, 3),
        (100, 10, 100, 8),  # few documents in many segments
    ],
)
def test_slices_are_worth_a_task(documents: int, segments: int, abreast: int, slices: int) -> None:
    limits = Limits(slice_documents=100_000, small_documents=1_000, small_segments=9)
    each = documents // segments
    read = read_of(*((number * 1_000, number * 1_000 + 999, each) for number in range(segments)))
    borders = slice_borders([read], 10_000_000, 1, 0, abreast, limits)
    assert len(borders) - 1 == slices


def test_small_read_has_one_slice_and_empty_read_has_none() -> None:
    limits = Limits(slice_documents=1, small_documents=100, small_bytes=1_000)
    assert slice_borders([read_of((25, 74, 50))], 1_000, 10, 0, 4, limits) == (20, 80)
    assert slice_borders([read_of()], 1_000, 10, 0, 4, limits) == ()


@pytest.mark.parametrize(
    ("begin", "end", "offset", "expected"),
    [
        (0, 1_000, 0, Size(100, 1_000, 1)),
        (0, 150, 0, Size(50, 500, 1)),  # half of the segment's clocks
        (0, 150, 25, Size(25, 250, 1)),  # the same adjusted clocks are earlier ones of the source
        (500, 1_000, 0, Size(0, 0)),
    ],
)
def test_size_includes_the_share_of_a_segment(begin: int, end: int, offset: int, expected: Size) -> None:
    assert size_of([read_of((100, 199, 100), begin=begin, end=end, offset=offset)]) == expected


def test_single_ticks_are_recognized() -> None:
    assert is_one_tick([read_of((10, 19, 5)), read_of((13, 13, 1))], 10)
    assert not is_one_tick([read_of((10, 19, 5)), read_of((13, 13, 1), offset=10)], 10)


@given(st.data(), ticks, limits, st.integers(0, 2_500), st.sampled_from([None, 0, 900]), st.sampled_from([None, 1_500]))
def test_enough_segments_have_the_ends_of_all(
    data: st.DataObject, tick: int, most: Limits, position: int, not_before: int | None, not_after: int | None
) -> None:
    """No transaction and no first document differs if the segments after the first enough ones are left out."""
    all_reads, some_reads = [], []
    for index in range(data.draw(st.integers(1, 2))):
        spec = input_of("input", index=index, read_delay=7, not_before=not_before, not_after=not_after)
        stored = sorted((*data.draw(segments()), *data.draw(segments())), key=lambda each: each.clock_min)
        read = read_input(spec, tick, (), position, END_OF_TIME)
        enough = Enough(read.clock_begin, read.clock_end, read.offset, tick, most)
        unread = [each for each in stored if each.clock_max >= read.clock_begin]
        taken = list(itertools.takewhile(partial(is_before, enough), unread))
        whole, some = (read_input(spec, tick, each, position, END_OF_TIME) for each in (stored, taken))
        if not any(each.clock_min < read.clock_begin for each in unread):
            assert first_clock(Path(), some) == first_clock(Path(), whole)
        all_reads.append(whole)
        some_reads.append(some)
    bound = tick * data.draw(st.integers(position // tick + 1, position // tick + 300))
    lower = replace(most, documents=data.draw(st.integers(1, most.documents)))
    for used in (most, lower):
        ends = [
            choose_end([read.within(position, bound) for read in of], position, bound, tick, used)
            for of in (all_reads, some_reads)
        ]
        assert ends[0] == ends[1]
        assert [read.within(position, ends[0]) for read in all_reads] == [
            read.within(position, ends[0]) for read in some_reads
        ]


@given(st.data(), ticks, st.integers(0, 2_000), st.lists(st.integers(0, 3_500), min_size=1, max_size=9))
def test_spread_has_the_sizes_of_parts_of_reads(data: st.DataObject, tick: int, begin: int, ends: list[int]) -> None:
    cut = data.draw(reads(tick, data.draw(st.integers(0, 2_000)), 3_000))
    spread = Spread(cut, begin)
    assert [spread.before(end) for end in ends] == [hold(cut, begin, end) for end in ends]


@pytest.mark.parametrize(
    ("most", "expected"),
    [
        (100, 1_000),
        (50, 510),  # the tick in which the fiftieth segment begins is part of it
        (1, 10),  # a tick is never cut
    ],
)
def test_end_is_at_the_limit_of_segments(most: int, expected: int) -> None:
    cut = [read_of(*((10 * number + 1, 10 * number + 5, 1) for number in range(100)), end=1_000)]
    assert choose_end(cut, 0, 1_000, 10, Limits(segments=most)) == expected


def test_enough_segments_are_few() -> None:
    enough = Enough(0, END_OF_TIME, 0, 10, Limits(documents=100))
    stored = [segment(10 * number, 10 * number + 9, 10) for number in range(1_000)]
    taken = list(itertools.takewhile(partial(is_before, enough), stored))
    assert (len(taken), enough.left) == (11, 110)
    enough = Enough(0, END_OF_TIME, 0, 10, Limits(segments=7))
    assert (len(list(itertools.takewhile(partial(is_before, enough), stored))), enough.left) == (8, 80)
