"""Statements of SQL over collections and tables, as a session carries them out."""

from __future__ import annotations

import asyncio

import pytest
from sql_world import Client, SqlWorld, derive_all, ingest, lapse

from derive.errors import FencedError, SqlError
from derive.sql.coordinator import Coordinator
from derive.storage.capability.table import LIFETIME
from derive.storage.compaction import compact


async def test_collections_are_queried_as_relations(coordinator: Coordinator, client: Client) -> None:
    ingest(coordinator, [(1, "ann", 10.0), (2, "ben", 5.5), (3, "ann", 1.0)])

    assert await client('SELECT customer, sum(amount) FROM "shop/orders" GROUP BY 1 ORDER BY 1') == [
        ("ann", "11"),
        ("ben", "5.5"),
    ]
    assert await client('SELECT count(*) FROM "shop/orders" WHERE amount > $1', 5) == [("2",)]
    ingest(coordinator, [(4, "cas", 2.0)])
    assert await client('SELECT count(*) FROM "shop/orders"') == [("4",)]  # it is there at once


async def test_serializable_reads_use_the_frontier_of_underived_collections(
    world: SqlWorld, coordinator: Coordinator
) -> None:
    strict, client = Client(coordinator), Client(coordinator, transaction_isolation="serializable")
    ingest(coordinator, [(1, "ann", 10.0)], year=2024)
    derive_all(world, coordinator)
    ingest(coordinator, [(2, "ann", 5.0)])

    assert await strict.fails('SELECT * FROM "shop/spending"') == "55000"
    assert await client('SELECT customer, spent FROM "shop/spending"') == [("ann", "10")]
    assert await client('SELECT count(*) FROM "shop/orders" o JOIN "shop/spending" USING (customer)') == [("1",)]


def test_tables_are_written_and_read(world: SqlWorld) -> None:
    rows = world.script(
        "CREATE TABLE t (a int, b text NOT NULL)",
        "INSERT INTO t VALUES (1, 'x'), (2, 'y'), (2, 'y')",
        "SELECT * FROM t ORDER BY a",
        "UPDATE t SET b = b || '!' WHERE a = 1 RETURNING b",
        "DELETE FROM t WHERE a = 2",
        "INSERT INTO t SELECT a + 1, b FROM t",
        "SELECT a, b FROM t ORDER BY a",
    )

    assert rows[2] == [("1", "x"), ("2", "y"), ("2", "y")]
    assert rows[3] == [("x!",)]
    assert rows[6] == [("1", "x!"), ("2", "x!")]
    assert world.script("SELECT count(*) FROM t") == [[("2",)]]


def test_views_follow_renamed_relations(world: SqlWorld) -> None:
    rows = world.script(
        "CREATE TABLE t (a int)",
        "CREATE VIEW v AS SELECT a * 2 AS doubled FROM t",
        "CREATE VIEW w AS SELECT doubled + 1 FROM v",
        "ALTER TABLE t RENAME TO u",
        "CREATE TABLE t (a text)",
        "INSERT INTO u VALUES (4)",
        "SELECT * FROM w",
        "SELECT doubled FROM v",
    )

    assert rows[-2:] == [[("9",)], [("8",)]]
    assert world.script("SELECT * FROM w") == [[("9",)]]


async def test_output_parameters_are_no_arguments(client: Client) -> None:
    """JDBC sends the call of a function with its output as the first parameter, of the type void."""
    await client("CREATE FUNCTION half(n numeric) RETURNS numeric IMMUTABLE LANGUAGE SQL AS 'SELECT n / 2'")
    for call in ("SELECT * FROM half($1, $2) AS result", "SELECT half($1, $2)", "SELECT abs($1, half($2))"):
        prepared = await client.session.prepare(call, (2278, 20))
        assert prepared.parameters == (2278, 20)
        await client.session.begin_implicit()
        result = await client.session.execute(prepared, (None, 5))
        assert result.rows is not None
        assert [len(batch) async for batch in result.rows] == [1]
        await client.session.end_implicit()


