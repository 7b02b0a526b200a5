"""What was there a while ago is known for as long as it is kept, whoever compacts; tables are looked after."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path

import apsw
import pytest
from sql_world import Client, SqlWorld, ingest

from derive.errors import DiskFullError
from derive.protocol.specs import CollectionSpec
from derive.sql.coordinator import Coordinator
from derive.sql.transactions.read_capabilities import ReadCapabilities
from derive.storage.compaction import compact
from derive.storage.store import Store
from derive.storage.table_types import TableColumn


def orders(world: SqlWorld) -> CollectionSpec:
    return world.catalog.collections["shop/orders"]


async def test_recent_times_stay_readable_during_compaction(
    world: SqlWorld, coordinator: Coordinator, client: Client
) -> None:
    coordinator.own()
    ingest(coordinator, [(1, "ann", 10.0)])
    await client.script("CREATE TABLE t (a int); INSERT INTO t VALUES (1)")
    coordinator.maintenance_thread.follow()
    assert await client('SELECT count(*) FROM "shop/orders", t') == [("1",)]
    time = coordinator.timeline.latest
    ingest(coordinator, [(2, "ben", 5.0)])
    await client("INSERT INTO t VALUES (2)")
    assert await client('SELECT count(*) FROM "shop/orders", t') == [("4",)]

    present = coordinator.store.timeline.present()
    table = coordinator.store.tables.find("sql/public/t")
    assert table
    for spec in (orders(world), table.spec):
        done = compact(coordinator.store, spec, since=present)
        assert done is not None
        assert done.since <= time
        assert [reader.purpose for reader in done.held_by] == ["SQL"]
    assert await client(f'SELECT count(*) FROM "shop/orders", t AS OF {time}') == [("1",)]


async def test_dropped_relations_release_capabilities(world: SqlWorld) -> None:
    async with world.served() as (coordinator, client):
        await client("CREATE TABLE t (a int)")
        table = coordinator.store.tables.find("sql/public/t")
        assert table
        coordinator.maintenance_thread.compact()
        await client("DROP TABLE t")
        coordinator.maintenance_thread.compact()
        dropped = coordinator.store.tables.table(table.id)
        assert dropped
        assert dropped.since == dropped.upper

    async with world.opened() as coordinator:
        known = coordinator.store.history.frontiers("shop/orders")
        assert known
        assert known.readers == ()  # who has held it is gone


class Times:
    """A wall clock that tests set."""

    def __init__(self) -> None:
        self.now = 1_000_000_000

    def __call__(self) -> int:
        return self.now


def test_capabilities_advance_up_to_the_oldest_transaction(tmp_path: Path) -> None:
    wall = Times()
    store = Store(tmp_path, wall=wall, durable=False)
    table = store.tables.create("sql/public/t", [TableColumn("a", "bigint", nullable=True)])
    capabilities = ReadCapabilities(store, lambda: [table.id], lambda: 10)

    def held() -> list[int]:
        known = store.history.frontiers("sql/public/t")
        assert known
        return [reader.frontier for reader in known.readers]

    def pass_time(clock: int) -> None:
        wall.now = clock
        store.seal_now(["sql/public/t"])
        capabilities.follow()

    begin = wall.now
    pass_time(begin + 100)
    assert held() == [begin + 90]
    young = asyncio.run(capabilities.acquire(begin + 95))
    assert held() == [begin + 90]  # which costs nothing
    old = asyncio.run(capabilities.acquire(begin + 50))
    assert held() == [begin + 50, begin + 90]
    pass_time(begin + 200)
    assert held() == [begin + 50, begin + 90]  # the least of all that are open
    asyncio.run(capabilities.release(old))
    pass_time(begin + 300)
    assert held() == [begin + 95]
    asyncio.run(capabilities.release(young))
    pass_time(begin + 400)
    assert held() == [begin + 390]
    wall.now = begin + 500
    capabilities.follow()
    assert held() == [begin + 399]  # not beyond the last time that can be read
    capabilities.close()
    assert held() == []
    store.close()


async def test_maintenance_thread_compacts_tables(world: SqlWorld) -> None:
    coordinator = Coordinator(world.data, world.catalog, retention=0)
    try:
        client = Client(coordinator)
        await client("CREATE TABLE t (a int)")
        await client("INSERT INTO t SELECT * FROM generate_series(1, 6000)")
        await client("UPDATE t SET a = a + 10000")
        await client("INSERT INTO t VALUES (1)")
        created = coordinator.store.tables.find("sql/public/t")
        assert created
        coordinator.maintenance_thread.compact()
        assert coordinator.store.tables.read(created.id, 0, created.upper).appended == ()
        known = coordinator.store.collection("sql/public/t")
        assert known
        assert known.documents == 6001  # of 18,001 updates
        assert known.since > created.since
        assert await client("SELECT count(*), min(a), max(a) FROM t") == [("6001", "1", "16000")]
    finally:
        await coordinator.close()


def test_a_capability_that_cannot_be_released_expires(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path, wall=Times(), durable=False)
    table = store.tables.create("sql/public/t", [TableColumn("a", "bigint", nullable=True)])
    capabilities = ReadCapabilities(store, lambda: [table.id], lambda: 10)
    holder = asyncio.run(capabilities.acquire(store.upper(table.name)))

    with monkeypatch.context() as full:
        full.setattr(store.capabilities, "retain", fail)
        asyncio.run(capabilities.release(holder))
    with closing(apsw.Connection(str(tmp_path / "metadata.db"))) as db:
        db.execute("UPDATE capability SET expires = 1")
    capabilities.follow()

    known = store.history.frontiers(table.name)
    assert known is not None
    assert len(known.readers) == 1  # that which follows the present
    capabilities.close()
    store.close()


async def test_a_commit_stands_though_its_capabilities_cannot_be_released(
    monkeypatch: pytest.MonkeyPatch, coordinator: Coordinator, client: Client
) -> None:
    await client("CREATE TABLE t (a int)")
    await client.script("BEGIN", "SELECT a FROM t", "INSERT INTO t VALUES (1)")
    with monkeypatch.context() as full:
        full.setattr(coordinator.store.capabilities, "retain", fail)
        await client("COMMIT")
    assert await client("SELECT a FROM t") == [("1",)]


def fail(*_: object, **__: object) -> None:
    raise DiskFullError("no space left on device")
