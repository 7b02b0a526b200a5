"""The instance in the server's process hands parts on at once, and others come only where that repeats nothing."""

from __future__ import annotations

import asyncio
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

from sql_world import CATALOG, Client, SqlWorld

from derive.algebra.relation import Finishing, Get
from derive.algebra.types import Row, Type
from derive.compute.protocol.messages import Command, Dataflow, Import, Peek, PeekResponse, Query, Tail, TailResponse
from derive.sql.catalog.replica_place import ReplicaPlace
from derive.sql.coordinator import Coordinator
from derive.sql.maintenance.controller.peeks import PendingPeek
from derive.sql.maintenance.controller.replica import Replica
from derive.sql.maintenance.instance_options import Instances

EVERYTHING = Finishing((), None, 0, (0,))
RELATION = Get(1, (Type.BIGINT,))


@dataclass
class Link:
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


def test_an_answer_in_parts_is_of_one_replica() -> None:
    here, there = Replica("local", Link(is_local=True)), Replica("one", Link(is_local=False))
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


def test_others_begin_once_no_snapshot_is_being_handed_on(tmp_path: Path) -> None:
    world = SqlWorld(tmp_path, CATALOG)
    begun, go_on = threading.Event(), threading.Event()

    def receive(_: TailResponse) -> None:
        begun.set()
        assert go_on.wait(60)

    async def work() -> None:
        # Its process ends at once, and is started again and again.
        instances = Instances(command=lambda folder, token_file: ["false"])
        coordinator = Coordinator(world.data, world.catalog, instances=instances)
        try:
            client = Client(coordinator)
            await client("CREATE TABLE t (a bigint)")
            await client("INSERT INTO t SELECT * FROM generate_series(1, 30000)")
            computing, item = coordinator.computing, coordinator.objects.find(None, "t")
            assert item is not None
            table = coordinator.store.tables.table(item.id)
            assert table is not None
            computing.attach()
            relation, imports = Get(item.id, (Type.BIGINT,)), (Import.of(item.id, table),)
            identifier = computing.controller.new_id()
            tail = Dataflow(identifier, relation, imports, Tail(has_snapshot=True), table.upper - 1)
            await asyncio.to_thread(computing.controller.subscribe, tail, receive)
            assert await asyncio.to_thread(begun.wait, 60)
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

    asyncio.run(asyncio.wait_for(work(), 120))


def test_a_replica_goes_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    world = SqlWorld(tmp_path, CATALOG)

    async def work() -> None:
        # Its process ends only when it is killed.
        endless = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('127.0.0.1:9', flush=True)"
        command = [sys.executable, "-c", f"{endless}; time.sleep(1000)"]
        instances = Instances(command=lambda folder, token_file: command)
        coordinator = Coordinator(world.data, world.catalog, instances=instances)
        try:
            client, computing = Client(coordinator), coordinator.computing
            await client("CREATE REPLICA one")
            folder = world.data / "compute" / "one"
            while not folder.exists():
                computing.attach()
            dropping = asyncio.ensure_future(client.tag("DROP REPLICA one"))
            while "one" in computing.places:
                await asyncio.sleep(0.01)
            dropping.cancel()
            assert [place.name for place in coordinator.catalog.replicas()] == ["one"]  # of whoever is killed now
            assert await client.tag("CREATE REPLICA one") == "CREATE REPLICA"  # behind it
            assert await dropping == "DROP REPLICA"
            assert [place.name for place in coordinator.catalog.replicas()] == ["one"]
            while not (folder / "token").exists():
                computing.attach()
                await asyncio.sleep(0.01)
        finally:
            await coordinator.close()

    asyncio.run(asyncio.wait_for(work(), 120))
