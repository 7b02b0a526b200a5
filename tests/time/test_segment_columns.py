"""Segments as columns: every use of them has the result of the same segments as objects."""

from __future__ import annotations

import pickle
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from time_specs import limits, reads, segments

from derive.time.extent import Enough, Limits, choose_end, is_one_tick, size_of, slice_borders
from derive.time.positions import Segment, SourceRead
from derive.time.segment_columns import SegmentColumns

PARTITIONS = [(), (1,), (True,), ("a", None)]


def in_columns(read: SourceRead) -> SourceRead:
    return replace(read, segments=SegmentColumns.of(read.segments))


def in_objects(read: SourceRead) -> SourceRead:
    return replace(read, segments=tuple(read.segments))


@given(st.data(), st.sampled_from([1, 10, 1_000]), limits, st.integers(0, 2_500), st.integers(0, 2_500))
def test_columns_plan_the_transactions_of_objects(
    data: st.DataObject, tick: int, most: Limits, begin: int, end: int
) -> None:
    """Law: the size, the parts, the end and the slices of a read do not depend on the form of its segments."""
    bound = 200 * tick
    objects = data.draw(reads(tick, 0, bound))
    columns = [in_columns(read) for read in objects]

    assert [in_objects(read.within(begin, end)) for read in columns] == [read.within(begin, end) for read in objects]
    assert size_of(columns) == size_of(objects)
    assert choose_end(columns, 0, bound, tick, most) == choose_end(objects, 0, bound, tick, most)
    assert slice_borders(columns, bound, tick, 0, 3, most) == slice_borders(objects, bound, tick, 0, 3, most)
    if any(read.segments for read in objects):
        assert is_one_tick(columns, tick) == is_one_tick(objects, tick)


@given(segments(), st.integers(1, 4), limits, st.sampled_from([0, 900]))
def test_blocks_of_columns_are_enough_soon_after_objects(
    stored: list[Segment], size: int, most: Limits, begin: int
) -> None:
    """Law: blocks that are taken have all segments that are taken one by one, and at most a block more."""
    stored = sorted((one for one in stored if one.clock_max >= begin), key=lambda one: one.clock_min)
    single, several = Enough(begin, 10_000, 7, 10, most), Enough(begin, 10_000, 7, 10, most)
    alone = next((place for place, one in enumerate(stored) if single(one)), len(stored))
    columns = SegmentColumns.of(stored)
    blocks = [columns[first : first + size] for first in range(0, len(columns), size)]
    taken = next((place for place, block in enumerate(blocks) if several.takes(block)), len(blocks))

    assert alone <= taken * size
    if taken < len(blocks):
        assert several.left == stored[taken * size].clock_min


@given(segments(), st.lists(st.booleans(), min_size=40, max_size=40))
def test_columns_are_a_sequence(stored: list[Segment], chosen: list[bool]) -> None:
    import numpy as np

    stored = [one._replace(partition=PARTITIONS[place % 4]) for place, one in enumerate(stored)]
    columns = SegmentColumns.of(stored)
    assert (list(columns), len(columns), list(columns[1:3])) == (stored, len(stored), stored[1:3])
    assert [columns[place] for place in range(-len(stored), len(stored))] == stored + stored
    assert list(pickle.loads(pickle.dumps(columns))) == stored
    assert list(SegmentColumns.joined([columns, columns[:2]])) == stored + stored[:2]
    some = columns.chosen(np.array(chosen[: len(stored)], dtype=np.bool_))
    assert list(some) == [one for one, is_chosen in zip(stored, chosen, strict=False) if is_chosen]


def test_selection_distinguishes_equal_values_of_partitions() -> None:
    stored = [Segment("c", f"{place}.parquet", PARTITIONS[place % 4], place, place, 1, 1) for place in range(8)]
    selected = SegmentColumns.of(stored).selected(lambda values: values == (1,) and values[0] is not True)
    assert [one.path for one in selected] == ["1.parquet", "5.parquet"]
