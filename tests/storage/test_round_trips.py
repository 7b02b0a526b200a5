"""Round trips to PostgreSQL: each frequent operation takes one."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import TypeAlias

import pytest
from postgres_proxy import Proxy
from postgres_server import server
from sql_world import SqlWorld

from derive.catalog import load
from derive.errors import FrontierError
from derive.protocol.specs import CatalogSpec
from derive.storage.capability.capabilities import Update
from derive.storage.metadata.descriptions import CollectionUpdate, TaskCommit
from derive.storage.metadata.ingestions import LoadedFile
from derive.storage.metadata.place import VARIABLE, place_of
from derive.storage.metadata.postgres import PostgresMetadata
from derive.storage.metadata.shared_opening import settle_place
from derive.storage.store import Store
from derive.storage.table_types import RowUpdate, TableColumn
from derive.storage.timeline import require_unassigned
from derive.time.positions import Place, Segment

CATALOG = """
collections:
  t/source: &documents
    key: [/id]
    schema: {type: object, required: [id], properties: {id: {type: integer}}}
  t/one: *documents
  t/two: *documents
"""
TASK = "t/task"
CALLS = 4
"""Number of calls, of which the last one is counted: the first ones learn results that rarely change."""

Operation: TypeAlias = Callable[[], object]


def trips_of(store: Store, proxy: Proxy) -> int:
    """Return the number of round trips of a store's transactions so far."""
    metadata = store._metadata
    assert isinstance(metadata, PostgresMetadata)
    with socket.socket(fileno=os.dup(metadata._connection.fileno())) as client:
        return proxy.trips[client.getsockname()[1]]


class Folder:
    """A store behind a proxy that counts its round trips, with a task and three tables."""

    def __init__(self, root: Path, catalog: CatalogSpec, proxy: Proxy) -> None:
        self.proxy, self.store = proxy, Store(root)
        self.store.create(*catalog.collections.values())
        self.run, _ = self.store.acquire_task(TASK, 2, ["t/one", "t/two"])
        self.store.task_capabilities.acquire_inputs(TASK, {"read": ("t/source", 0)}, self.run)
        columns = [TableColumn("id", "INT")]
        self.table, self.other, written = (self.store.tables.create(name, columns).id for name in ("a", "b", "c"))
        self.writer = self.store.capabilities.acquire_write(written)
        self.store.fence.begin()
        self.clock = self.store.timeline.present()

    @property
    def trips(self) -> int:
        """Return the number of round trips so far."""
        return trips_of(self.store, self.proxy)

    def next_clock(self) -> int:
        """Return the next timestamp of a document."""
        self.clock = self.store.timeline.assign(1)
        return self.clock

    def segment(self, name: str) -> Segment:
        """Return a segment with a document at the next timestamp."""
        clock = self.next_clock()
        return Segment(name, f"{name}-{clock}.parquet", (), clock, clock, 1, 1)

    def commit(self, *, documents: int, output: str = "t/one") -> Operation:
        """Return an operation that commits a transaction of the task, with documents of one output."""
        tokens = {shard: f"{self.clock}-{shard}" for shard in range(2 * documents)}
        segments = [self.segment(output) for _ in range(documents)]
        position = self.next_clock()
        progress = TaskCommit(
            {"read": position}, {"read": Place("t/source", 0)}, tokens, documents, documents, {"read": position}
        )
        update = CollectionUpdate(output, segments, position)

        def commit() -> None:
            self.run = self.store.commit_task(self.run, progress, [update])

        return commit

    def append(self) -> Operation:
        """Return an operation that writes a row, as a statement of SQL."""
        clock = self.next_clock()
        return lambda: self.store.tables.append(clock, {self.table: [('{"id":1}', b"k", 1)]}, [self.other])

    def move(self) -> Operation:
        """Return an operation that moves a read capability."""
        capability, clock = self.store.capabilities.acquire_read(self.table), self.next_clock()
        return lambda: self.store.capabilities.downgrade(capability, clock)

    def ingest(self, name: str | None) -> Operation:
        """Return an operation that adds a document, perhaps of a load."""
        capability, segment = self.store.acquire_write("t/source"), self.segment("t/source")
        file = None if name is None else LoadedFile("a.jsonl", f"{name}-{self.clock}", lambda: "")
        return lambda: self.store.update_and_downgrade(capability, [segment], self.clock + 1, is_last=True, file=file)

    def write(self) -> Operation:
        """Return an operation that writes a row with a capability, which it moves."""
        clock = self.next_clock()
        update = Update(self.writer, [RowUpdate(clock, '{"id":1}', b"k", 1)], clock + 1)

        def write() -> None:
            (self.writer,) = self.store.capabilities.update_and_downgrade(update)

        return write


@pytest.fixture
def proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    proxy = Proxy(server().port)
    url = server().metadata_url.replace(f":{server().port}/", f":{proxy.port}/")
    monkeypatch.setenv(VARIABLE, url)
    settle_place(tmp_path / "data", place_of(url), creates=True)
    yield proxy
    proxy.close()


