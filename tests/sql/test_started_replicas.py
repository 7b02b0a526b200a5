"""A process of a replica that is there before the controller that it is for."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import pytest
from patience import PATIENCE_SECONDS
from sql_world import CATALOG, Client, SqlWorld

from derive.algebra.relation import Finishing, Get
from derive.algebra.types import Row, Type
from derive.compute.protocol.messages import (
    Command,
    CreateDataflows,
    Dataflow,
    FrontierUppers,
    Import,
    Peek,
    PeekResponse,
    Query,
    Report,
    Tail,
    TailResponse,
    Upper,
    Welcome,
)
from derive.sql.catalog.items import ReplicaPlace
from derive.sql.coordinator import Coordinator
from derive.sql.maintenance.controller.reads import PendingPeek
from derive.sql.maintenance.controller.remote import Instances
from derive.sql.maintenance.controller.replica import Replica
from derive.sql.transactions.ownership import Ownership
from derive.storage.store import Store

_PROGRAM = """
import os, sys
with open("began", "a") as began:
    began.write(f"{os.getpid()}\\n")
print("127.0.0.1:9", flush=True)
sys.stdin.read()
"""


def command(folder: Path, token_file: Path) -> Sequence[str]:
    """A process that only says where it is, and which it is."""
    return [sys.executable, "-c", _PROGRAM]


async def began(data: Path, name: str) -> list[int]:
    """The processes that were a replica, once there was one."""
    path = data / "compute" / name / "began"
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not path.exists() or not path.read_text():
            await asyncio.sleep(0.01)
    return [int(line) for line in path.read_text().split()]


def is_there(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


async def test_a_controller_is_connected_to_processes_that_were_started_before_it(tmp_path: Path) -> None:
    instances = Instances(replicas=2, command=command)
    acquired = Ownership(Store(tmp_path))
    acquired.require()
    instances.start(tmp_path)
    before = await began(tmp_path, "r1")
    assert not (tmp_path / "compute" / "r2").exists()  # it would take processors from what is enough for answers
    coordinator = Coordinator(tmp_path, None, instances=instances, ownership=acquired)
    try:
        coordinator.own()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while [state.address for state in coordinator.computing.replicas()] != ["127.0.0.1:9"] * 2:
                await asyncio.sleep(0.01)
        assert await began(tmp_path, "r1") == before
        processes = before + await began(tmp_path, "r2")
    finally:
        await coordinator.close()
    assert len(processes) == 2
    assert not any(map(is_there, processes))


async def test_processes_without_a_controller_are_ended(tmp_path: Path) -> None:
    instances = Instances(replicas=1, command=command)
    instances.start(tmp_path)
    (process,) = await began(tmp_path, "r1")
    assert is_there(process)
    instances.close()
    assert not is_there(process)


# A server that was started again does not work out what its instance is about to answer.


_SILENT = [sys.executable, "-c", "import sys; sys.stdin.read()"]
"""A process that never gets ready to be a replica."""

_LASTING = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("127.0.0.1:9", flush=True)
sys.stdin.read()
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
"""
"""A process that ends once its input is closed and a file exists."""

_HOUR = 3_600_000_000


class Link:
    """A replica that says what a test has it say."""

    is_local = False

    def __init__(self) -> None:
        self.commands: list[Command] = []

    def send(self, command: Command) -> None:
        self.commands.append(command)

    def close(self) -> None:
        """Nothing is open."""

    def dataflows(self) -> list[Dataflow]:
        """What it is told to maintain."""
        created = [command.dataflows for command in self.commands if isinstance(command, CreateDataflows)]
        return [dataflow for dataflows in created for dataflow in dataflows]


