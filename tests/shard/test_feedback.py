"""Feedback in memory: what a tick publishes is read in the tick in which it is due, whatever fits into memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shard_data import SUMS, TICK, Lambdas, derivation, plan_of, shown, source_rows_of

from derive.document.key import pack
from derive.protocol.specs import Document
from derive.shard.cycle import Member, Turns
from derive.shard.feedback import Sizes, StoredRows, in_pieces
from derive.shard.feedback_queue import FeedbackQueue, SourceRow
from derive.shard.lambdas import Lambdas as OverShards
from derive.shard.plan import Cycle
from derive.storage.segments.rows import WrittenRows
from derive.storage.segments.spill import Spill
from derive.storage.segments.writer import SegmentWriter
from derive.time.segment import Segment
from derive.time.source_read import SourceRead

SPEC = derivation("s/in", "s/out", schema=SUMS)


def count_up(_: int, document: Document) -> Iterator[Document]:
    """Publish a document with one more in `n`, up to 2."""
    if document.get("n", 0) < 2:
        yield {"k": document["k"], "n": document.get("n", 0) + 1}


def stored(folder: Path, documents: list[tuple[int, Document]]) -> tuple[Segment, ...]:
    """A segment of the source with these documents, if there are any."""
    writer = SegmentWriter(folder, SPEC.sources["s/in"], "source")
    if documents:
        clocks, parsed = zip(*documents, strict=True)
        keys = [pack([document["k"]]) for document in parsed]
        writer.write(WrittenRows.sorted_of(clocks, range(len(clocks)), keys, parsed, ["[]"] * len(clocks)))
    return tuple(writer.close())


def run(
    documents: list[tuple[int, Document]], end: int, memory: int = 1 << 20, clamp: int = 0
) -> tuple[list[WrittenRows], Lambdas, Member]:
    """What a transaction of a derivation that reads itself publishes, its lambdas, and how far it comes."""
    lambdas = Lambdas(count_up)
    rows: list[WrittenRows] = []
    with tempfile.TemporaryDirectory() as name, Spill(Path(name), memory) as spill:
        folder = Path(name)
        read = SourceRead(0, 0, 0, end, stored(folder, documents))
        cycle = Cycle((), ({0: 0, 1: 0},), {"s/in": end}, documents=1000, small=1000)
        plan = replace(plan_of(SPEC, folder, end, [read], clamp), shape="cycle", cycle=cycle)
        member = Member(plan, cycle, 0, OverShards(plan, lambda _: lambdas), rows.append, spill)
        member.readers = member.backlogs_of("s/out")
        Turns(plan, [member]).take()
        member.finish()
    return rows, lambdas, member


def test_what_a_tick_publishes_is_read_a_tick_later() -> None:
    rows, lambdas, member = run([(1, {"k": 1}), (12, {"k": 1})], end=1000)

    assert shown(rows) == [
        (1, 0, pack([1]), '{"k":1,"n":1}'),
        (12, 0, pack([1]), '{"k":1,"n":3}'),  # 2 of the document at 11, and 1 of that at 12
    ]
    assert lambdas.batches == [[1], [11, 12], [22]]
    assert (member.counter.total, member.positions, member.upper) == (4, {0: 1000, 1: 1000}, 1000)


def test_what_is_due_behind_the_end_is_left_to_the_next_transaction() -> None:
    rows, lambdas, member = run([(1, {"k": 1}), (5, {"k": 2})], end=10)

    assert shown(rows) == [(1, 0, pack([1]), '{"k":1,"n":1}'), (5, 0, pack([2]), '{"k":2,"n":1}')]
    assert lambdas.batches == [[1, 5]]
    assert (member.counter.total, member.positions, member.upper) == (2, {0: 10, 1: 10}, 10)


def test_clocks_below_upper_are_moved_up_to_it_and_read_a_tick_after_that() -> None:
    rows, lambdas, _ = run([(1, {"k": 1}), (14, {"k": 2})], end=1000, clamp=23)

    assert [clock for clock, *_ in shown(rows)] == [23, 23, 33, 33]
    assert lambdas.batches == [[1], [14], [33, 33], [43, 43]]


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 2)), max_size=12).map(sorted),
    st.sampled_from([0, 2000, 10_000]),
    st.sampled_from([0, 17]),
)
def test_a_lack_of_memory_changes_nothing(clocks: list[tuple[int, int]], memory: int, clamp: int) -> None:
    documents: list[tuple[int, Document]] = [(clock, {"k": key}) for clock, key in clocks]
    plain, _, member = run(documents, 1000, clamp=clamp)
    frugal, _, frugal_member = run(documents, 1000, memory, clamp)

    assert shown(frugal) == shown(plain)
    assert frugal_member.counter.total == member.counter.total


def rows_at(*clocks: int, transform: int = 0) -> list[SourceRow]:
    return [(clock, transform, seq, b"", {"at": clock}) for seq, clock in enumerate(clocks)]


def test_stored_rows_are_taken_up_to_a_time_across_batches() -> None:
    parts = [source_rows_of([(clock, {"k": 1}) for clock in clocks]) for clocks in ([1, 9, 10], [11, 35])]
    rows = StoredRows(iter(parts))
    taken = [(rows.first, [[row[0] for row in part] for part in rows.take(end)]) for end in (10, 10, 20, 100, 100)]

    assert taken == [(1, [[1, 9]]), (10, []), (10, [[10], [11]]), (35, [[35]]), (None, [])]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        (Sizes(few=3, piece=2), [[1, 2, 3]]),
        (Sizes(few=0, piece=2), [[1, 2], [3]]),
    ],
)
def test_a_tick_of_few_rows_is_one_piece(sizes: Sizes, expected: list[list[int]]) -> None:
    pieces = in_pieces(iter([rows_at(1, 3)]), rows_at(2, transform=1), None, sizes)

    assert [[row[0] for row in rows] for rows in pieces] == expected


@given(
    st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4), max_size=3),
    st.lists(st.integers(0, 9), max_size=6),
    st.none() | st.lists(st.integers(0, 9), max_size=6).map(sorted),
    st.integers(0, 4),
    st.integers(1, 4),
)
def test_pieces_hold_all_rows_of_a_tick_in_order(
    stored: list[list[int]], fed_back: list[int], spilled: list[int] | None, few: int, piece: int
) -> None:
    clocks = iter(sorted(chain.from_iterable(stored)))
    batches = [rows_at(*[next(clocks) for _ in batch]) for batch in stored]
    queued = rows_at(*fed_back, transform=1)
    on_disk = None if spilled is None else rows_at(*spilled, transform=2)

    pieces = list(in_pieces(iter(batches), queued, None if on_disk is None else iter(on_disk), Sizes(few, piece)))

    found = [row[:2] for rows in pieces for row in rows]
    assert found == sorted(row[:2] for row in chain(*batches, queued, on_disk or []))


@given(
    st.lists(st.tuples(st.integers(0, 35), st.integers(0, 2)), max_size=30),
    st.integers(1, 10),
    st.sampled_from([0, 5000, 1 << 20]),
)
def test_the_queue_gives_each_document_in_the_tick_in_which_it_is_due(
    published: list[tuple[int, int]], cut: int, memory: int
) -> None:
    numbered = [(clock, number, bytes([key])) for number, (clock, key) in enumerate(published)]
    with tempfile.TemporaryDirectory() as folder, Spill(Path(folder), memory) as spill:
        queue = FeedbackQueue(SPEC, SPEC.inputs[1:], 40, spill)
        for begin in range(0, len(numbered), cut):
            clocks, seqs, keys = zip(*numbered[begin : begin + cut], strict=True)
            documents = [{"n": seq} for seq in seqs]
            queue.put_all("s/out", (clocks, seqs, keys, documents, ["[]"] * len(clocks)), 400 * len(clocks))
        taken: list[tuple[int, list[SourceRow]]] = []
        while (first := queue.first) is not None:
            rows, spilled = queue.take(first // TICK)
            taken.append((first, sorted([*rows, *(spilled or [])], key=lambda row: row[:4])))

    due = sorted((clock + TICK, 1, seq, key, {"n": seq}) for clock, seq, key in numbered if clock + TICK < 40)
    assert [row for _, rows in taken for row in rows] == due
    assert [first for first, _ in taken] == [rows[0][0] for _, rows in taken]
    assert all(row[0] // TICK == first // TICK for first, rows in taken for row in rows)