@pytest.fixture
def folder(tmp_path: Path, proxy: Proxy) -> Iterator[Folder]:
    (tmp_path / "flow.yaml").write_text(CATALOG)
    folder = Folder(tmp_path / "data", load(tmp_path / "flow.yaml"), proxy)
    yield folder
    folder.store.close()


def test_frequent_operation_takes_one_round_trip(folder: Folder) -> None:
    store, capabilities = folder.store, folder.store.capabilities
    read, outputs = capabilities.acquire_read(folder.table), cycle(["t/one", "t/two"])
    operations: dict[str, Callable[[], Operation]] = {
        "commit of a task with documents": lambda: folder.commit(documents=1),
        "commit of a task to each output in turn": lambda: folder.commit(documents=1, output=next(outputs)),
        "commit of a task that only advances time": lambda: folder.commit(documents=0),
        "renewal of tasks": lambda: store.renew_tasks,
        "ingestion": lambda: folder.ingest(None),
        "ingestion of a load": lambda: folder.ingest("load"),
        "capability to ingest": lambda: lambda: store.acquire_write("t/source"),
        "commit of rows by SQL": folder.append,
        "write with a capability": folder.write,
        "capability to read": lambda: lambda: capabilities.acquire_read(folder.table),
        "capability to read from a time": lambda: lambda: capabilities.acquire_read(folder.table, folder.clock),
        "capability to write": lambda: lambda: capabilities.acquire_write(folder.table),
        "renewal of a capability": lambda: lambda: capabilities.renew(read),
        "move of a capability": folder.move,
        "drop of a capability": lambda: lambda: capabilities.release(read),
        "assignment of timestamps": lambda: lambda: store.timeline.assign(3),
        "read of the present": lambda: store.timeline.read,
        "look at the present": lambda: store.timeline.present,
        "seal": lambda: lambda: store.seal(["t/source"], folder.clock),
        "seal at the present": lambda: lambda: store.seal_now(["t/source"]),
        "look at an upper": lambda: lambda: store.upper("t/source"),
        "look at a collection": lambda: lambda: store.collection("t/source"),
        "look at a table": lambda: lambda: store.tables.table(folder.table),
        "check of the server's epoch": lambda: store.fence.check,
    }
    trips = {}
    for name, prepare in operations.items():
        for _ in range(CALLS):
            operation = prepare()
            before = folder.trips
            operation()
            trips[name] = folder.trips - before
    assert trips == dict.fromkeys(operations, 1)


async def test_insert_of_sql_takes_one_round_trip(tmp_path: Path, proxy: Proxy) -> None:
    """Neither the time of the commit nor the watchers of commits take another one."""
    async with SqlWorld(tmp_path).served() as (coordinator, client):
        await client("CREATE TABLE t (a int PRIMARY KEY, b int DEFAULT 1)")
        trips = []
        for number in range(3 * CALLS):
            before = trips_of(coordinator.store, proxy)
            await client(f"INSERT INTO t (a) VALUES ({number})")
            trips.append(trips_of(coordinator.store, proxy) - before)
        assert await client("SELECT count(*) FROM t") == [(str(3 * CALLS),)]
    # A few times a second, another thread checks the epoch of the server.
    assert min(trips) == 1
    assert sum(trips[CALLS:]) < 2 * len(trips[CALLS:])


def test_estimated_time_is_not_before_commits_of_others(folder: Folder) -> None:
    """An estimate that another process has passed is refused, and the timeline goes on from there."""
    store, rows = folder.store, {folder.table: [('{"id":1}', b"k", 1)]}
    assert store.timeline.can_estimate
    other = Store(store.root)
    late = store.timeline.estimate() - 1_000
    passed = other.timeline.assign(1)
    with pytest.raises(FrontierError, match="the timeline has passed"):
        store.tables.append(late, rows, is_estimate=True)
    with pytest.raises(FrontierError, match="the timeline has passed"):
        store.tables.append(passed, rows, is_estimate=True)
    clock = max(store.timeline.present(), store.timeline.estimate())
    assert passed < clock < passed + 60_000_000
    store.tables.append(clock, rows, is_estimate=True)
    assert other.timeline.present() > clock
    other.close()


def test_estimated_time_of_a_suspended_machine_is_refused(folder: Folder) -> None:
    """Its monotonic clock stood still, so its estimates are in the past, even if no other process has committed."""
    minute, clock = 60_000_000, folder.store.timeline.present()
    with folder.store.metadata.transaction() as db:
        db.execute("UPDATE timeline SET clock = ?", (clock - 2 * minute,))
    with folder.store.metadata.transaction() as db:
        require_unassigned(db, clock)
        with pytest.raises(FrontierError, match="the timeline has passed"):
            require_unassigned(db, clock - minute)