async def until(coordinator: Coordinator, holds: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not holds():
            await coordinator.watcher.next.wait()


Restarted: TypeAlias = AbstractAsyncContextManager[tuple[Coordinator, asyncio.Future[list[tuple[str | None, ...]]]]]


@pytest.fixture
def restarted(world: SqlWorld) -> Restarted:
    """A server without an instance that has begun, and a query of what one had before the server was killed."""

    @asynccontextmanager
    async def run() -> AsyncIterator[tuple[Coordinator, asyncio.Future[list[tuple[str | None, ...]]]]]:
        async with world.served() as (_, client):
            await client.script("CREATE TABLE t (a bigint); INSERT INTO t VALUES (1)")
            await client.script("CREATE VIEW v AS SELECT a * 2 AS a FROM t; CREATE INDEX ON v (a)")
        instances = Instances(replicas=1, command=lambda folder, token_file: _SILENT)
        coordinator = Coordinator(world.data, world.catalog, instances=instances)
        try:
            coordinator.own()
            query = asyncio.ensure_future(Client(coordinator)("SELECT a FROM v"))
            await until(coordinator, coordinator.computing.controller.ids)
            for _ in range(3):
                commit = coordinator.watcher.next
                coordinator.store.changes.wake()
                await commit.wait()
            assert not query.done()
            yield coordinator, query
        finally:
            await coordinator.close()

    return run()


async def test_query_of_maintained_relations_waits_for_an_instance(restarted: Restarted) -> None:
    async with restarted as (coordinator, query):
        controller, link = coordinator.computing.controller, Link()
        controller.attach("one", link)
        (dataflow,) = link.dataflows()
        controller.receive(link, Welcome("one", controller.epoch, (dataflow.id,), (), (), (), {}))
        upper = coordinator.store.timeline.present() + _HOUR
        controller.receive(link, FrontierUppers((Upper(dataflow.id, dataflow.as_of, upper, dataflow.number),)))
        controller.receive(link, Report(0, ()))
        await until(coordinator, lambda: any(isinstance(command, Peek) for command in link.commands))
        (peek,) = [command for command in link.commands if isinstance(command, Peek)]
        controller.receive(link, PeekResponse(peek.uuid, [(7,)]))
        assert await query == [("7",)]  # and not 2, which would come of what is stored


async def test_query_is_evaluated_once_an_instance_reports_a_rebuild(restarted: Restarted) -> None:
    async with restarted as (coordinator, query):
        controller, link = coordinator.computing.controller, Link()
        controller.attach("one", link)
        (dataflow,) = link.dataflows()
        controller.receive(link, Welcome("one", controller.epoch, (), (dataflow.id,), (), ("was not there",), {}))
        uppers = FrontierUppers((Upper(dataflow.id, dataflow.as_of, dataflow.as_of, dataflow.number),))
        controller.receive(link, uppers)
        controller.receive(link, Report(0, ()))
        assert await query == [("2",)]


async def test_query_waits_a_bounded_time_for_an_instance(restarted: Restarted) -> None:
    async with restarted as (coordinator, query):
        coordinator.computing.awaited_until = 0.0
        assert await query == [("2",)]


async def test_relations_without_an_instance_are_read_at_once(restarted: Restarted) -> None:
    async with restarted as (coordinator, query):
        client = Client(coordinator)
        assert await client("SELECT a FROM t") == [("1",)]
        assert await client("SELECT v.a, t.a FROM v, t") == [("2", "1")]
        assert not query.done()
        coordinator.computing.awaited_until = 0.0
        assert await query == [("2",)]


# The instance in the server's process hands parts on at once, and others come only where that repeats nothing.


EVERYTHING = Finishing((), None, 0, (0,))
RELATION = Get(1, (Type.BIGINT,))


@dataclass
class FencedLink:
    """A connection that leads nowhere."""

    is_local: bool

    def send(self, command: Command) -> None:
        """Nobody is there."""

    def close(self) -> None:
        """Nothing is open."""


def part(*numbers: int, is_last: bool = False) -> PeekResponse:
    return PeekResponse(7, [(number,) for number in numbers], is_last)


def rows_of(answer: PeekResponse | None) -> list[Row] | None:
    if answer is None:
        return None
    assert isinstance(answer.result, list)
    return answer.result


def test_answer_in_parts_comes_from_one_replica() -> None:
    here, there = Replica("local", FencedLink(is_local=True)), Replica("one", FencedLink(is_local=False))
    peek = Peek(7, Query(RELATION, EVERYTHING), 1)
    begun = PendingPeek(peek, lambda answer: None)
    assert rows_of(begun.take(here, part(1, 2), [here])) == [(1,), (2,)]
    assert begun.is_streamed

    here.link.is_local = False  # type: ignore[misc]
    assert begun.take(here, part(3), [here]) is None
    assert rows_of(begun.take(here, part(4, is_last=True), [here])) == [(3,), (4,)]

    kept = PendingPeek(peek, lambda answer: None)
    assert kept.take(here, part(1), [here]) is None
    here.link.is_local = True  # type: ignore[misc]
    assert kept.take(here, part(2), [here]) is None  # what is kept comes first
    assert rows_of(kept.take(here, part(3, is_last=True), [here])) == [(1,), (2,), (3,)]
    here.link.is_local = False  # type: ignore[misc]

    later = PendingPeek(peek, lambda answer: None)
    assert later.take(here, part(1, 2), [here, there]) is None
    assert not later.is_streamed
    assert later.take(there, part(1), [here, there]) is None
    assert rows_of(later.take(there, part(2, is_last=True), [here, there])) == [(1,), (2,)]


async def test_other_replicas_begin_once_no_snapshot_is_being_sent(tmp_path: Path) -> None:
    world = SqlWorld(tmp_path, CATALOG)
    begun, go_on = threading.Event(), threading.Event()

    def receive(_: TailResponse) -> None:
        begun.set()
        assert go_on.wait(PATIENCE_SECONDS)

    # Its process ends at once, and is started again and again.
    instances = Instances(command=lambda folder, token_file: ["false"])
    coordinator = Coordinator(world.data, world.catalog, instances=instances)
    try:
        client = Client(coordinator)
        await client.script("CREATE TABLE t (a bigint); INSERT INTO t SELECT * FROM generate_series(1, 30000)")
        computing, item = coordinator.computing, coordinator.objects.find(None, "t")
        assert item is not None
        table = coordinator.store.tables.table(item.id)
        assert table is not None
        computing.attach()
        relation, imports = Get(item.id, (Type.BIGINT,)), (Import.of(item.id, table),)
        identifier = computing.controller.new_id()
        tail = Dataflow(identifier, relation, imports, Tail(has_snapshot=True), table.upper - 1)
        await asyncio.to_thread(computing.controller.subscribe, tail, receive)
        assert await asyncio.to_thread(begun.wait, PATIENCE_SECONDS)
        computing.add(ReplicaPlace("one"))
        computing.attach()
        assert [state.name for state in computing.replicas()] == ["local"]
        go_on.set()
        while [state.name for state in computing.replicas()] != ["local", "one"]:
            computing.attach()
            await asyncio.sleep(0.05)
        computing.controller.drop(identifier)

        assert not computing.controller.is_local()
        await asyncio.to_thread(computing.remove, "one")
        computing.attach()
        assert computing.controller.is_local()  # again, as it goes on alone
    finally:
        go_on.set()
        await coordinator.close()


async def test_replica_is_dropped_completely_or_stays(world: SqlWorld) -> None:
    may_end = world.folder / "may_end"
    command = [sys.executable, "-c", _LASTING, str(may_end)]
    instances = Instances(command=lambda folder, token_file: command)
    coordinator = Coordinator(world.data, world.catalog, instances=instances)
    try:
        client, computing = Client(coordinator), coordinator.computing
        await client("CREATE REPLICA one")
        folder = world.data / "compute" / "one"
        while not any(state.address for state in computing.replicas()):
            computing.attach()
            await asyncio.sleep(0.01)
        dropping = asyncio.ensure_future(client.tag("DROP REPLICA one"))
        while "one" in computing.places:
            await asyncio.sleep(0.01)
        dropping.cancel()
        assert [name for name, _ in coordinator.store.sql_catalog.replicas()] == ["one"]  # of whoever is killed now
        creating = asyncio.ensure_future(client.tag("CREATE REPLICA one"))  # behind it
        may_end.touch()
        assert await creating == "CREATE REPLICA"
        assert await dropping == "DROP REPLICA"
        assert [name for name, _ in coordinator.store.sql_catalog.replicas()] == ["one"]
        while not (folder / "token").exists():
            computing.attach()
            await asyncio.sleep(0.01)
    finally:
        await coordinator.close()
