"""Feedback in memory: what a tick publishes is read in the tick in which it is due, whatever fits into memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, count
from pathlib import Path

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from shard_data import SUMS, TICK, Lambdas, derivation, plan_of, shown

from derive.document.key import pack
from derive.protocol.specs import Document
from derive.shard.cycle import Lambdas as OverShards
from derive.shard.cycle import Member, Turns
from derive.shard.cycle_sources import StoredRuns, batch_of, rows_of
from derive.shard.feedback import Backlog, FeedbackQueue, TickPart
from derive.shard.fields import reading_of_documents, source_batch
from derive.shard.invoke import QuarantineWriter
from derive.shard.plan import Cycle, Plan
from derive.shard.published import Combined, Documents
from derive.storage.segments.rows import UNCHECKED, ReadRows, WrittenRows
from derive.storage.segments.sorter import Spill
from derive.storage.segments.writer import SegmentWriter
from derive.time.positions import Segment, SourceRead

SPEC = derivation("s/in", "s/out", schema=SUMS)
READING = reading_of_documents(SPEC)


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
        member = Member(
            plan,
            cycle,
            0,
            OverShards(plan, READING, lambda _: lambdas),
            rows.append,
            spill,
            QuarantineWriter(plan, "cycle", 0),
        )
        member.readers = member.backlogs_of("s/out")
        Turns(plan, [member]).take()
        member.finish()
    return rows, lambdas, member


def test_feedback_is_read_a_tick_later() -> None:
    rows, lambdas, member = run([(1, {"k": 1}), (12, {"k": 1})], end=1000)

    assert shown(rows) == [
        (1, 0, pack([1]), '{"k":1,"n":1}'),
        (12, 0, pack([1]), '{"k":1,"n":3}'),  # 2 of the document at 11, and 1 of that at 12
    ]
    assert lambdas.batches == [[1], [11, 12], [22]]
    assert (member.counter.total, member.positions, member.upper) == (4, {0: 1000, 1: 1000}, 1000)


def test_feedback_due_after_the_end_is_left_to_the_next_transaction() -> None:
    rows, lambdas, member = run([(1, {"k": 1}), (5, {"k": 2})], end=10)

    assert shown(rows) == [(1, 0, pack([1]), '{"k":1,"n":1}'), (5, 0, pack([2]), '{"k":2,"n":1}')]
    assert lambdas.batches == [[1, 5]]
    assert (member.counter.total, member.positions, member.upper) == (2, {0: 10, 1: 10}, 10)


def test_feedback_below_upper_is_moved_to_upper_and_read_a_tick_later() -> None:
    rows, lambdas, _ = run([(1, {"k": 1}), (14, {"k": 2})], end=1000, clamp=23)

    assert [clock for clock, *_ in shown(rows)] == [23, 23, 33, 33]
    assert lambdas.batches == [[1], [14], [33, 33], [43, 43]]


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 2)), max_size=12).map(sorted),
    st.sampled_from([0, 2000, 10_000]),
    st.sampled_from([0, 17]),
)
def test_spilled_feedback_is_unchanged(clocks: list[tuple[int, int]], memory: int, clamp: int) -> None:
    documents: list[tuple[int, Document]] = [(clock, {"k": key}) for clock, key in clocks]
    plain, _, member = run(documents, 1000, clamp=clamp)
    frugal, _, frugal_member = run(documents, 1000, memory, clamp)

    assert shown(frugal) == shown(plain)
    assert frugal_member.counter.total == member.counter.total


def stored_runs(*batches: list[int], plan: Plan | None = None) -> StoredRuns:
    """Stored rows of these clocks, which were read batch by batch."""
    seqs = count()
    parts = [
        ReadRows.of(clocks, [0] * len(clocks), [next(seqs) for _ in clocks], [b""] * len(clocks), ["{}"] * len(clocks))
        for clocks in batches
    ]
    marks = [rows.batch.append_column(UNCHECKED, pa.repeat(pa.scalar(False), len(rows))) for rows in parts]
    return StoredRuns(plan or plan_of(SPEC, Path(), 1000, []), READING, map(ReadRows, marks))


def test_stored_rows_are_taken_up_to_a_time_across_batches() -> None:
    rows = stored_runs([1, 9, 10], [], [11, 35])
    taken = [(rows.first, [part.rows().adjusted.tolist() for part in rows.take(end)]) for end in (10, 10, 20, 100, 100)]

    assert taken == [(1, [[1, 9]]), (10, []), (10, [[10], [11]]), (35, [[35]]), (None, [])]


def order(part: TickPart) -> list[tuple[int, int, int, bytes]]:
    """What orders documents of a part."""
    rows = part if isinstance(part, ReadRows) else rows_of(part)
    return list(zip(*rows.lists(), strict=True))


@given(
    st.lists(st.lists(st.integers(0, TICK - 1), min_size=1, max_size=4), max_size=3),
    st.lists(st.lists(st.tuples(st.integers(0, TICK - 1), st.integers(0, 2)), min_size=1, max_size=6), max_size=3),
    st.integers(1, 30),
    st.booleans(),
)
def test_parts_of_a_tick_have_all_documents_in_order(
    stored: list[list[int]], fed_back: list[list[tuple[int, int]]], few: int, is_spilled: bool
) -> None:
    """Few documents come as runs, whose batch has them in the order that rows have."""
    clocks, seqs = iter(sorted(chain.from_iterable(stored))), count()
    batches = [[TICK + next(clocks) for _ in batch] for batch in stored]
    plan = plan_of(SPEC, Path(), 1000, [])
    memory = 0 if is_spilled else 1 << 20
    with tempfile.TemporaryDirectory() as folder, Spill(Path(folder), memory) as spill:
        backlog = Backlog(plan, SPEC.inputs, READING, iter(()), spill, few)
        backlog._stored = stored_runs(*batches, plan=plan)
        for published in fed_back:
            numbers = [next(seqs) for _ in published]
            keys = [bytes([key]) for _, key in published]
            documents = Documents([{"n": number} for number in numbers])
            at = [clock for clock, _ in published]
            backlog.fed_back.put_all("s/out", Combined(at, numbers, keys, documents, ["[]"] * len(at)), 400 * len(at))
        parts = list(backlog.take(1))
        left = backlog.first

    expected = [(clock, 0, seq, b"") for seq, clock in enumerate(chain.from_iterable(batches))]
    expected += [
        (TICK + clock, 1, number, bytes([key])) for number, (clock, key) in enumerate(chain.from_iterable(fed_back))
    ]
    assert [row for part in parts for row in order(part)] == sorted(expected)
    assert left is None
    for part in parts:
        batch = source_batch(plan, READING, part) if isinstance(part, ReadRows) else batch_of(part, READING)
        numbered = range(len(batch.transforms))
        rows = zip(batch.adjusted.tolist(), batch.transforms, map(batch.key_of, numbered), batch.documents, strict=True)
        assert list(rows) == [
            (clock, which, key, {"n": seq} if which else {}) for clock, which, seq, key in order(part)
        ]


@given(
    st.lists(st.tuples(st.integers(0, 35), st.integers(0, 2)), max_size=30),
    st.integers(1, 10),
    st.sampled_from([0, 5000, 1 << 20]),
)
def test_queue_returns_documents_in_their_due_tick(published: list[tuple[int, int]], cut: int, memory: int) -> None:
    numbered = [(clock, number, bytes([key])) for number, (clock, key) in enumerate(published)]
    with tempfile.TemporaryDirectory() as folder, Spill(Path(folder), memory) as spill:
        queue = FeedbackQueue(SPEC, SPEC.inputs[1:], READING, 40, spill)
        for begin in range(0, len(numbered), cut):
            clocks, seqs, keys = zip(*numbered[begin : begin + cut], strict=True)
            documents = Documents([{"n": seq} for seq in seqs])
            combined = Combined(list(clocks), list(seqs), list(keys), documents, ["[]"] * len(clocks))
            queue.put_all("s/out", combined, 400 * len(clocks))
        taken: list[tuple[int, list[tuple[int, int, int, bytes, Document]]]] = []
        while (first := queue.first) is not None:
            runs, spilled = queue.take(first // TICK)
            parts = [*(run.rows() for run in runs), *map(ReadRows, spilled or ())]
            rows = [row for part in parts for row in zip(*part.lists(), part.documents(), strict=True)]
            taken.append((first, sorted(rows, key=lambda row: row[:4])))

    due = sorted((clock + TICK, 1, seq, key, {"n": seq}) for clock, seq, key in numbered if clock + TICK < 40)
    assert [row for _, rows in taken for row in rows] == due
    assert [first for first, _ in taken] == [rows[0][0] for _, rows in taken]
    assert all(row[0] // TICK == first // TICK for first, rows in taken for row in rows)
