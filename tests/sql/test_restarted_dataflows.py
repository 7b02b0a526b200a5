"""From which time on a controller wants its dataflows: what instances know of them, also when it is started again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from patience import PATIENCE_SECONDS
from sql_world import Client, SqlWorld
from test_views import until_maintained

from derive.compute.protocol.messages import Command, CreateDataflows, FrontierUppers, Upper, Welcome
from derive.errors import DiskFullError
from derive.sql.coordinator import Coordinator
from derive.sql.maintenance.controller.controller import Controller, DataflowCapabilities
from derive.sql.maintenance.controller.remote import Instances
from derive.storage.metadata.owner import Door
from derive.storage.store import Store
from derive.storage.table_types import TableColumn, TableUpdate


class Told:
    """A replica that says what a test says."""

    is_local = False

    def __init__(self, controller: Controller) -> None:
        self._controller, self._commands = controller, list[Command]()
        controller.attach("told", self)
        controller.receive(self, Welcome("told", 1, (), (), ()))

    def send(self, command: Command) -> None:
        self._commands.append(command)

    def close(self) -> None: ...

    def is_at(self, identifier: int, since: int, upper: int) -> None:
        created = [
            one for command in self._commands if isinstance(command, CreateDataflows) for one in command.dataflows
        ]
        (number,) = [dataflow.number for dataflow in created if dataflow.id == identifier]
        self._controller.receive(self, FrontierUppers((Upper(identifier, since, upper, number),)))


def identified(coordinator: Coordinator, *names: str) -> list[int]:
    items = {item.name: item.id for item in coordinator.objects.items.values()}
    return [items[name] for name in names]


@contextmanager
def storage(world: SqlWorld) -> Iterator[Store]:
    with closing(Store(world.data)) as store:
        yield store


async def test_inputs_of_a_view_are_kept_from_a_late_start_of_a_replica(
    coordinator: Coordinator, client: Client
) -> None:
    await client.script("CREATE TABLE t (a int); CREATE MATERIALIZED VIEW v AS SELECT a FROM t")
    await until_maintained(coordinator, "v")
    (view,) = identified(coordinator, "v")
    before = coordinator.store.task_capabilities.dataflows("view")[view]
    table = coordinator.store.tables.table(view)
    assert table is not None
    late = table.upper + 1_000_000
    Told(coordinator.computing.controller).is_at(view, late, late + 1)
    held = before
    async with asyncio.timeout(PATIENCE_SECONDS):
        while held < late:
            commit = coordinator.watcher.next
            held = coordinator.store.task_capabilities.dataflows("view")[view]
            table = coordinator.store.tables.table(view)
            assert table is not None
            assert held < table.upper  # it is written from there on by whoever is started again
            await commit.wait()
    assert held == late


async def test_dataflows_are_not_requested_before_their_capabilities(tmp_path: Path) -> None:
    world = SqlWorld(tmp_path)
    ids: list[int] = []

    async with world.served() as (coordinator, client):
        await client("CREATE TABLE t (a int)")
        for name in ("ahead", "behind"):
            await client(f"CREATE MATERIALIZED VIEW {name} AS SELECT a FROM t")
            await client(f"CREATE INDEX {name}_a ON {name} (a)")
            await until_maintained(coordinator, name)
        ids.extend(identified(coordinator, "ahead", "behind", "ahead_a", "t"))
    ahead, behind, index, source = ids
    with storage(world) as store:
        names = [str(store.tables.name_of(source))]
        late = max(store.upper(name_of(store, view)) for view in (ahead, behind)) + 100
        store.tables.commit([TableUpdate(ahead, store.upper(name_of(store, ahead)), late + 1)], Door.DATAFLOW)
        store.seal(names, late + 100)
        store.task_capabilities.acquire_dataflow_inputs({ahead: (names, late)}, {index: (names, late - 10)})

    async with world.opened() as coordinator:
        coordinator.own()
        await until_maintained(coordinator, "ahead")
        await until_maintained(coordinator, "behind")
        wanted = coordinator.computing.controller.dataflow
        times = [dataflow.as_of for id_ in (ahead, index) if (dataflow := wanted(id_)) is not None]
        assert len(times) == 2
        assert times[0] >= late
        assert times[1] >= late - 10


async def test_new_dataflows_are_not_requested_before_their_creation(tmp_path: Path) -> None:
    nowhere = Instances(replicas=1, command=lambda folder, token_file: ["false"])  # so that nothing is ever written
    coordinator = Coordinator(tmp_path, None, instances=nowhere)
    try:
        client = Client(coordinator)
        await client("CREATE TABLE t (a int)")
        await client("CREATE MATERIALIZED VIEW v AS SELECT a FROM t")
        await client("INSERT INTO t VALUES (1)")
        await client("CREATE MATERIALIZED VIEW w AS SELECT a FROM t")
        (view, new) = identified(coordinator, "v", "w")
        async with asyncio.timeout(PATIENCE_SECONDS):
            while coordinator.computing.controller.dataflow(new) is None:
                await coordinator.watcher.next.wait()
        begun = [table.since for id_ in (view, new) if (table := coordinator.store.tables.table(id_))]
        assert begun[0] < begun[1]
        assert coordinator.store.task_capabilities.dataflows("view") == {view: begun[0], new: begun[1]}
    finally:
        await coordinator.close()


def held(coordinator: Coordinator) -> dict[int, int]:
    """Return the views and indexes with read capabilities, each with the time from which it may read."""
    capabilities = coordinator.store.task_capabilities
    return capabilities.dataflows("view") | capabilities.dataflows("index")


async def test_dataflows_over_dataflows_keep_their_capabilities_after_a_restart(world: SqlWorld) -> None:
    async with world.served() as (coordinator, client):
        await client("CREATE TABLE t (a int)")
        await client("CREATE MATERIALIZED VIEW v AS SELECT a FROM t")
        await client("CREATE MATERIALIZED VIEW w AS SELECT a FROM v")
        await client("CREATE INDEX i ON w (a)")
        await until_maintained(coordinator, "w")
        ids = identified(coordinator, "v", "w", "i")
        async with asyncio.timeout(PATIENCE_SECONDS):
            while held(coordinator).keys() != set(ids):
                await coordinator.watcher.next.wait()
    async with world.opened() as coordinator:
        coordinator.own()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not all(map(coordinator.computing.controller.dataflow, ids)):
                await coordinator.watcher.next.wait()
        assert held(coordinator).keys() == set(ids)


def test_index_dropped_before_a_restart_releases_its_capabilities(tmp_path: Path) -> None:
    with storage(SqlWorld(tmp_path)) as store:
        table = store.tables.create("sql/public/t", [TableColumn("a", "bigint")])
        store.task_capabilities.acquire_dataflow_inputs({}, {one: ([table.name], 100) for one in (7, 8, 9)})
        capabilities = DataflowCapabilities(store, lambda *_: [table.name])
        capabilities.begin([7, 8])
        assert store.task_capabilities.dataflows("index") == {7: 100, 8: 100}
        capabilities.release_dropped([8])
        assert store.task_capabilities.dataflows("index") == {8: 100}


def test_an_index_whose_capabilities_could_not_be_released_is_released_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: int) -> None:
        raise DiskFullError("no space left on device")

    with storage(SqlWorld(tmp_path)) as store:
        table = store.tables.create("sql/public/t", [TableColumn("a", "bigint")])
        store.task_capabilities.acquire_dataflow_inputs({}, {7: ([table.name], 100)})
        capabilities = DataflowCapabilities(store, lambda *_: [table.name])
        capabilities.begin([7])
        with monkeypatch.context() as full:
            full.setattr(store.task_capabilities, "release_index", fail)
            with pytest.raises(DiskFullError):
                capabilities.release(7)
        capabilities.release_dropped([])
        assert store.task_capabilities.dataflows("index") == {}


def name_of(store: Store, identifier: int) -> str:
    name = store.tables.name_of(identifier)
    assert name is not None
    return name


async def test_views_of_the_same_sources_begin_together(tmp_path: Path) -> None:
    world = SqlWorld(tmp_path)
    ids: list[int] = []

    async with world.served() as (coordinator, client):
        await client("CREATE TABLE t (a int)")
        for name in ("ahead", "behind"):
            await client(f"CREATE MATERIALIZED VIEW {name} AS SELECT a FROM t")
            await until_maintained(coordinator, name)
        ids.extend(identified(coordinator, "ahead", "behind"))
    with storage(world) as store:
        uppers: Sequence[int] = [store.upper(name_of(store, view)) for view in ids]
        store.tables.commit([TableUpdate(ids[0], uppers[0], max(uppers) + 100)], Door.DATAFLOW)

    async with world.opened() as coordinator:
        coordinator.own()
        await until_maintained(coordinator, "ahead")
        wanted = coordinator.computing.controller.dataflow
        assert [dataflow.as_of for id_ in ids if (dataflow := wanted(id_))] == [uppers[1] - 1] * 2
