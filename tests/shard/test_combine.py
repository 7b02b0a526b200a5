"""Combining per tick and key: in the order of processing, after a shuffle, and on disk it gives the same rows."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shard_data import SUMS, derivation, published_of, shown

from derive.document.key import pack
from derive.errors import ReductionError
from derive.protocol.specs import Document
from derive.shard.tick_combiner import TickCombiner, combine_ticks, gather_ticks
from derive.storage.segments.rows import PublishedRows, WrittenRows
from derive.storage.segments.sorter import Spill
from derive.storage.segments.texts import write_texts

SPEC = derivation("s/in", schema=SUMS)

Documents = list[tuple[int, Document]]
"""Clocks, which ascend, and documents in the order of processing."""

DOCUMENTS = st.lists(
    st.tuples(
        st.integers(0, 35),
        st.fixed_dictionaries(
            {"k": st.integers(0, 3)},
            optional={"n": st.sampled_from([0.1, 0.2, 7]), "list": st.sampled_from([[0], [7]])},
        ),
    ),
    max_size=30,
).map(lambda rows: sorted(rows, key=lambda row: row[0]))


def in_order(parts: Sequence[Documents], memory: int = 1 << 20) -> Iterator[list[WrittenRows]]:
    """What comes of documents that arrive in the order of processing, after each part and at the end."""
    with tempfile.TemporaryDirectory() as folder, Spill(Path(folder), memory) as spill:
        combiner = TickCombiner(SPEC, spill)
        for part in parts:
            yield list(combiner.add(published_of(part)))
        yield list(combiner.close())


def shuffled(documents: Documents, senders: Sequence[int], most_bytes: int, fewest: int) -> list[WrittenRows]:
    """What comes of documents of several senders, each of which sends what is its own in the order of processing."""
    packets = []
    for sender in sorted(set(senders)):
        numbers = [number for number, owner in enumerate(senders[: len(documents)]) if owner == sender]
        for begin in range(0, len(numbers), 4):
            rows = published_rows([(number, *documents[number]) for number in numbers[begin : begin + 4]])
            packets.append((int(rows.clocks[0]), rows))
    packets.sort(key=lambda packet: packet[0])
    with tempfile.TemporaryDirectory() as folder, Spill(Path(folder), most_bytes) as spill:
        return list(combine_ticks(SPEC, gather_ticks(iter(packets), SPEC.tick, most_bytes, fewest), spill))


def published_rows(documents: Sequence[tuple[int, int, Document]]) -> PublishedRows:
    """Rows of number, clock and document; the number alone is their order of processing."""
    numbers, clocks, parsed = zip(*documents, strict=True)
    count = len(numbers)
    keys = [pack([document["k"]]) for document in parsed]
    labels, zeros, source_keys = ["[]"] * count, [0] * count, [b""] * count
    return PublishedRows.from_columns(
        clocks, keys, write_texts(parsed), labels, clocks, zeros, zeros, source_keys, numbers
    )


def cut(documents: Documents, sizes: Sequence[int]) -> list[Documents]:
    borders = [0]
    for size in [*sizes, len(documents)]:
        borders.append(min(borders[-1] + size, len(documents)))
    return [documents[begin:end] for begin, end in pairwise(borders) if begin < end]


def test_documents_of_a_key_and_tick_combine_at_the_last_timestamp() -> None:
    documents = [(1, {"k": 2, "n": 1}), (3, {"k": 1, "n": 1}), (9, {"k": 2, "n": 4}), (10, {"k": 2, "n": 1})]
    expected = [
        (3, 0, pack([1]), '{"k":1,"n":1}'),
        (9, 0, pack([2]), '{"k":2,"n":5}'),
        (10, 0, pack([2]), '{"k":2,"n":1}'),
    ]

    assert shown(rows for parts in in_order([documents]) for rows in parts) == expected
    assert shown(shuffled(documents, [0, 1, 0, 1], 1 << 20, 100)) == expected


def test_separate_documents_are_numbered_at_the_last_timestamp() -> None:
    documents: Documents = [(1, {"k": 1, "list": [0]}), (2, {"k": 1, "list": [7]}), (3, {"k": 1, "n": 1})]
    expected = [(3, 0, pack([1]), '{"k":1,"list":[0]}'), (3, 1, pack([1]), '{"k":1,"list":[7],"n":1}')]

    assert shown(rows for parts in in_order([documents]) for rows in parts) == expected
    assert shown(rows for parts in in_order([documents], memory=0) for rows in parts) == expected
    assert shown(shuffled(documents, [1, 0, 1], 1 << 20, 100)) == expected


def test_rows_of_a_tick_are_yielded_at_the_next_tick() -> None:
    first, second, last = in_order([[(1, {"k": 1})], [(2, {"k": 2}), (10, {"k": 1})]])

    assert shown(first) == []
    assert shown(second) == [(1, 0, pack([1]), '{"k":1}'), (2, 0, pack([2]), '{"k":2}')]
    assert shown(last) == [(10, 0, pack([1]), '{"k":1}')]


@pytest.mark.parametrize("again", [None, 0, 15_999])
def test_large_ticks_are_yielded_in_order(again: int | None) -> None:
    numbers = [*range(30_000)] if again is None else [*range(30_000), again]
    documents: Documents = [(clock, {"k": number, "n": 1}) for clock, number in enumerate(numbers)]
    expected = [(clock, 0, pack([number]), f'{{"k":{number},"n":1}}') for clock, number in enumerate(numbers)]
    if again is not None:
        expected[again : again + 1] = []
        expected[-1] = (30_000, 0, pack([again]), f'{{"k":{again},"n":2}}')
    with tempfile.TemporaryDirectory() as folder, Spill(Path(folder), 1 << 30) as spill:
        combiner = TickCombiner(replace(SPEC, tick=1_000_000), spill)
        for part in cut(documents, [9_000] * 3):
            assert list(combiner.add(published_of(part))) == []
        rows = list(combiner.close())

    assert [len(part) for part in rows] == ([18_000, 12_000] if again is None else [30_000])
    assert shown(rows) == expected


def test_documents_that_cannot_be_combined_are_reported() -> None:
    documents: Documents = [(1, {"k": 1, "n": "text"}), (1, {"k": 1, "n": 1})]

    with pytest.raises(ReductionError, match=r"documents of \[1\] in .*sum"):
        list(in_order([documents]))
    with pytest.raises(ReductionError, match=r"documents of \[1\] in .*sum"):
        shuffled(documents, [0, 1], 1 << 20, 100)


@given(
    DOCUMENTS,
    st.lists(st.integers(1, 8), max_size=6),
    st.lists(st.integers(0, 2), min_size=30, max_size=30),
    st.sampled_from([0, 3000, 1 << 20]),
    st.sampled_from([1, 300, 1 << 20]),
    st.integers(1, 30),
)
def test_shuffles_and_spilling_do_not_change_results(
    documents: Documents, sizes: list[int], senders: list[int], memory: int, most_bytes: int, fewest: int
) -> None:
    plain = shown(rows for parts in in_order([documents] if documents else []) for rows in parts)
    parts = [part for parts in in_order(cut(documents, sizes), memory) for part in parts]

    assert shown(parts) == plain
    assert plain == sorted(plain)
    assert shown(shuffled(documents, senders, most_bytes, fewest)) == plain
