"""Materialized views of constants: their rows never change, and are known at all times."""

from __future__ import annotations

import asyncio
from time import time_ns

from sql_world import Client, SqlWorld
from test_view_errors import until_stored

import derive
from derive.contents.reads import ReadOptions, read_rows
from derive.contents.rows import table_at
from derive.sql.coordinator import Coordinator
from derive.time import END_OF_TIME

DEFINITIONS = (
    "CREATE MATERIALIZED VIEW c AS SELECT x AS a FROM generate_series(1, 3) AS x",
    "CREATE TABLE t (k int)",
    "INSERT INTO t VALUES (7)",
    "CREATE MATERIALIZED VIEW total AS SELECT sum(a) AS total FROM c",
    "CREATE MATERIALIZED VIEW pairs AS SELECT a, k FROM c, t",
)


def test_constant_views_have_their_rows_in_other_processes_and_after_restarts(world: SqlWorld) -> None:
    async def begin(coordinator: Coordinator) -> None:
        coordinator.own()
        await Client(coordinator).script(*DEFINITIONS)
        await until_stored(coordinator, "c", "total")

    async def resume(coordinator: Coordinator) -> None:
        coordinator.own()
        client = Client(coordinator)
        await client("INSERT INTO t VALUES (8)")
        assert await client("SELECT a, k FROM pairs ORDER BY 1, 2 LIMIT 2") == [("1", "7"), ("1", "8")]
        assert await client("SELECT total FROM total") == [("6",)]
        assert await client("SELECT mz_now() < '2100-01-01' FROM t LIMIT 1") == [("t",)]
        with derive.open(world.data, source=world.folder / "flow.yaml") as flow:
            rows = await asyncio.to_thread(flow.sql, "SELECT a, total FROM c, total ORDER BY a")
            assert [tuple(map(int, row)) for row in rows] == [(1, 6), (2, 6), (3, 6)]
        table = coordinator.store.tables.find("sql/public/total")
        assert table is not None
        assert table.since < table.upper < END_OF_TIME
        parts = read_rows(coordinator.store, table.spec, ReadOptions())
        assert [text for part in parts for text in part.texts.to_pylist()] == ['{"total":6}']

    world.within(begin)
    world.within(resume)
    world.within(resume_alone)


def test_constant_views_that_an_earlier_release_has_ended_begin_again(world: SqlWorld) -> None:
    async def begin(coordinator: Coordinator) -> None:
        coordinator.own()
        await Client(coordinator).script(*DEFINITIONS)
        await until_stored(coordinator, "c", "total")

    async def end(coordinator: Coordinator) -> None:
        """Write what the earlier release has written; of `total`, another process has deleted the rows, too."""
        with coordinator.store.metadata.transaction() as db:
            for name, since in (("c", 1), ("total", END_OF_TIME)):
                stored = f"sql/public/{name}"
                db.execute("UPDATE collection SET since = ?, upper = ? WHERE name = ?", (since, END_OF_TIME, stored))
                if since == END_OF_TIME:
                    identifier = db.execute("SELECT id FROM collection WHERE name = ?", (stored,)).get
                    db.execute("DELETE FROM appended WHERE collection = ?", (identifier,))

    async def resume(coordinator: Coordinator) -> None:
        coordinator.own()
        client = Client(coordinator)
        assert await client("SELECT a, total FROM c, total ORDER BY a") == [("1", "6"), ("2", "6"), ("3", "6")]
        await until_stored(coordinator, "c", "total")
        for name, rows in (("c", 3), ("total", 1)):
            table = coordinator.store.tables.find(f"sql/public/{name}")
            assert table is not None
            assert sum(len(batch) for batch in table_at(coordinator.store, table, table.since)) == rows

    world.within(begin)
    world.within(end)
    world.within(resume)
    world.within(resume_alone)


def test_constant_views_follow_temporal_filters(world: SqlWorld) -> None:
    """A view of constants that are compared with now() is right at all times, also for its readers and subscribers."""
    begin = time_ns() // 1000
    first, last = begin - 1_000_000, begin + 200_000
    values = f"(VALUES (1, {first}, {last}), (2, {begin}, {last}), (3, {last}, {last})) AS v (x, y, z)"
    definitions = (
        f"CREATE VIEW c AS SELECT x, to_timestamp(y / 1e6) AS at, to_timestamp(z / 1e6) AS until FROM {values}",
        "CREATE MATERIALIZED VIEW stored AS SELECT * FROM c",
        "CREATE MATERIALIZED VIEW valid AS SELECT x FROM stored WHERE at <= now() AND (x > 1) AND now() < until",
        "CREATE MATERIALIZED VIEW direct AS SELECT x FROM c WHERE at <= now()",
        "CREATE TABLE t (k int)",
        "INSERT INTO t VALUES (7)",
        "CREATE MATERIALIZED VIEW pairs AS SELECT x, k FROM direct, t",
    )
    updates = [(str(begin), "1", "2"), (str(last), "-1", "2")]

    async def work(coordinator: Coordinator) -> None:
        coordinator.own()
        client = Client(coordinator)
        await client.script(*definitions)
        await until_stored(coordinator, "valid", "direct", "pairs")
        assert await client(f"SUBSCRIBE valid AS OF {first}") == updates
        assert time_ns() // 1000 >= last
        assert coordinator.timeline.latest <= time_ns() // 1000
        assert await client(f"SUBSCRIBE (SELECT x FROM c WHERE at <= now()) AS OF {begin}") == [
            (str(begin), "1", "1"),
            (str(begin), "1", "2"),
            (str(last), "1", "3"),
        ]
        assert await client("SELECT x, k FROM pairs ORDER BY x") == [("1", "7"), ("2", "7"), ("3", "7")]
        assert await client(f"SUBSCRIBE (SELECT 1 AS one WHERE now() > 'epoch') AS OF {first} UP TO {last}") == [
            (str(first), "1", "1")
        ]

    async def read(coordinator: Coordinator) -> None:
        """Read in a process that maintains no views."""
        client = Client(coordinator)
        assert await client("SELECT x FROM valid") == []
        assert await client("SELECT x FROM direct ORDER BY x") == [("1",), ("2",), ("3",)]

    world.within(work)
    world.within(read)


async def resume_alone(coordinator: Coordinator) -> None:
    """Maintain the constant views without a relation that changes."""
    coordinator.own()
    client = Client(coordinator)
    await client("DROP MATERIALIZED VIEW IF EXISTS pairs")
    reported: set[tuple[str | None, ...]] = set()
    while reported != {("c", None), ("total", None)}:
        reported = {(name, error) for name, _, error, *_ in await client("SHOW MAINTENANCE")}
