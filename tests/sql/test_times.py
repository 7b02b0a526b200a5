"""Times of somebody's choice, and times that are waited for: AS OF, UP TO, and reads while others ingest."""

from __future__ import annotations

import asyncio
from datetime import datetime

import pytest
from sql_world import Client, SqlWorld, derive_all, ingest

from derive.algebra.types import ModifiedType, Type, TypeModifier
from derive.errors import SqlError
from derive.sql.coordinator import Coordinator
from derive.sql.copy_format import CopyIn
from derive.sql.parser.statement import CopyFormat
from derive.storage.compaction import compact

SECOND = 1_000_000


STATEMENTS = [
    "SELECT * FROM t {}",
    'SELECT * FROM "shop/orders" {}',
    'SELECT * FROM "shop/spending" {}',
    "SELECT count(*) FROM v {}",
    "SUBSCRIBE t {}",
    "SUBSCRIBE (SELECT count(*) FROM v) {}",
    "COPY (SELECT * FROM t {}) TO STDOUT",
    "EXPLAIN TIMESTAMP FOR SELECT * FROM t {}",
]


async def test_far_future_time_is_refused(coordinator: Coordinator, client: Client) -> None:
    await client.script("CREATE TABLE t (a int); CREATE VIEW v AS SELECT a FROM t")
    ingest(coordinator, [(1, "ann", 10.0)])
    for statement in STATEMENTS:
        for as_of in ("AS OF '2999-01-01T00:00:00Z'", "AS OF AT LEAST '2999-01-01T00:00:00Z'"):
            error = await client.error(statement.format(as_of))
            assert error.sqlstate == "22023", statement
            assert "2999-01-01T00:00:00" in error.message
            assert "AS OF AT LEAST" in (error.hint or "")
            assert error.offset == statement.index("{") + as_of.index("'")


async def test_times_of_as_of_have_each_form_that_sql_prints(client: Client) -> None:
    await client.script("CREATE TABLE t (a int); INSERT INTO t VALUES (1)")
    [(text,)] = await client("SELECT now()::text")
    await client.script("INSERT INTO t VALUES (2)", "SET TimeZone = 'Europe/Berlin'")
    [(local, zoneless)] = await client(f"SELECT '{text}'::timestamptz::text, '{text}'::timestamptz::timestamp::text")
    assert local is not None
    assert text is not None
    assert local[:19] == zoneless[:19] != text[:19]  # type: ignore[index]
    times = [f"'{text}'", f"'{local}'", f"'{zoneless}'", f"timestamptz '{text}'", f"timestamp '{zoneless}'"]
    times += [f"'{text}'::timestamptz", f"timestamptz '{text}' + interval '0 s'", f"to_timestamp({epoch(text)})"]
    for time in times:
        assert await client(f"SELECT a FROM t AS OF {time}") == [("1",)], time
        assert await client(f"SELECT count(*) FROM t AS OF AT LEAST {time}") == [("2",)], time
    for time in ("now() - interval '1 hour'", "current_timestamp - interval '1 hour'", "'1h'", "'1 hour ago'", "'-1h'"):
        error = await client.error(f"SELECT a FROM t AS OF {time}")  # the table is younger
        assert (error.sqlstate, error.message[:27]) == ("22023", "the relations are known fro"), time
        assert await client(f"SELECT count(*) FROM t AS OF AT LEAST {time}") == [("2",)], time
    assert (await client("SELECT count(*) FROM t AS OF AT LEAST current_date")) == [("2",)]
    assert await client("SELECT count(*) FROM t AS OF now()") == [("2",)]


