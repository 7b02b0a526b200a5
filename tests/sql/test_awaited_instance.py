"""A server that was started again does not work out what its instance is about to answer."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from sql_world import CATALOG, Client, SqlWorld

from derive.compute.protocol.messages import (
    Command,
    CreateDataflows,
    Dataflow,
    FrontierUppers,
    Peek,
    PeekResponse,
    Report,
    Upper,
    Welcome,
)
from derive.sql.coordinator import Coordinator
from derive.sql.maintenance.instance_options import Instances

_SILENT = [sys.executable, "-c", "import sys; sys.stdin.read()"]
"""A process that never gets ready to be a replica."""

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
    async with asyncio.timeout(60):
        while not holds():
            await coordinator.watcher.next.wait()


def restarted(
    folder: Path, work: Callable[[Coordinator, asyncio.Future[list[tuple[str | None, ...]]]], Awaitable[None]]
) -> None:
    """A server without an instance that has begun, and a query of what one had before the server was killed."""
    world = SqlWorld(folder, CATALOG)
    world.script(
        "CREATE TABLE t (a bigint)",
        "INSERT INTO t VALUES (1)",
        "CREATE VIEW v AS SELECT a * 2 AS a FROM t",
        "CREATE INDEX ON v (a)",
    )

    async def run() -> None:
        instances = Instances(replicas=1, command=lambda folder, token_file: _SILENT)
        coordinator = Coordinator(world.data, world.catalog, instances=instances)
        try:
            coordinator.own()
            query = asyncio.ensure_future(Client(coordinator)("SELECT a FROM v"))
            await until(coordinator, coordinator.computing.controller.ids)
            for _ in range(3):
                await coordinator.watcher.next.wait()
            assert not query.done()
            await work(coordinator, query)
        finally:
            await coordinator.close()

    asyncio.run(asyncio.wait_for(run(), 120))


def test_a_query_of_what_was_maintained_waits_for_an_instance(tmp_path: Path) -> None:
    async def work(coordinator: Coordinator, query: asyncio.Future[list[tuple[str | None, ...]]]) -> None:
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

    restarted(tmp_path, work)


def test_a_query_waits_for_an_instance_that_has_to_begin_anew_no_longer_than_until_it_says_so(tmp_path: Path) -> None:
    async def work(coordinator: Coordinator, query: asyncio.Future[list[tuple[str | None, ...]]]) -> None:
        controller, link = coordinator.computing.controller, Link()
        controller.attach("one", link)
        (dataflow,) = link.dataflows()
        controller.receive(link, Welcome("one", controller.epoch, (), (dataflow.id,), (), ("was not there",), {}))
        uppers = FrontierUppers((Upper(dataflow.id, dataflow.as_of, dataflow.as_of, dataflow.number),))
        controller.receive(link, uppers)
        controller.receive(link, Report(0, ()))
        assert await query == [("2",)]

    restarted(tmp_path, work)


def test_a_query_does_not_wait_for_long_for_an_instance_that_does_not_come(tmp_path: Path) -> None:
    async def work(coordinator: Coordinator, query: asyncio.Future[list[tuple[str | None, ...]]]) -> None:
        coordinator.computing.awaited_until = 0.0
        assert await query == [("2",)]

    restarted(tmp_path, work)


def test_what_no_instance_is_to_have_is_read_at_once(tmp_path: Path) -> None:
    async def work(coordinator: Coordinator, query: asyncio.Future[list[tuple[str | None, ...]]]) -> None:
        client = Client(coordinator)
        assert await client("SELECT a FROM t") == [("1",)]
        assert await client("SELECT v.a, t.a FROM v, t") == [("2", "1")]
        assert not query.done()
        coordinator.computing.awaited_until = 0.0
        assert await query == [("2",)]

    restarted(tmp_path, work)
