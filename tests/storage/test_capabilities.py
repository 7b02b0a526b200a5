"""Capabilities to read and to write: `since` and files that they keep, and their renewal."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from itertools import islice
from pathlib import Path
from typing import Any
from uuid import UUID

import apsw
import pytest
from conftest import World
from patience import PATIENCE_SECONDS

from derive.contents.reads import ReadOptions, read_rows, reading, subscribe_at
from derive.errors import FencedError, FrontierError, StorageError, UsageError
from derive.protocol.specs import CatalogSpec, CollectionSpec
from derive.storage.capability.renewals import Renewals
from derive.storage.capability.table import renew_all
from derive.storage.compaction import compact
from derive.storage.ingest import Ingestion
from derive.storage.metadata.owner import Door
from derive.storage.metadata.sqlite import SqliteConnection, SqliteMetadata
from derive.storage.metadata.transaction import Transaction
from derive.storage.segments.partition import COMPACTED, INGESTED
from derive.storage.segments.reader import read_sorted
from derive.storage.store import Store
from derive.storage.table_types import TableColumn
from derive.storage.timeline import uptime, wall_clock

pytestmark = pytest.mark.both_databases

CATALOG = """
collections:
  c/events:
    schema: {type: object, required: [id], properties: {id: {type: integer}, at: {type: string}}}
    key: [/id]
