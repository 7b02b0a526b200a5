"""Damaged files: whoever reads one is told which it is, of which collection, and what to do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import apsw
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import LATER, World, write_catalog
from hypothesis import given, settings
from hypothesis import strategies as st

from derive.catalog import load
from derive.contents.reads import ReadOptions, subscribe_at
from derive.document.clock import format_rfc3339
from derive.errors import BusyError, FlowError, SegmentError, SegmentMissingError, StorageError
from derive.position import Position
from derive.protocol.specs import CollectionSpec
from derive.storage.compaction import compact
from derive.storage.metadata.sqlite import SqliteMetadata
from derive.storage.segments.clocks import count_documents, first_clock
from derive.storage.segments.partition import compile_labels
from derive.storage.segments.rows import WrittenRows
from derive.storage.segments.writer import SegmentWriter
from derive.storage.store import Store
from derive.time import END_OF_TIME
from derive.time.positions import Segment, SourceRead

CATALOG = """
collections:
  c/events:
    schema: {type: object, required: [id, at], properties: {id: {type: integer}, at: {type: string}}}
    key: [/id]
  c/copies:
    schema: {type: object, required: [id], properties: {id: {type: integer}}}
    key: [/id]
    derive:
      using: {sqlite: {}}
      transforms: [{name: copy, source: c/events, shuffle: any, lambda: SELECT $id;}]