def epoch(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


@pytest.mark.parametrize("time", ["'yesterday'", "1.5", "true", "interval '1 hour'", "'2024'", "NULL"])
async def test_other_values_of_as_of_are_refused_at_their_place(time: str, client: Client) -> None:
    statement = f"SELECT 1 AS OF {time}"
    error = await client.error(statement)
    assert (error.sqlstate, error.offset) == ("22023", statement.index(time))
    assert "now() - interval '1 hour'" in (error.hint or "")


async def test_as_of_takes_parameters(client: Client) -> None:
    await client.script("CREATE TABLE t (a int); INSERT INTO t VALUES (1)")
    [(text, clock)] = await client("SELECT now()::text, (extract(epoch FROM now()) * 1000000)::bigint")
    assert clock is not None
    await client.script("INSERT INTO t VALUES (2)")

    assert await client("SELECT a FROM t AS OF $1", text) == [("1",)]
    assert await client("SELECT a, $2 FROM t WHERE a >= $1 AS OF $3", 1, "x", text) == [("1", "x")]
    assert await client("SELECT count(*) FROM t AS OF AT LEAST $1", "1h") == [("2",)]
    assert await client("SELECT a FROM t AS OF $1::timestamptz", int(clock)) == [("1",)]
    assert await client("SELECT a FROM t AS OF $1::timestamptz - interval '0 s'", int(clock)) == [("1",)]
    assert await client("SELECT $1::bigint FROM t AS OF $1", int(clock)) == [(clock,)]
    await client("PREPARE p AS SELECT a FROM t AS OF $1")
    assert await client(f"EXECUTE p('{text}')") == [("1",)]


@pytest.mark.parametrize("value", [None, "yesterday"])
async def test_parameter_of_as_of_that_is_no_time_is_refused(value: str | None, client: Client) -> None:
    error = await client.error("SELECT 1 AS OF $1", value)
    assert (error.sqlstate, error.message, error.offset) == ("22023", "the value of AS OF is not a time", 15)


async def test_as_of_of_a_subscription_takes_no_parameter(client: Client) -> None:
    await client("CREATE TABLE t (a int)")
    error = await client.error("SUBSCRIBE t AS OF $1", "1h")
    assert (error.sqlstate, error.message) == ("0A000", "AS OF takes parameters only in SELECT")


async def test_near_future_time_is_awaited(coordinator: Coordinator) -> None:
    client, other = Client(coordinator), Client(coordinator)
    await client("CREATE TABLE t (a int)")
    ingest(coordinator, [(1, "ann", 10.0)])
    time = coordinator.store.timeline.present() + SECOND // 2
    statement = f'SELECT count(*), (SELECT count(*) FROM "shop/orders") FROM t AS OF {time}'
    soon = asyncio.create_task(client(statement))
    await other("INSERT INTO t VALUES (1)")
    rows = await soon
    assert rows == await client(statement)  # a slow machine may insert after this time
    assert rows[0][1] == "1"
    assert coordinator.store.timeline.time() > time


async def test_compacted_time_fails(world: SqlWorld, coordinator: Coordinator, client: Client) -> None:
    ingest(coordinator, [(1, "ann", 10.0)])
    await client('SELECT * FROM "shop/orders"')
    known = coordinator.store.collection("shop/orders")
    assert known
    compact(coordinator.store, world.catalog.collections["shop/orders"], since=known.upper - 1)
    for statement in ('SELECT * FROM "shop/orders" AS OF 5', 'SUBSCRIBE "shop/orders" AS OF 5'):
        error = await client.error(statement)
        assert error.sqlstate == "22023"
        assert str(known.upper - 1) in error.message
    assert await client('SELECT count(*) FROM "shop/orders" AS OF AT LEAST 5') == [("1",)]


async def test_subscription_ends_at_its_up_to(coordinator: Coordinator, client: Client) -> None:
    await client.script("CREATE TABLE t (a int); INSERT INTO t VALUES (1)")
    present = coordinator.store.timeline.present()
    assert [row[1:] for row in await client(f"SUBSCRIBE t UP TO {present + SECOND}")] == [("1", "1")]
    assert coordinator.store.timeline.time() >= present + SECOND

    assert await client.fails(f"SUBSCRIBE t UP TO {present - SECOND}") == "22023"
    assert await client.fails(f"SUBSCRIBE t AS OF {present} UP TO {present - 1}") == "22023"
    assert await client(f"SUBSCRIBE t AS OF {present} UP TO {present}") == []


async def test_a_read_continues_when_an_ingestion_has_ended_before_its_time(
    coordinator: Coordinator, client: Client
) -> None:
    ingest(coordinator, [(1, "ann", 10.0)])
    writing = coordinator.store.acquire_write("shop/orders")
    begun = asyncio.create_task(client('SELECT count(*) FROM "shop/orders"'))
    while coordinator.timeline.latest < writing.frontier:
        await asyncio.sleep(0)
    coordinator.store.update_and_downgrade(writing, [], writing.frontier + 1, is_last=True)
    assert await begun == [("1",)]


async def test_later_views_are_evaluated_at_earlier_times(coordinator: Coordinator) -> None:
    client, other = Client(coordinator), Client(coordinator)
    await client.script("CREATE TABLE t (a int); INSERT INTO t VALUES (1)")
    ingest(coordinator, [(1, "ann", 10.0)])
    await client("BEGIN")
    assert await client('SELECT count(*) FROM t, "shop/orders"') == [("1",)]
    time = coordinator.timeline.latest
    await other("INSERT INTO t VALUES (2)")
    await other('CREATE MATERIALIZED VIEW m AS SELECT count(*) AS n FROM t, "shop/orders"')
    await other.script("CREATE VIEW v AS SELECT n + 1 AS n FROM m; CREATE INDEX ON v (n); CREATE TABLE u (a int)")
    assert await other("SELECT m.n, v.n FROM m, v") == [("2", "3")]

    assert await client("SELECT m.n, v.n FROM m, v") == [("1", "2")]
    error = await client.error("SELECT * FROM u")
    assert error.sqlstate == "40001"
    assert "begin another transaction" in (error.hint or "")
    await client("ROLLBACK")
    for name, rows in (("m", ["1", "2"]), ("v", ["2", "3"])):
        assert await other(f"SELECT n FROM {name} AS OF {time}") == [(rows[0],)]
        until = coordinator.store.timeline.present() + SECOND
        updates = await other(f"SUBSCRIBE {name} AS OF {time} UP TO {until}")
        assert [row[1:] for row in updates] == [("1", rows[0]), ("-1", rows[0]), ("1", rows[1])]


async def test_derived_documents_are_known_a_tick_later(world: SqlWorld, coordinator: Coordinator) -> None:
    client = Client(coordinator, transaction_isolation="serializable")
    ingest(coordinator, [(1, "ann", 10.0)], year=2024)
    derive_all(world, coordinator)
    known = coordinator.store.collection("shop/spending")
    assert known
    assert await client(f'SELECT spent FROM "shop/spending" AS OF {known.upper - 1}') == [("10",)]
    with pytest.raises(SqlError) as caught:
        await client(f'SELECT spent FROM "shop/spending" AS OF {coordinator.store.timeline.present()}')
    assert caught.value.sqlstate == "55000"


# Columns of `numeric(p,s)`, `varchar(n)` and `char(n)`: what they store, refuse and show, as PostgreSQL does.


async def test_tables_and_views_have_times(world: SqlWorld) -> None:
    async with world.served() as (_, client):
        await client("CREATE TABLE t (n numeric(6,2), v varchar(3), c char(4), i smallint, r real)")
        assert await client("INSERT INTO t VALUES (1.005, 'ab  ', 'x ', 1, 0.5) RETURNING *") == [
            ("1.01", "ab ", "x   ", "1", "0.5")
        ]
        assert await client.fails("INSERT INTO t (n) VALUES (9999.999)") == "22003"
        assert await client.fails("INSERT INTO t (v) VALUES ('abcd')") == "22001"
        assert await client.fails("INSERT INTO t (c) VALUES ('abcde')") == "22001"
        assert await client.fails("UPDATE t SET n = 10000") == "22003"
        assert await client.fails("INSERT INTO t (v) SELECT c || 'yzq' FROM t") == "22001"
        await client("INSERT INTO t SELECT n + 0.001, v, c, i, r FROM t")
        await client("INSERT INTO t (n, c) VALUES (2.5, 'x')")
        await client(
            "CREATE MATERIALIZED VIEW m AS SELECT c, sum(n) AS s, max(n) AS x, n * 1.5 AS y FROM t GROUP BY c, n"
        )
        await client("CREATE TABLE copied AS SELECT n, c FROM t WHERE n = 2.5")

    async with world.served() as (_, client):
        await client("INSERT INTO copied VALUES (3.14159, 'y')")
        assert await client("SELECT * FROM copied ORDER BY n") == [("2.50", "x   "), ("3.14", "y   ")]
        assert await client("SELECT * FROM m ORDER BY s") == [
            ("x   ", "2.02", "1.01", "1.515"),
            ("x   ", "2.50", "2.50", "3.750"),
        ]
        # 1.01 and 1.010 are one group, whatever they are shown as.
        assert await client("SELECT n, count(*) FROM t GROUP BY n ORDER BY 1") == [("1.01", "2"), ("2.50", "1")]
        assert await client("SELECT c = 'x', length(c), n::text, c::text || '.' FROM t WHERE n = 2.5") == [
            ("t", "1", "2.50", "x.")
        ]


@pytest.mark.parametrize(
    ("modifier", "text", "sqlstate"),
    [
        (TypeModifier(ModifiedType.NUMERIC, 3, 1), "100", "22003"),
        (TypeModifier(ModifiedType.VARCHAR, 2), "abc", "22001"),
        (TypeModifier(ModifiedType.BPCHAR, 2), "abc", "22001"),
    ],
)
def test_copied_values_fit_or_are_refused(modifier: TypeModifier, text: str, sqlstate: str) -> None:
    kind = Type.NUMERIC if modifier.name is ModifiedType.NUMERIC else Type.TEXT
    copy = CopyIn(CopyFormat(), "t", [("a", kind)], modifiers=[modifier])

    with pytest.raises(SqlError) as caught:
        copy.feed(f"{text}\n".encode())
    assert caught.value.sqlstate == sqlstate
