"""Tables: commits over several of them, names and identifiers, and rows that are in segments or not yet."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from pathlib import Path

import apsw
import orjson
import pytest
from conftest import World, define
from reduction_oracle import contents_in_memory

from derive import failpoint
from derive.contents.reads import ReadOptions, read_rows
from derive.contents.table_updates import read_updates
from derive.document.key import pack
from derive.errors import DiskFullError, FrontierError, StorageError, UsageError
from derive.protocol.specs import CatalogSpec
from derive.relations.table_rows import rows_of
from derive.storage.compaction import compact
from derive.storage.metadata.definitions import Definitions
from derive.storage.segments.rows import with_deletions
from derive.storage.store import Store
from derive.storage.table_compaction import TableCompaction
from derive.storage.table_types import RowUpdate, Table, TableColumn, TableUpdate
from derive.storage.tables import MANY_ROWS, Change, TableFiles
from derive.time import END_OF_TIME

pytestmark = pytest.mark.both_databases

COLUMNS = (TableColumn("id", "bigint", nullable=False), TableColumn("v", "double precision"))
CATALOG = """
collections:
  a/source:
    schema: {type: object, required: [id], properties: {id: {type: integer}}}
    key: [/id]
"""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "data", wall=lambda: 1_000, durable=False)


def row(number: int, value: float | str, diff: int = 1) -> Change:
    return orjson.dumps({"id": number, "v": value}).decode(), pack([number]), diff


def contents(store: Store, table: Table, as_of: int) -> list[dict[str, object]]:
    rows = read_rows(store, table.spec, ReadOptions(as_of=as_of))
    return [document for _, document in contents_in_memory(table.spec, rows)]


def test_write_back_states_its_previous_frontier(store: Store) -> None:
    table = store.tables.create("sql/public/mv", COLUMNS)
    text, key, diff = row(1, 1)
    updates = (RowUpdate(1_005, text, key, diff), RowUpdate(1_010, text, key, -diff))
    store.tables.commit([TableUpdate(table.id, 1_000, 1_020, updates)])

    with pytest.raises(FrontierError):
        store.tables.commit([TableUpdate(table.id, 1_000, 1_030)])

    assert [contents(store, table, clock) for clock in (1_004, 1_005, 1_010)] == [[], [{"id": 1, "v": 1}], []]


def test_l4_updates_of_one_time_are_ordered_in_segments_and_metadata(store: Store) -> None:
    table = store.tables.create("sql/public/t", COLUMNS)
    capability = store.capabilities.acquire_write(table.id)
    for number in range(4):
        store.tables.append(2_000, {table.id: [row(1, number), row(2, number)]})
        if number % 2:
            store.tables.flush()
    store.capabilities.release(capability)
    store.tables.append(2_001, {}, advance=[table.id])
    rows = [row for rows in read_rows(store, table.spec, ReadOptions()) for row in rows.tuples()]

    assert [seq for _, seq, _, _ in rows] == list(range(8))
    assert [orjson.loads(text)["v"] for _, _, _, text in rows] == [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize("others", [0, MANY_ROWS])
def test_retractions_precede_insertions_of_a_time(store: Store, others: int) -> None:
    table = store.tables.create("sql/public/t", COLUMNS)
    store.tables.append(2_000, {table.id: [row(1, 7), row(2, 8)]})
    moved = [row(2, 7), row(1, 7, -1), row(1, 5), row(2, 8, -1), *(row(9, float(number)) for number in range(others))]
    store.tables.append(3_000, {table.id: moved})

    texts = [with_deletions(rows).texts.to_pylist() for rows in read_rows(store, table.spec, ReadOptions())]
    assert [text for part in texts for text in part][:6] == [
        '{"id":1,"v":7}',
        '{"id":2,"v":8}',
        '{"id":1,"v":7,"_meta":{"op":"d"}}',
        '{"id":2,"v":8,"_meta":{"op":"d"}}',
        '{"id":2,"v":7}',
        '{"id":1,"v":5}',
    ]


@pytest.mark.sampled(1)
def test_many_rows_of_one_commit_become_a_segment(store: Store) -> None:
    table = store.tables.create("sql/public/t", COLUMNS)
    store.tables.append(2_000, {table.id: [row(number, 1) for number in range(MANY_ROWS)]})
    read = store.tables.read(table.id, 0, 3_000)

    assert (len(read.segments), read.appended) == (1, ())
    assert len(contents(store, table, 2_000)) == MANY_ROWS

    with pytest.raises(FrontierError):
        store.tables.append(2_000, {table.id: [row(number, 1) for number in range(MANY_ROWS)]})

    assert len(list(store.root.rglob("*.parquet"))) == 1
    assert store.history.frontiers(table.name) is not None


class Interrupted:
    """A commit signal at which Ctrl-C is pressed, directly after a commit."""

    def send(self) -> None:
        raise KeyboardInterrupt

    def listener(self) -> AbstractContextManager[None]:
        return nullcontext()

    def close(self) -> None:
        pass


def test_segment_of_an_interrupted_process_stays_after_its_commit(store: Store) -> None:
    table = store.tables.create("sql/public/t", COLUMNS)
    store._metadata.commit_signal = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        store.tables.append(2_000, {table.id: [row(number, 1) for number in range(MANY_ROWS)]})
    assert len(contents(store, table, 2_000)) == MANY_ROWS


def test_rows_of_many_commits_become_a_segment(store: Store) -> None:
    table = store.tables.create("sql/public/t", COLUMNS)
    for clock in (2_000, 2_001, 2_002):
        store.tables.append(clock, {table.id: [row(number, 1) for number in range(MANY_ROWS // 2)]})
    read = store.tables.read(table.id, 0, 3_000)

    assert [segment.documents for segment in read.segments] == [MANY_ROWS // 2 * 2]
    assert len(read.appended) == MANY_ROWS // 2


def test_commit_succeeds_although_its_rows_cannot_be_written_to_a_segment(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise DiskFullError("no space left on device")

    table = store.tables.create("sql/public/t", COLUMNS)
    with monkeypatch.context() as full:
        full.setattr(TableFiles, "write", fail)
        for clock in (2_000, 2_001):
            store.tables.append(clock, {table.id: [row(number, 1) for number in range(MANY_ROWS // 2)]})
    assert len(store.tables.read(table.id, 0, 3_000).appended) == MANY_ROWS // 2 * 2

    assert store.tables.flush() == MANY_ROWS // 2 * 2


def test_row_count_may_exceed_the_limit_of_a_segment(store: Store) -> None:
    table = store.tables.create("sql/public/t", COLUMNS)
    store.tables.append(2_000, {table.id: [row(1, 1, 300)]})
    store.tables.append(2_001, {table.id: [row(1, 1, -299)]})
    store.tables.flush()

    assert len(contents(store, table, 2_000)) == 300
    assert contents(store, table, 2_001) == [{"id": 1, "v": 1}]


def test_dropped_table_frees_its_name(store: Store) -> None:
    table = store.tables.create("sql/public/t", COLUMNS)
    store.tables.append(2_000, {table.id: [row(1, 1)]})
    lease = store.capabilities.acquire_read(table.id, 2_000)
    define(store, Definitions(dropped=(table.id,)))
    assert (store.tables.find(table.name), store.upper(table.name)) == (None, END_OF_TIME)
    with pytest.raises(StorageError, match="was dropped"):
        store.tables.append(3_000, {table.id: [row(2, 2)]})

    other = store.tables.create("sql/public/t", COLUMNS)
    store.tables.append(3_000, {other.id: [row(7, 7)]}, advance=[table.id])
    assert other.id > table.id
    assert contents(store, other, 3_000) == [{"id": 7, "v": 7}]
    former = store.tables.table(table.id)
    assert former is not None
    assert contents(store, former, 2_000) == [{"id": 1, "v": 1}]

    store.capabilities.release(lease)
    store.tables.forget_unread()
    former = store.tables.table(table.id)
    assert former is not None
    assert former.since == END_OF_TIME
    assert store.tables.read(table.id, 0, END_OF_TIME).segments == ()


def test_renamed_table_keeps_its_rows(store: Store) -> None:
    table = store.tables.create("sql/public/t", COLUMNS)
    store.tables.append(2_000, {table.id: [row(1, 1)]})
    store.tables.flush()
    lease = store.capabilities.acquire_read(table.id, 2_000)
    define(store, Definitions(renamed={table.id: "sql/public/u"}))
    other = store.tables.create("sql/public/t", COLUMNS)
    renamed = store.tables.find("sql/public/u")
    assert renamed is not None
    assert renamed.id == table.id
    compact(store, other.spec, grace=0)
    assert contents(store, renamed, 2_000) == [{"id": 1, "v": 1}]
    store.capabilities.release(lease)

    with pytest.raises(UsageError, match="table 'sql/public/t' exists already"):
        define(store, Definitions(renamed={table.id: "sql/public/t"}))


def test_catalog_collections_have_identifiers(catalog_of: Callable[..., CatalogSpec], tmp_path: Path) -> None:
    world = World(tmp_path / "data", catalog_of(CATALOG), wall=1_000)
    world.store.create(*world.catalog.collections.values())
    table = world.store.tables.create("sql/public/t", COLUMNS)

    assert world.store.tables.id_of("a/source") == 1
    assert (table.id, *world.store.tables.new_ids(2)) == (2, 3, 4)
    assert world.store.tables.name_of(1) == "a/source"
    declared = world.store.tables.create("a/source", COLUMNS, key=["v"])
    assert (declared.key, world.store.tables.find("a/source")) == (("/v",), declared)


def test_name_of_a_written_collection_cannot_be_taken(catalog_of: Callable[..., CatalogSpec], tmp_path: Path) -> None:
    world = World(tmp_path / "data", catalog_of(CATALOG), wall=1_000)
    table = world.store.tables.create("sql/public/t", COLUMNS)
    world.ingest("a/source", [{"id": 1}], None)

    with pytest.raises(UsageError, match="collection 'a/source' exists already"):
        world.store.tables.create("a/source", COLUMNS, key=["v"])
    with pytest.raises(UsageError, match="collection 'a/source' exists already"):
        world.define(Definitions(renamed={table.id: "a/source"}))
    assert world.store.tables.name_of(table.id) == "sql/public/t"


def test_row_inserted_and_retracted_at_one_time_is_not_stored(store: Store) -> None:
    """A reader is told of retractions first, so it would keep the row."""
    table = store.tables.create("sql/public/t", COLUMNS)
    store.tables.append(
        1_001, {table.id: [row(1, 1), row(2, 1), row(3, 1, 2), row(1, 1, -1), row(3, 1, -1), row(1, 9)]}
    )

    updates = [(update.diff, orjson.loads(update.text)) for update in read_updates(store, table.id, 0, 2_000)]
    assert sorted(updates, key=str) == [(1, {"id": key, "v": value}) for key, value in ((1, 9), (2, 1), (3, 1))]


def test_file_is_written_again_after_its_capability_expired(store: Store) -> None:
    table = store.tables.create("sql/public/t", COLUMNS)
    store.tables.append(1_001, {table.id: [row(1, 2.5)]})
    child = os.fork()
    if child == 0:
        failpoint.arm("segment.closed:1:pause")
        with suppress(BaseException):
            other = Store(store.root, wall=lambda: 1_000, durable=False)
            os._exit(0 if other.tables.flush() == 1 else 1)
        os._exit(2)
    os.waitpid(child, os.WUNTRACED)
    with closing(apsw.Connection(str(store.root / "metadata.db"))) as db:
        db.execute("UPDATE capability SET expires = 1")
    store.tables.forget_unread()  # drops leases that have ended
    os.kill(child, signal.SIGCONT)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert store.tables.flush() == 0
    assert contents(store, table, 1_001) == [{"id": 1, "v": 2.5}]


def test_compaction_keeps_times_of_read_capabilities(store: Store) -> None:
    table = store.tables.create("sql/public/t", COLUMNS)
    compaction = TableCompaction(store, grace=0)
    for clock in range(2_000, 2_020):
        diff = 1 if clock % 2 == 0 else -1
        store.tables.append(clock, {table.id: [row(number, 1, diff) for number in range(600)]})
    lease = store.capabilities.acquire_read(table.id, 2_010)
    compaction.compact(2_015)
    assert len(contents(store, table, 2_010)) == 600
    with pytest.raises(FrontierError):
        contents(store, table, 2_009)
    held = store.collection(table.name)
    assert held is not None
    assert (held.since, held.documents) == (2_010, 10 * 600)

    store.capabilities.release(lease)
    compaction.compact(2_015)
    held = store.collection(table.name)
    assert held is not None
    assert held.since == 2_010  # it has not grown


def test_rows_of_a_table_without_columns_have_no_placeholder() -> None:
    rows = rows_of(Table(1, "t", (), (), 0, 0))
    assert rows.changes([((None,), 1), ((), -1)]) == [("{}", b"", 1), ("{}", b"", -1)]
    assert rows.rows(["{}", "{}"]) == [(), ()]
