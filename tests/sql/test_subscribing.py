"""SUBSCRIBE by many, by those who take nothing, and by those who go away as it begins."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path

import pytest
from sql_world import Client, SqlWorld

from derive.errors import SqlError
from derive.sql.coordinator import Coordinator
from derive.sql.maintenance.controller.controller import FIRST_TRANSIENT_ID
from derive.storage.capability.capabilities import Request
from derive.storage.metadata.database import Metadata


@pytest.fixture
def world(tmp_path: Path) -> SqlWorld:
    return SqlWorld(tmp_path)


def followed(coordinator: Coordinator) -> int:
    """How many subscriptions the controller knows."""
    return sum(identifier >= FIRST_TRANSIENT_ID for identifier in coordinator.computing.controller.ids())


def test_cursors_that_nobody_fetches_from_hold_nobody_up(world: SqlWorld) -> None:
    async def work(coordinator: Coordinator) -> None:
        client = Client(coordinator)
        await client("CREATE TABLE t (a bigint)")
        await client("INSERT INTO t SELECT * FROM generate_series(1, 12000)")
        await client("CREATE INDEX ON t (a)")
        followers = [Client(coordinator) for _ in range(100)]
        for follower in followers:
            await follower("BEGIN")
            await follower("DECLARE c CURSOR FOR SUBSCRIBE t")  # it has more rows than wait for anybody
        for follower in (followers[0], followers[-1], followers[50]):
            rows: list[tuple[str | None, ...]] = []
            while len(rows) < 12000:
                rows += await follower("FETCH 12000 c WITH (timeout = '60s')")
            assert len(rows) == 12000
        assert len(await client("SELECT a FROM t WHERE a > 1")) == 11999
        for follower in followers:
            await follower.session.close()
        assert followed(coordinator) == 0

    world.within(work)


def test_leases_of_subscriptions_move_together_and_each_to_its_own_time(world: SqlWorld) -> None:
    async def work(coordinator: Coordinator) -> None:
        client = Client(coordinator)
        for name in "tu":
            await client(f"CREATE TABLE {name} (a bigint)")
            await client(f"INSERT INTO {name} VALUES (1)")
        tables = [table for name in "tu" if (table := coordinator.store.tables.find(f"sql/public/{name}"))]
        last = min(table.upper for table in tables) - 1
        capabilities = coordinator.store.capabilities
        requests: dict[int, Request] = {
            0: ([tables[0].id], last - 2),
            1: ([tables[0].id, tables[1].id], last - 1),
            2: ([987], last),
        }
        first = capabilities.retain({}, requests, purpose="SUBSCRIBE")
        assert [[(each.collection, each.frontier) for each in read] for read in first.values()] == [
            [(tables[0].id, last - 2)],
            [(tables[0].id, last - 1), (tables[1].id, last - 1)],
            [],
        ]
        moved = capabilities.retain(first, {0: ([tables[0].id], last), 1: ((), 0)}, purpose="SUBSCRIBE")
        assert [[each.frontier for each in read] for read in moved.values()] == [[last], []]
        assert [held.id for held in moved[0]] == [held.id for held in first[0]]

    world.within(work)


def test_who_cancels_as_a_subscription_begins_leaves_nothing_behind(world: SqlWorld) -> None:
    async def work(coordinator: Coordinator) -> None:
        client = Client(coordinator)
        await client("CREATE TABLE t (a bigint)")
        follower = Client(coordinator)
        await follower("BEGIN")
        await follower("SELECT * FROM t")  # its time is known, so what comes next is the lease
        with closing(Metadata(world.data / "metadata.db")) as metadata, metadata.transaction():
            # Nobody else writes, so the lease is waited for.
            subscribing = asyncio.create_task(follower("DECLARE c CURSOR FOR SUBSCRIBE t"))
            await asyncio.sleep(0.2)
            follower.session.cancel()
            await asyncio.sleep(0.2)
        await asyncio.wait([subscribing])
        await follower.session.close()
        await asyncio.sleep(0.5)  # what was left behind would come now
        assert followed(coordinator) == 0

    world.within(work)


def test_a_subscription_ends_when_what_it_reads_is_dropped(world: SqlWorld) -> None:
    async def work(coordinator: Coordinator) -> None:
        client = Client(coordinator)
        for name in "tu":
            await client(f"CREATE TABLE {name} (a bigint)")
        await client("CREATE MATERIALIZED VIEW v AS SELECT a FROM t")
        followers = {}
        for query in ("t", "v", "(SELECT t.a FROM t, u)", "(SELECT a FROM u)"):
            followers[query] = follower = Client(coordinator)
            await follower("BEGIN")
            await follower(f"DECLARE c CURSOR FOR SUBSCRIBE {query} WITH (PROGRESS)")
            await follower("FETCH 2 c WITH (timeout = '60s')")
        await client("INSERT INTO t VALUES (1)")
        await client("DROP MATERIALIZED VIEW v")
        await client("DROP TABLE t")
        await client("CREATE TABLE t (a bigint)")
        await client("INSERT INTO t VALUES (2)")
        present = coordinator.store.timeline.present() + 60_000_000
        for query in ("t", "v", "(SELECT t.a FROM t, u)"):
            told: list[tuple[str | None, ...]] = []
            with pytest.raises(SqlError) as ended:
                while True:
                    told += await followers[query]("FETCH ALL c WITH (timeout = '1s')")
            assert ended.value.sqlstate == "55000"
            assert "dropped" in str(ended.value.detail)
            if query == "t":
                assert [row[-1] for row in told if row[1] == "f"] == ["1"]
            assert all(int(str(row[0])) < present for row in told)
        await client("INSERT INTO u VALUES (3)")
        follower = followers["(SELECT a FROM u)"]
        while not any(row[1] == "f" for row in await follower("FETCH ALL c WITH (timeout = '1s')")):
            pass

    world.within(work)
