"""Indexes and materialized views: kept up to date, asked at exact times, and there again after a restart."""

from __future__ import annotations

from pathlib import Path

import pytest
from sql_world import Client, SqlWorld, derive_all, ingest

from derive.adapter.coordinator import Coordinator
from derive.adapter.planner.reading import ids_of
from derive.compute.algebra.relation import Finishing, Get
from derive.compute.relations.table_input import table_at
from derive.engine.reset import reset
from derive.storage.compaction import compact


@pytest.fixture
def world(tmp_path: Path) -> SqlWorld:
    return SqlWorld(tmp_path)


async def until_maintained(coordinator: Coordinator, name: str) -> None:
    """Wait until a relation is read from what is maintained."""
    named = coordinator.objects.lookup(None, name)
    assert named
    relation = Get(named.id, tuple(column.type for column in named.columns))
    ids = coordinator.maintenance.sources(ids_of(relation))
    while True:
        news = coordinator.news.next
        time = await coordinator.timeline.read(ids, at_present=True)
        if coordinator.maintenance.arranged(relation, Finishing((), None, 0, ()), time):
            return
        await news.wait()


def test_indexes(world: SqlWorld) -> None:
    async def work(coordinator: Coordinator) -> None:
        client = Client(coordinator)
        await client("CREATE TABLE t (a int, b text)")
        await client("CREATE VIEW v AS SELECT b, count(*) AS n FROM t GROUP BY b")
        await client("INSERT INTO t VALUES (1, 'x'), (2, 'y'), (3, 'y')")
        assert await client.tag("CREATE INDEX ON t (a)") == "CREATE INDEX"
        await client("CREATE INDEX v_b ON v (b)")
        await until_maintained(coordinator, "t")
        await until_maintained(coordinator, "v")

        assert await client("SELECT b FROM t WHERE a = 2") == [("y",)]
        for number in range(4, 20):
            await client(f"INSERT INTO t VALUES ({number}, 'y')")
            assert await client("SELECT n FROM v WHERE b = 'y'") == [(str(number - 1),)]  # at once
            assert await client("SELECT count(*) FROM t JOIN v USING (b)") == [(str(number),)]
        await client("DELETE FROM t WHERE b = 'y'")
        assert await client("SELECT * FROM v") == [("x", "1")]
        assert await client.tag("DROP INDEX v_b") == "DROP INDEX"
        assert await client("SELECT * FROM v") == [("x", "1")]

    world.within(work)


def test_an_index_is_read_though_nothing_is_written_behind_it(world: SqlWorld) -> None:
    async def work(coordinator: Coordinator) -> None:
        client = Client(coordinator)
        await client("CREATE TABLE t (a int)")
        await client("INSERT INTO t VALUES (1), (2)")
        await client("CREATE INDEX ON t (a)")
        named = coordinator.objects.lookup(None, "t")
        assert named
        relation = Get(named.id, tuple(column.type for column in named.columns))
        while not coordinator.maintenance.since(relation):
            await coordinator.news.next.wait()

        assert await client("SELECT a FROM t WHERE a = 2") == [("2",)]
        assert coordinator.maintenance.arranged(relation, Finishing((), None, 0, ()), coordinator.timeline.latest)

    world.within(work)


def test_materialized_views(world: SqlWorld) -> None:
    async def first(coordinator: Coordinator) -> int:
        client = Client(coordinator)
        ingest(coordinator, [(1, "ann", 10.0), (2, "ben", 5.5)])
        await client("CREATE TABLE names (customer text, name text)")
        await client("INSERT INTO names VALUES ('ann', 'Ann')")
        await client(
            'CREATE MATERIALIZED VIEW spent AS SELECT name, sum(amount) AS sum FROM "shop/orders" JOIN names USING (customer) GROUP BY 1'
        )
        await client("CREATE VIEW doubled AS SELECT name, sum * 2 AS twice FROM spent")
        assert await client("SELECT * FROM spent") == [("Ann", "10")]
        ingest(coordinator, [(3, "ann", 1.0)])
        assert await client("SELECT * FROM spent") == [("Ann", "11")]
        await client("INSERT INTO names VALUES ('ben', 'Ben')")
        assert await client("SELECT * FROM doubled ORDER BY 1") == [("Ann", "22"), ("Ben", "11")]
        await until_maintained(coordinator, "spent")
        assert await client("SELECT * FROM doubled ORDER BY 1") == [("Ann", "22"), ("Ben", "11")]
        return coordinator.timeline.latest

    time = world.within(first)

    async def second(coordinator: Coordinator) -> None:
        reading = Client(coordinator, transaction_isolation="serializable")
        assert await reading("SELECT * FROM spent ORDER BY 1") in ([("Ann", "11")], [("Ann", "11"), ("Ben", "5.5")])
        coordinator.own()
        client = Client(coordinator)
        ingest(coordinator, [(4, "ben", 2.0)])
        assert await client("SELECT * FROM spent ORDER BY 1") == [("Ann", "11"), ("Ben", "7.5")]
        await until_maintained(coordinator, "spent")
        assert await client("SELECT * FROM spent ORDER BY 1") == [("Ann", "11"), ("Ben", "7.5")]
        assert await client(f"SELECT * FROM spent ORDER BY 1 AS OF {time}") == [("Ann", "11"), ("Ben", "5.5")]
        assert await client.fails("DROP MATERIALIZED VIEW spent") == "2BP01"
        assert await client.tag("DROP MATERIALIZED VIEW spent CASCADE") == "DROP MATERIALIZED VIEW"

    world.within(second)