"""
NAME = "c/events"


@pytest.fixture
def world(catalog_of: Callable[..., CatalogSpec], tmp_path: Path) -> World:
    world = World(tmp_path / "data", catalog_of(CATALOG), wall=1_000_000)
    world.claim(NAME)
    for number in range(4):
        world.ingest(NAME, [{"id": number}], None, Door.TEST)
        world.wall += 1_000_000
    return world


def spec_of(world: World) -> CollectionSpec:
    return world.catalog.collections[NAME]


def since_of(world: World, wanted: int) -> int:
    done = compact(world.store, spec_of(world), since=wanted, grace=0)
    assert done is not None
    return done.since


def files(world: World) -> list[str]:
    return sorted(each.name.partition("-")[0] for each in world.root.rglob("*.parquet"))


def test_compaction_reports_capabilities_that_keep_since(world: World) -> None:
    world.store.task_capabilities.acquire_inputs("c/task", {"one": (NAME, 3_500_000), "other": (NAME, 2_500_000)})

    done = compact(world.store, spec_of(world), since=4_000_000)

    assert done is not None
    assert [(each.frontier, each.task) for each in done.held_by] == [(2_500_000, "c/task")]


def test_times_before_since_cannot_be_read(world: World) -> None:
    since_of(world, 3_000_000)
    spec = spec_of(world)

    for options in (ReadOptions(as_of=2_999_999), ReadOptions(since=2_999_999)):
        with pytest.raises(
            FrontierError, match="'c/events' is exact from 1970-01-01T00:00:03.000000Z on; .* compacted"
        ):
            list(read_rows(world.store, spec, options))
    assert sum(len(rows) for rows in read_rows(world.store, spec, ReadOptions(as_of=3_000_000))) == 3
    assert sum(len(rows) for rows in read_rows(world.store, spec, ReadOptions(since=3_000_000))) == 2


def test_unstored_collections_cannot_be_read(world: World) -> None:
    with pytest.raises(UsageError, match="nothing is stored in collection 'c/none' yet"):
        world.store.capabilities.keep("c/none", 0)


def test_files_stay_during_reads(world: World) -> None:
    with reading(world.store, spec_of(world), ReadOptions()) as found:
        compact(world.store, spec_of(world), grace=0)
        assert files(world) == ["compact"] + ["ingest"] * 4
        assert sum(len(rows) for rows in read_sorted(world.root, [found.read])) == 4
    compact(world.store, spec_of(world), grace=0)

    assert files(world) == ["compact"]


def test_files_stay_during_reads_though_the_wall_clock_is_set_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    an_hour_ago = wall_clock() - 3_600_000_000
    with reading(world.store, spec_of(world), ReadOptions()) as found:
        monkeypatch.setattr(SqliteConnection, "now", lambda db: an_hour_ago)
        assert compact(world.store, spec_of(world), grace=0) is not None
        world.store.garbage.collect_replaced(wall_clock())
        assert sum(len(rows) for rows in read_sorted(world.root, [found.read])) == 4


def test_idle_task_keeps_no_replaced_files(world: World) -> None:
    writer, _ = world.store.acquire_task(NAME, 1, [NAME])
    world.store.task_capabilities.acquire_inputs(NAME, {"one": (NAME, 1_000_000)})

    compact(world.store, spec_of(world), grace=0)
    assert len(files(world)) == 5
    world.store.release_task(writer)
    compact(world.store, spec_of(world), grace=0)
    assert files(world) == ["compact"]


def test_running_task_keeps_its_capabilities(world: World) -> None:
    writer, _ = world.store.acquire_task(NAME, 1, [NAME])
    world.store.task_capabilities.acquire_inputs(NAME, {"one": (NAME, 1_000_000)})

    assert not world.store.task_capabilities.release_inputs(NAME)
    world.store.release_task(writer)
    assert world.store.task_capabilities.release_inputs(NAME)


def test_a_subscription_continues_where_it_was_and_ends_with_a_reset(world: World) -> None:
    def new_documents() -> None:
        world.ingest(NAME, [{"id": 9}], None, Door.TEST)

    updates = subscribe_at(world.store, spec_of(world), ReadOptions(since=3_000_000), new_documents)

    assert shown(updates, 3) == [[3_000_000], [4_000_000], 4_000_001]
    assert shown(updates, 2) == [[5_000_000], 5_000_001]
    assert since_of(world, 9_000_000) == 3_000_000
    world.store.reset([NAME])
    with pytest.raises(FencedError, match="'c/events' was reset"):
        list(updates)


def shown(updates: Iterator[Any], count: int) -> list[Any]:
    """Clocks of batches, and frontiers."""
    return [each if isinstance(each, int) else each.adjusted.tolist() for each in islice(updates, count)]


def abandoned_file(world: World) -> Path:
    """What an ingestion leaves that was killed on the way, by a process that is gone."""
    capability = world.store.acquire_write(NAME, door=Door.TEST)
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    db = apsw.Connection(str(world.root / "metadata.db"))
    pid = gone.stdout.decode().strip()
    db.execute(
        "UPDATE capability SET holder = substr(holder, 1, instr(holder, ':')) || ? WHERE id = ?", (pid, capability.id)
    )
    db.close()
    file = next(world.root.rglob(f"{INGESTED}*.parquet")).with_name(f"{INGESTED}{capability.id}-0.parquet")
    file.write_bytes(b"torn")
    return file


def test_the_next_ingestion_removes_what_a_crash_left(world: World) -> None:
    file = abandoned_file(world)

    world.store.seal([NAME], 9_000_000)  # ends the lease, and leaves the file
    assert file.exists()
    Ingestion(world.store, spec_of(world), door=Door.TEST)

    assert not file.exists()
    assert len(files(world)) == 4


def test_compaction_removes_files_of_a_crash_and_none_of_a_live_ingestion(world: World) -> None:
    file = abandoned_file(world)
    live = world.store.acquire_write(NAME, door=Door.TEST)
    at_work = file.with_name(f"{INGESTED}{live.id}-0.parquet")
    at_work.write_bytes(b"not finished")
    unknown = [file.with_name(f"{begun}{UUID(int=1)}-0.parquet") for begun in ("", INGESTED, COMPACTED)]
    for path in unknown:
        path.write_bytes(b"newer than the metadata, perhaps")

    compact(world.store, spec_of(world), fewest=9)

    assert [each.exists() for each in (file, *unknown, at_work)] == [False, True, True, True, True]
    assert len(files(world)) == 8


def test_commits_of_a_dead_ingestion_stay(world: World) -> None:
    before = world.rows(NAME)
    ended = [each.name.removeprefix(INGESTED).rpartition("-")[0] for each in world.root.rglob(f"{INGESTED}*.parquet")]
    db = apsw.Connection(str(world.root / "metadata.db"))
    db.executemany("INSERT INTO abandoned VALUES (?, ?)", [(each, NAME) for each in ended])
    db.close()

    assert world.store.garbage.collect_abandoned(NAME) == 0
    assert (len(ended), world.rows(NAME)) == (4, before)


def test_only_one_process_compacts_at_a_time(world: World) -> None:
    with world.store.task_capabilities.compacting() as capability:
        assert capability is not None
        assert compact(world.store, spec_of(world), wait=False) is None

    assert compact(world.store, spec_of(world), wait=False) is not None


@pytest.fixture
def leases(tmp_path: Path) -> Iterator[list[str]]:
    with closing(Store(tmp_path / "data", durable=False)) as store:
        table = store.tables.create("t", (TableColumn("a", "bigint"),))
        yield [store.capabilities.acquire_read(table.id).id for _ in range(20)]


@pytest.fixture
def metadata(tmp_path: Path, leases: list[str]) -> Iterator[SqliteMetadata]:
    with closing(SqliteMetadata(tmp_path / "data" / "metadata.db")) as metadata:
        yield metadata


def age(metadata: SqliteMetadata) -> None:
    with metadata.transaction() as db:
        db.execute("UPDATE capability SET expires = 1")


def old(metadata: SqliteMetadata) -> set[str]:
    with metadata.snapshot() as db:
        return {str(row[0]) for row in db.execute("SELECT id FROM capability WHERE expires = 1").fetchall()}


def wait_until_all_are_renewed(metadata: SqliteMetadata) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while old(metadata):
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_single_thread_renews_all_capabilities(metadata: SqliteMetadata, leases: list[str]) -> None:
    renewals, before = Renewals(metadata, 0.01), threading.active_count()
    with ExitStack() as stack:
        for lease in leases:
            stack.enter_context(renewals.renewed(lease))
        assert threading.active_count() == before + 1
        age(metadata)
        wait_until_all_are_renewed(metadata)
    assert threading.active_count() == before


def test_unneeded_capability_is_not_renewed(metadata: SqliteMetadata, leases: list[str]) -> None:
    renewals = Renewals(metadata, 0.01)
    with renewals.renewed(leases[0]):
        with renewals.renewed(leases[1]):
            pass
        age(metadata)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while leases[0] in old(metadata):
            assert time.monotonic() < deadline
            time.sleep(0.005)
        assert leases[1] in old(metadata)


def test_renewal_of_capabilities_resumes_after_a_time_without_capabilities(
    metadata: SqliteMetadata, leases: list[str]
) -> None:
    renewals = Renewals(metadata, 0.01)
    with renewals.renewed(leases[0]):
        pass
    with ExitStack() as stack:
        for lease in leases:
            stack.enter_context(renewals.renewed(lease))
        age(metadata)
        wait_until_all_are_renewed(metadata)


def test_renewals_continue_after_a_failure(metadata: SqliteMetadata, leases: list[str]) -> None:
    """As while the process has too many open files."""
    failures = iter([OSError(24, "Too many open files"), StorageError("the disk is full")])

    def renew(identifiers: Sequence[str], db: Transaction) -> Callable[[], None]:
        for failure in failures:
            raise failure
        return renew_all(identifiers, db)

    times: list[int] = []
    with Renewals(metadata, 0.01, renew, times.append).renewed(leases[0]):
        age(metadata)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while leases[0] in old(metadata):
            assert time.monotonic() < deadline
            time.sleep(0.005)
    assert times[0] <= uptime()
