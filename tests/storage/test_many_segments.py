"""Reads of some segments of a collection find the same segments as reads of all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from derive.position import Position
from derive.protocol.specs import CollectionSpec
from derive.storage.compaction import MergeSizes, choose
from derive.storage.metadata.collection import read_collection
from derive.storage.metadata.segment import (
    WindowPlace,
    are_there,
    count_documents_from,
    discard_segments,
    insert_segments,
    iterate_segments,
    read_segments,
    read_window,
    replace_segments,
)
from derive.storage.metadata.sqlite import SqliteConnection, SqliteMetadata
from derive.storage.metadata.tables import bind
from derive.storage.metadata.transaction import Transaction
from derive.storage.store import Store
from derive.time import END_OF_TIME
from derive.time.positions import Segment
from derive.time.segment_columns import SegmentColumns

LARGE = MergeSizes().small_documents
NAMES = ("s/one", "s/two")


def spec_of(name: str) -> CollectionSpec:
    return CollectionSpec(name, ("/id",), (0,), True, True, (), Position("flow.yaml", 1))


spans = st.one_of(st.integers(0, 40), st.sampled_from([15, 16, 255, 256, 4_096, 1 << 40]))
rows = st.lists(
    st.tuples(st.integers(0, 5_000), spans, st.sampled_from([1, 3, LARGE]), st.sampled_from(["a", "b", "ä"])),
    max_size=40,
)


@pytest.fixture(scope="module")
def metadata(tmp_path_factory: pytest.TempPathFactory) -> SqliteMetadata:
    metadata = SqliteMetadata(tmp_path_factory.mktemp("segments") / "metadata.db", durable=False)
    with metadata.transaction() as db:
        for name in NAMES:
            bind(db, spec_of(name))
    return metadata


def rolled_back(metadata: SqliteMetadata, work: Callable[[Transaction], None]) -> None:
    """Do work in a transaction that leaves nothing."""
    with pytest.raises(ZeroDivisionError), metadata.transaction() as db:
        work(db)
        raise ZeroDivisionError


def segments_of(described: list[tuple[int, int, int, str]], name: str = NAMES[0]) -> list[Segment]:
    return [
        Segment(name, f"{name}/{number}", (partition,), clock, clock + span, documents, 7)
        for number, (clock, span, documents, partition) in enumerate(described)
    ]


def sums(db: Transaction, name: str) -> tuple[int, int, int]:
    known = read_collection(db, name)
    assert known is not None
    return known.segments, known.documents, known.bytes


def added(segments: list[Segment]) -> tuple[int, int, int]:
    return len(segments), sum(each.documents for each in segments), sum(each.bytes for each in segments)


@given(rows, rows, st.data())
def test_sums_follow_every_change(metadata: SqliteMetadata, first: Any, second: Any, data: st.DataObject) -> None:
    one, two = segments_of(first), segments_of(second, NAMES[1])
    old = one[: data.draw(st.integers(0, len(one)))]
    new = [Segment(NAMES[0], "new", ("a",), 1, 2, 5, 9)]

    def work(db: Transaction) -> None:
        insert_segments(db, NAMES[0], one)
        insert_segments(db, NAMES[1], two)
        assert (sums(db, NAMES[0]), sums(db, NAMES[1])) == (added(one), added(two))
        replace_segments(db, NAMES[0], old, new)
        kept = [*one[len(old) :], *new]
        assert sums(db, NAMES[0]) == added(kept)
        db.execute("UPDATE segment SET collection = ? WHERE collection = ?", NAMES)
        assert (sums(db, NAMES[0]), sums(db, NAMES[1])) == (added([*kept, *two]), (0, 0, 0))
        discard_segments(db, NAMES[0])
        assert sums(db, NAMES[0]) == (0, 0, 0)
        assert db.execute("SELECT * FROM size").fetchall() == []

    rolled_back(metadata, work)


@given(rows, st.integers(0, 6_000), st.sampled_from([0, 36, 256]))
def test_segments_in_blocks_are_those_of_a_read(metadata: SqliteMetadata, described: Any, begin: int, few: int) -> None:
    def work(db: Transaction) -> None:
        insert_segments(db, NAMES[0], segments_of(described))
        insert_segments(db, NAMES[1], segments_of(described, NAMES[1]))
        blocks, read = list(iterate_segments(db, NAMES[0], begin, few)), read_segments(db, NAMES[0], begin)
        assert [segment for block in blocks for segment in block] == read
        assert all(isinstance(block, SegmentColumns) for block in blocks) == (not read or len(read) > few)

    rolled_back(metadata, work)


@given(rows, st.integers(2, 4))
def test_windows_have_the_groups_of_all_segments(metadata: SqliteMetadata, described: Any, fewest: int) -> None:
    def work(db: Transaction) -> None:
        insert_segments(db, NAMES[0], segments_of(described))
        window = read_window(db, NAMES[0], fewest, WindowPlace(), 1_000)
        assert window.end is None
        assert choose(window.segments, fewest) == choose(read_segments(db, NAMES[0], 0), fewest)

    rolled_back(metadata, work)


@given(rows, st.integers(1, 5))
def test_windows_follow_one_another(metadata: SqliteMetadata, described: Any, most: int) -> None:
    """Together they have every small segment once, in order."""

    def work(db: Transaction) -> None:
        insert_segments(db, NAMES[0], segments_of(described))
        place: WindowPlace | None = WindowPlace()
        small = []
        while place is not None:
            window = read_window(db, NAMES[0], 1, place, most)
            place = window.end
            several = [each for each in window.segments if each.documents < LARGE]
            assert len(several) <= most
            small += several
        all_small = [each for each in read_segments(db, NAMES[0], 0) if each.documents < LARGE]
        assert small == sorted(all_small, key=lambda each: each.partition[0])

    rolled_back(metadata, work)


def test_sums_of_an_older_folder_are_counted_once(tmp_path: Path) -> None:
    """An older release of the format has written it; a user who may only read it gets the same sums."""
    Store(tmp_path, durable=False).close()
    db = SqliteConnection(str(tmp_path / "metadata.db"))
    for trigger in ("added", "deleted", "moved"):
        db.execute(f"DROP TRIGGER segment_{trigger}")
    db.execute("DROP TABLE size; DROP INDEX segment_by_span; DROP INDEX segment_by_size").fetchall()
    bind(db, spec_of(NAMES[0]))
    insert_segments(db, NAMES[0], segments_of([(1, 1, 3, "a"), (2, 1, 4, "b")]))
    db.close()

    reading = SqliteMetadata(tmp_path / "metadata.db", access="read")
    with reading.snapshot() as snapshot:
        assert sums(snapshot, NAMES[0]) == (2, 7, 14)
    reading.close()
    for _ in range(2):
        store = Store(tmp_path, durable=False)
        known = store.collection(NAMES[0])
        store.close()
        assert known is not None
        assert (known.segments, known.documents, known.bytes) == (2, 7, 14)


@given(rows, st.integers(0, 5_000), st.integers(0, 6_000))
def test_counts_of_documents_agree_with_the_segments(
    metadata: SqliteMetadata, described: list[tuple[int, int, int, str]], begin: int, end: int
) -> None:
    segments = segments_of(described)

    def work(db: Transaction) -> None:
        insert_segments(db, NAMES[0], segments)
        insert_segments(db, NAMES[1], segments_of(described, NAMES[1]))
        for least, most in ((begin, end), (begin, END_OF_TIME), (0, END_OF_TIME)):
            read = read_segments(db, NAMES[0], least, most)
            count = count_documents_from(db, NAMES[0], least, most)
            assert count == sum(segment.documents for segment in read)
            of_one = count_documents_from(db, NAMES[0], least, most, lambda values: values == ("a",))
            assert of_one == sum(segment.documents for segment in read if segment.partition == ("a",))

    rolled_back(metadata, work)


@pytest.mark.parametrize(("name", "number"), [(NAMES[0], 3), (NAMES[0], 1_199), (NAMES[1], 0)])
def test_many_segments_are_there_unless_one_is_missing(metadata: SqliteMetadata, name: str, number: int) -> None:
    segments = segments_of([(clock, 1, 1, "a") for clock in range(1_200)])

    def look(db: Transaction) -> None:
        insert_segments(db, NAMES[0], segments)
        assert are_there(db, NAMES[0], segments)
        assert are_there(db, NAMES[0], [])
        if name == NAMES[0]:
            replace_segments(db, name, segments[number : number + 1], [])
        assert not are_there(db, name, segments)

    rolled_back(metadata, look)


@pytest.mark.both_databases
def test_many_segments_are_read_in_blocks(tmp_path: Path) -> None:
    described = [(7 * number % 5_000, (0, 3, 15, 16, 300, 1 << 40)[number % 6], 1, "a") for number in range(600)]
    store = Store(tmp_path)
    with store.metadata.transaction() as db:
        for name in NAMES:
            bind(db, spec_of(name))
            insert_segments(db, name, segments_of(described, name))
    with store.metadata.snapshot() as db:
        for begin in (0, 2_500, 4_990, 1 << 41):
            blocks = list(iterate_segments(db, NAMES[0], begin, 30))
            assert [segment for block in blocks for segment in block] == read_segments(db, NAMES[0], begin)
            assert len(blocks) > 1 or begin == 1 << 41
    store.close()