def test_what_changes_by_itself_is_not_maintained(world: SqlWorld) -> None:
    async def work(coordinator: Coordinator) -> None:
        client = Client(coordinator)
        await client("CREATE TABLE t (a int)")
        await client("CREATE VIEW v AS SELECT a, now() AS at FROM t")

        assert await client.fails("CREATE MATERIALIZED VIEW m AS SELECT now()") == "0A000"
        assert await client.fails("CREATE MATERIALIZED VIEW m AS SELECT at FROM v") == "0A000"
        assert await client.fails("CREATE INDEX ON v (a)") == "0A000"

    world.within(work)


def test_what_takes_long_is_worked_out_in_a_thread(world: SqlWorld) -> None:
    async def work(coordinator: Coordinator) -> None:
        client = Client(coordinator)
        await client("CREATE TABLE t (a int)")
        await client("INSERT INTO t SELECT * FROM generate_series(1, 3000)")
        await client("CREATE INDEX ON t (a)")
        await until_maintained(coordinator, "t")

        assert await client("SELECT count(*), max(length(a::text || 'x')) FROM t") == [("3000", "5")]
        assert len(await client("SELECT * FROM t")) == 3000
        assert await client("SELECT a FROM t WHERE a = $1", 7) == [("7",)]
        assert await client.fails("SELECT 1 / (a - 7) FROM t WHERE a = $1", 7) == "22012"
        await client("SET statement_timeout = '100ms'")
        assert await client.fails("SELECT count(*) FROM t x, t y, t z WHERE x.a + y.a = z.a + 1") == "57014"

    world.within(work)


def test_what_a_view_is_made_of_is_kept_while_nobody_maintains_it(world: SqlWorld) -> None:
    async def first(coordinator: Coordinator) -> None:
        client = Client(coordinator)
        ingest(coordinator, [(1, "ann", 10.0)])
        await client('CREATE MATERIALIZED VIEW spent AS SELECT sum(amount) AS sum FROM "shop/orders"')
        await until_maintained(coordinator, "spent")
        assert await client("SELECT * FROM spent") == [("10",)]

    async def between(coordinator: Coordinator) -> tuple[int, int]:
        ingest(coordinator, [(2, "ann", 1.0)])
        time = coordinator.store.timeline.present()
        ingest(coordinator, [(3, "ann", 2.0)])
        spec = coordinator.store.tables.as_stored(world.catalog.collections["shop/orders"])
        done = compact(coordinator.store, spec, since=coordinator.store.timeline.present())
        assert done is not None
        return time, done.since

    async def second(coordinator: Coordinator) -> None:
        coordinator.own()
        client = Client(coordinator)
        await until_maintained(coordinator, "spent")
        assert await client(f"SELECT * FROM spent AS OF {time}") == [("11",)]
        assert await client("SELECT * FROM spent") == [("13",)]
        await client("DROP MATERIALIZED VIEW spent")
        while coordinator.store.rights.views():
            await coordinator.news.next.wait()

    world.within(first)
    time, since = world.within(between)
    assert 0 < since < time
    world.within(second)


def test_a_view_that_nobody_maintains_is_not_waited_for(world: SqlWorld) -> None:
    async def first(coordinator: Coordinator) -> None:
        client = Client(coordinator)
        await client("CREATE TABLE t (a int)")
        await client("CREATE MATERIALIZED VIEW v AS SELECT count(*) FROM t")
        await until_maintained(coordinator, "v")

    async def second(coordinator: Coordinator) -> None:
        client = Client(coordinator)
        assert await client.fails("SELECT * FROM v") == "55000"
        assert await client.fails(f"SELECT * FROM v AS OF {coordinator.store.timeline.present()}") == "55000"
        coordinator.own()
        assert await client("SELECT * FROM v") == [("0",)]

    world.within(first)
    world.within(second)


def test_views_go_on_after_a_reset(world: SqlWorld) -> None:
    async def work(coordinator: Coordinator) -> None:
        client = Client(coordinator, transaction_isolation="serializable")
        ingest(coordinator, [(1, "ann", 10.0)])
        derive_all(world, coordinator)
        await client('CREATE MATERIALIZED VIEW v AS SELECT sum(spent) AS sum FROM "shop/spending"')
        table = coordinator.objects.find(None, "v")
        assert table

        async def until_written(rows: list[tuple[float]]) -> None:
            while True:
                news = coordinator.news.next
                stored = coordinator.store.tables.table(table.id)
                assert stored
                if stored.upper > stored.since:
                    batches = table_at(coordinator.store, stored, stored.upper - 1)
                    if [row for batch in batches for row in batch] == rows:
                        return
                derive_all(world, coordinator)
                await news.wait()

        await until_written([(10.0,)])
        reset(world.catalog, coordinator.store, ["shop/spending"])
        await coordinator.news.next.wait()
        ingest(coordinator, [(2, "ann", 1.0)])
        derive_all(world, coordinator)
        await until_written([(11.0,)])
        assert await client("SELECT * FROM v") == [("11",)]

    world.within(work)