"""
HINT = "restore it from a backup; what was derived can be derived again: flowctl reset --cascade --task c/events"


def stored(folder: Path) -> tuple[World, Path]:
    """A world with two segments, and the file of the first."""
    world = World(folder / "data", load(write_catalog(folder, CATALOG)))
    for first in (0, 500):
        times = [(number, format_rfc3339(1_000_000 * number)) for number in range(first, first + 500)]
        world.ingest("c/events", [{"id": number, "at": at} for number, at in times])
    world.store.seal(["c/events"], LATER)
    segment = world.store.segments(world.catalog.collections["c/events"])[0]
    return world, world.root / segment.path


def emptied(file: Path) -> None:
    file.write_bytes(b"")


def garbage(file: Path) -> None:
    file.write_bytes(b"garbage" * 1000)


def truncated(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def without_its_footer(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:500])


def sparse(file: Path) -> None:
    file.write_bytes(b"")
    os.truncate(file, 1 << 20)


def with_another_byte(file: Path) -> None:
    content = bytearray(file.read_bytes())
    keys = pq.read_metadata(file).row_group(0).column(3)  # which everybody reads
    assert keys.path_in_schema == "key"
    content[keys.data_page_offset + keys.total_compressed_size // 2] ^= 1
    file.write_bytes(content)


def with_other_columns(file: Path) -> None:
    pq.write_table(pa.table({"id": [1, 2, 3]}), file)


def with_fewer_rows(file: Path) -> None:
    pq.write_table(pq.read_table(file, partitioning=None).slice(0, 10), file)


def made_a_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def removed(file: Path) -> None:
    file.unlink()


def looped(file: Path) -> None:
    file.unlink()
    file.symlink_to(file)


DAMAGES: dict[Callable[[Path], None], str] = {
    emptied: "is damaged: {path}: Parquet file size is 0 bytes",
    garbage: "is damaged: {path}: Parquet magic bytes not found in footer",
    truncated: "is damaged: {path}: Parquet magic bytes not found in footer",
    without_its_footer: "is damaged: {path}: Parquet magic bytes not found in footer",
    sparse: "is damaged: {path}: Parquet magic bytes not found in footer",
    with_another_byte: "is damaged: {path}: could not verify page integrity, CRC checksum verification failed",
    with_other_columns: "is damaged: {path}: it does not hold what was written: 500 documents",
    with_fewer_rows: "is damaged: {path}: it does not hold what was written: 500 documents",
    made_a_folder: "is damaged: {path}: Cannot open for reading: path",
    removed: "is missing: {path}",
    looped: "cannot be read: {path}: Too many levels of symbolic links",
}


def read_all(world: World) -> None:
    world.rows("c/events")


def run(world: World) -> None:
    world.step()


def run_sharded(world: World) -> None:
    world.step(shards=3)


def merge(world: World) -> None:
    compact(world.store, world.catalog.collections["c/events"])


def forget(world: World) -> None:
    compact(world.store, world.catalog.collections["c/events"], since=LATER)


def follow(world: World) -> None:
    for update in subscribe_at(world.store, world.catalog.collections["c/events"], ReadOptions(), lambda: None):
        if isinstance(update, int):
            return


@pytest.mark.sampled(22)
@pytest.mark.parametrize("work", [read_all, run, run_sharded, merge, forget, follow], ids=lambda each: each.__name__)
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda each: each.__name__)
def test_damaged_files_are_named_in_errors(
    damage: Callable[[Path], None], work: Callable[[World], None], tmp_path: Path
) -> None:
    world, file = stored(tmp_path)
    damage(file)

    with pytest.raises(SegmentError) as caught:
        work(world)

    path = str(file.relative_to(world.root))
    assert caught.value.message.startswith("a file of collection 'c/events' " + DAMAGES[damage].format(path=path))
    assert isinstance(caught.value, SegmentMissingError) == (damage is removed)
    if damage is not looped:
        assert caught.value.hint == HINT


def test_restored_file_is_read_again(tmp_path: Path) -> None:
    world, file = stored(tmp_path)
    content = file.read_bytes()
    for damage in (truncated, removed, with_another_byte):
        damage(file)
        with pytest.raises(FlowError):
            world.step()
        file.write_bytes(content)

    world.step()
    assert len(world.rows("c/copies")) == 1000


def test_busy_database_is_a_retryable_error(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    metadata = SqliteMetadata(path, patience=1)
    other = apsw.Connection(str(path))
    other.execute("BEGIN IMMEDIATE")

    with (
        pytest.raises(BusyError, match="another process holds a lock on the database") as caught,
        metadata.transaction(),
    ):
        pass
    assert caught.value.heals
    with pytest.raises(BusyError):
        SqliteMetadata(path, patience=1)
    other.execute("ROLLBACK")
    with metadata.transaction() as db:
        assert db.execute("SELECT count(*) FROM timeline").get == 1
    metadata.close()
    other.close()


_STOPS = """
import os, signal, sys
import apsw
db = apsw.Connection(sys.argv[1])
db.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
db.execute("COMMIT")
"""


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="the system does not tell who holds a lock")
def test_a_stopped_process_that_keeps_a_database_busy_is_named(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    metadata = SqliteMetadata(path, patience=1)
    with subprocess.Popen([sys.executable, "-c", _STOPS, str(path)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        os.waitpid(holder.pid, os.WUNTRACED)

        named = f"process {holder.pid}, which is stopped, holds a lock on the database"
        with pytest.raises(BusyError, match=named) as caught, metadata.transaction():
            pass
        assert caught.value.hint is not None
        assert f"kill -CONT {holder.pid}" in caught.value.hint

        os.kill(holder.pid, signal.SIGCONT)
        assert holder.wait() == 0
    with metadata.transaction() as db:
        assert db.execute("SELECT count(*) FROM timeline").get == 1
    metadata.close()


@pytest.mark.parametrize("damage", ["CREATE TABLE format (x)", "DROP TABLE segment"])
def test_foreign_or_damaged_database_is_reported(damage: str, tmp_path: Path) -> None:
    if damage.startswith("DROP"):
        SqliteMetadata(tmp_path / "metadata.db").close()
    other = apsw.Connection(str(tmp_path / "metadata.db"))
    other.execute(damage)
    other.close()

    with pytest.raises(StorageError, match="is not a complete metadata database of flowctl: no such"):
        Store(tmp_path).collection("c/events")


def test_columns_use_delta_encodings(tmp_path: Path) -> None:
    _, file = stored(tmp_path)

    group = pq.read_metadata(file).row_group(0)

    columns = [group.column(index) for index in range(group.num_columns)]
    assert {column.path_in_schema: set(column.encodings) - {"RLE"} for column in columns} == {
        "clock": {"DELTA_BINARY_PACKED"},
        "seq": {"PLAIN"},
        "diff": {"PLAIN"},
        "key": {"DELTA_BYTE_ARRAY"},
        "doc": {"PLAIN"},
        "at": {"DELTA_BYTE_ARRAY"},
        "id": {"DELTA_BINARY_PACKED"},
        "flow_exact": {"PLAIN"},
    }


# What storage answers about the clocks of a range of time, beside what a look at all documents says.


SPEC = CollectionSpec("c/events", ("/id",), (0,), True, True, (), Position("flow.yaml", 1))


def write(folder: Path, name: str, clocks: list[int]) -> list[Segment]:
    writer = SegmentWriter(folder, SPEC, name)
    documents = [{"id": number} for number in range(len(clocks))]
    keys = [b"%06d" % number for number in range(len(clocks))]
    labels = compile_labels(SPEC)(documents)
    writer.write(WrittenRows.sorted_of(sorted(clocks), [0] * len(clocks), keys, documents, labels))
    return writer.close()


@settings(max_examples=40)
@given(
    st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=20), max_size=4),
    st.integers(0, 70),
    st.integers(0, 70) | st.just(END_OF_TIME),
)
def test_first_timestamp_and_count_cover_all_documents(
    tmp_path_factory: pytest.TempPathFactory, files: list[list[int]], begin: int, end: int
) -> None:
    folder = tmp_path_factory.mktemp("clocks")
    segments = [segment for number, clocks in enumerate(files) for segment in write(folder, f"file-{number}", clocks)]
    read = SourceRead(0, 0, begin, end, tuple(segments)).within(begin, end)

    within = [clock for clocks in files for clock in clocks if begin <= clock < end]
    assert first_clock(folder, read) == min(within, default=None)
    assert count_documents(folder, read) == len(within)


def test_segment_within_the_interval_is_not_opened(tmp_path: Path) -> None:
    segment = Segment("c/events", "there/is/no/such/file.parquet", (), 10, 20, 7, 100)

    assert first_clock(tmp_path, SourceRead(0, 0, 10, 21, (segment,))) == 10
    assert count_documents(tmp_path, SourceRead(0, 0, 10, 21, (segment,))) == 7