async def test_relation_names_are_resolved(client: Client) -> None:
    await client.script("CREATE TABLE t (a int); CREATE VIEW v AS SELECT * FROM t")

    assert await client.fails("CREATE TABLE t (b int)") == "42P07"
    assert await client.tag("CREATE TABLE IF NOT EXISTS t (b int)") == "CREATE TABLE"
    assert await client.fails("SELECT * FROM nowhere") == "42P01"
    assert await client.fails("DROP TABLE t") == "2BP01"
    assert await client.fails("DROP VIEW t") == "42809"
    assert await client.fails("DROP TABLE nowhere") == "42P01"
    assert await client.fails('DROP TABLE "shop/orders"') == "42809"
    assert await client.fails('INSERT INTO "shop/orders" VALUES (1)') == "42809"
    assert await client.fails("INSERT INTO v VALUES (1)") == "42809"
    assert await client.tag("DROP TABLE t CASCADE") == "DROP TABLE"
    assert await client.fails("SELECT * FROM v") == "42P01"
    assert await client.tag("DROP TABLE IF EXISTS t") == "DROP TABLE"


async def test_set_transaction_keeps_unnamed_settings(client: Client) -> None:
    await client.script("CREATE TABLE t (a int); BEGIN READ ONLY")
    await client("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
    begun = await client("SELECT now()")
    assert await client("SELECT now()") == begun
    assert await client("SHOW transaction_read_only") == [("on",)]
    assert await client.fails("INSERT INTO t VALUES (1)") == "25006"
    await client("ROLLBACK")

    await client.script("BEGIN; SELECT * FROM t")
    assert await client.tag("SET TRANSACTION READ ONLY") == "SET"
    assert await client.fails("SET TRANSACTION READ WRITE") == "25001"
    await client("ROLLBACK")

    await client.script("SET transaction_isolation = 'serializable'; BEGIN; SELECT * FROM t")
    assert await client.fails("SET TRANSACTION ISOLATION LEVEL STRICT SERIALIZABLE") == "25001"
    await client("ROLLBACK")


async def test_begin_includes_earlier_statements_of_its_message(coordinator: Coordinator) -> None:
    one, two = Client(coordinator), Client(coordinator)
    await one("CREATE TABLE t (a int)")

    async def begin(text: str) -> list[tuple[str | None, ...]]:
        """As they are sent in one message."""
        session = one.session
        await session.begin_implicit()
        for statement in ("SELECT now(), count(*) FROM t", text):
            await session.execute(await session.prepare(statement, ()), ())
        return await one("SELECT now()")

    begun = await begin("BEGIN")
    await two("INSERT INTO t VALUES (1)")
    assert await one("SELECT now(), count(*) FROM t") == [(*begun[0], "0")]  # all its reads are at one time
    await one("INSERT INTO t VALUES (2)")
    assert await one.fails("COMMIT") == "40001"

    await begin("BEGIN READ ONLY")
    assert await one.fails("INSERT INTO t VALUES (3)") == "25006"
    await one("ROLLBACK")
    assert await two("SELECT a FROM t") == [("1",)]


async def test_transactions_read_at_one_time(coordinator: Coordinator) -> None:
    one, two = Client(coordinator), Client(coordinator)
    await one("CREATE TABLE t (a int)")

    await one.script("BEGIN; INSERT INTO t VALUES (1)")
    assert await two("SELECT * FROM t") == []  # nothing is there before COMMIT
    assert await one("SELECT * FROM t") == [("1",)]  # its own row
    assert await one.fails("SUBSCRIBE t") == "25001"
    assert await one.fails("SELECT 1") == "25P02"
    assert await one.fails("SELECT * FROM missing") == "25P02"
    assert await one.fails("SELEC 1") == "42601"
    assert await one.tag("COMMIT") == "ROLLBACK"
    assert await two("SELECT * FROM t") == []

    await one("BEGIN")
    assert await one("SELECT count(*) FROM t") == [("0",)]
    await two("INSERT INTO t VALUES (2)")
    assert await one("SELECT count(*) FROM t") == [("0",)]  # all its reads are at one time
    await one("INSERT INTO t VALUES (3)")
    assert await one.fails("COMMIT") == "40001"  # what it has read was written meanwhile
    assert await two("SELECT * FROM t") == [("2",)]

    await one("BEGIN READ ONLY")
    assert await one.fails("INSERT INTO t VALUES (3)") == "25006"


async def test_now_is_the_start_of_the_transaction(client: Client) -> None:
    """For each of its statements and rows, also where these are looked up in an index; but each statement begins anew."""
    await client("CREATE TABLE t (a int, b timestamptz DEFAULT now(), c timestamptz DEFAULT now())")
    await client("CREATE INDEX ON t (a)")
    await client("INSERT INTO t (a) SELECT g FROM generate_series(1, 1000) AS g")
    assert await client("SELECT count(DISTINCT b), count(*) FILTER (WHERE b <> c) FROM t") == [("1", "0")]
    assert await client("SELECT count(DISTINCT now()) FROM t WHERE a > 0") == [("1",)]
    assert await client("SELECT count(*) FROM t WHERE a > 0 AND now() <> current_timestamp") == [("0",)]

    await client("BEGIN")
    before = await client("SELECT now(), statement_timestamp() > now() FROM t WHERE a = 1")
    assert before[0][1] == "t"
    assert await client("SELECT DISTINCT transaction_timestamp() FROM t") == [(before[0][0],)]
    await client.script("UPDATE t SET b = now() WHERE a = 1; COMMIT")
    assert await client("SELECT b, now() > b FROM t WHERE a = 1") == [(before[0][0], "t")]


async def test_dropped_table_does_not_fail_commits_of_other_tables(coordinator: Coordinator, client: Client) -> None:
    await client.script("CREATE TABLE t (a int); CREATE TABLE u (a int)")
    ids = [named.id for name in ("t", "u") if (named := coordinator.objects.lookup(None, name))]
    await client("DROP TABLE t")
    commits = [coordinator.commits.commit([(id_, (1,), 1)]) for id_ in ids]
    dropped, written = await asyncio.gather(*commits, return_exceptions=True)

    assert isinstance(dropped, SqlError)
    assert dropped.sqlstate == "42P01"
    assert isinstance(written, int)
    assert await client("SELECT * FROM u") == [("1",)]


async def test_table_is_readable_after_compaction(coordinator: Coordinator, client: Client) -> None:
    """Another process advances a table that was read, and compacts its history."""
    await client.script("CREATE TABLE t (id bigint); INSERT INTO t VALUES (1); INSERT INTO t VALUES (2)")
    assert await client("SELECT id FROM t ORDER BY id") == [("1",), ("2",)]
    commit = coordinator.watcher.next
    (table,) = coordinator.store.tables.all()
    present = coordinator.store.timeline.present()
    coordinator.store.seal([table.name], present + 1)
    compact(coordinator.store, table.spec, since=present)
    await commit.wait()
    assert await client("SELECT id FROM t ORDER BY id") == [("1",), ("2",)]


async def test_reads_follow_as_of(coordinator: Coordinator, client: Client) -> None:
    await client.script("CREATE TABLE t (a int); INSERT INTO t VALUES (1)")
    before = coordinator.timeline.latest
    await client("INSERT INTO t VALUES (2)")

    assert await client(f"SELECT * FROM t AS OF {before}") == [("1",)]
    assert await client(f"SELECT count(*) FROM t AS OF AT LEAST {before}") == [("2",)]
    assert await client.fails("SELECT * FROM t AS OF 5") == "22023"
    assert await client.fails("SELECT * FROM t AS OF 'yesterday'") == "22023"


async def test_settings_are_set_and_shown(client: Client) -> None:
    assert await client("SHOW transaction_isolation") == [("strict serializable",)]
    await client("SET transaction_isolation = serializable")
    assert await client("SHOW transaction_isolation") == [("serializable",)]
    assert await client.fails("SET statement_timeout = 'soon'") == "22023"
    assert await client.fails("SHOW nothing") == "42704"
    await client.script("BEGIN; SET LOCAL statement_timeout = '2s'")
    assert await client("SHOW statement_timeout") == [("2000ms",)]
    await client("COMMIT")
    assert await client("SHOW statement_timeout") == [("0",)]
    await client.script("BEGIN READ ONLY; SET application_name = 'forgotten'")
    assert await client("SHOW transaction_read_only") == [("on",)]
    await client("ROLLBACK")
    assert await client("SHOW application_name") == [("",)]
    await client("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY")
    assert await client("SHOW transaction_read_only") == [("on",)]
    await client.script("BEGIN; SET transaction_read_only = off; ROLLBACK")
    await client.script("SET TIME ZONE INTERVAL '+00:00' HOUR TO MINUTE", "SET TIME ZONE LOCAL", "RESET ROLE")
    await client.script("SET ROLE NONE; SET SESSION AUTHORIZATION DEFAULT")
    assert await client.fails("SET ROLE ann") == "0A000"


async def test_isolation_is_at_least_the_requested_level(client: Client) -> None:
    """Drivers know no stricter one than PostgreSQL has, and set one again when a connection goes back to its pool."""
    await client("CREATE TABLE t (a int)")

    async def isolation(*before: str) -> str:
        await client.script(*before)
        explained = await client("EXPLAIN TIMESTAMP FOR SELECT * FROM t")
        return next(text for row in explained if (text := str(row[0])).startswith("isolation"))

    assert await client("SHOW TRANSACTION ISOLATION LEVEL") == [("serializable",)]
    assert await isolation("BEGIN ISOLATION LEVEL READ COMMITTED") == "isolation: strict serializable"
    await client("COMMIT")
    characteristics = "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL"
    assert await isolation(f"{characteristics} SERIALIZABLE") == "isolation: strict serializable"
    assert await isolation("SET transaction_isolation = serializable") == "isolation: serializable"
    assert await isolation("BEGIN ISOLATION LEVEL STRICT SERIALIZABLE") == "isolation: strict serializable"
    await client("COMMIT")
    assert await isolation() == "isolation: serializable"
    assert await isolation(f"{characteristics} STRICT SERIALIZABLE") == "isolation: strict serializable"


async def test_unread_columns_are_not_computed(coordinator: Coordinator, client: Client) -> None:
    ingest(coordinator, [(1 << 70, "ann", 10.0)])

    assert await client('SELECT customer FROM "shop/orders" WHERE amount > 1') == [("ann",)]
    assert await client('SELECT count(*) FROM "shop/orders"') == [("1",)]
    assert await client.fails('SELECT id FROM "shop/orders"') == "22003"


async def test_server_that_continues_after_another_has_begun_answers_nothing_old(
    world: SqlWorld, coordinator: Coordinator, client: Client
) -> None:
    """As after SIGSTOP and SIGCONT: what it has in memory may not be the rows that the other one has acknowledged."""
    await client.script("CREATE TABLE t (n bigint); INSERT INTO t VALUES (1)")
    assert await client("SELECT n FROM t") == [("1",)]
    lapse(world.data)
    coordinator.store.serving._renewed_at -= LIFETIME
    assert await client("SELECT n FROM t") == [("1",)]
    async with world.served() as (_, other):
        await other("INSERT INTO t VALUES (2)")
        with pytest.raises(FencedError, match="another flowctl has begun to serve SQL"):
            await client("SELECT n FROM t")
