"""CREATE, DROP and ALTER inside of transaction blocks: nothing is deployed before COMMIT, and everything with it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from conftest import define
from sql_world import Client, SqlWorld, ingest

from derive.errors import DiskFullError, SqlError
from derive.sql.coordinator import Coordinator
from derive.storage.metadata.definitions import Definitions


def stored(coordinator: Coordinator) -> set[str]:
    return {table.name for table in coordinator.store.tables.all() if table.name.startswith("sql/")}


async def test_definitions_are_visible_in_their_transaction_and_after_commit(world: SqlWorld) -> None:
    async with world.served() as (coordinator, one):
        two = Client(coordinator)
        await one.script(
            "BEGIN; CREATE TABLE t (a int, b text); INSERT INTO t VALUES (1, 'x'), (2, 'y')",
            "CREATE VIEW v AS SELECT a * 10 AS tens FROM t; CREATE TABLE u AS SELECT tens FROM v WHERE tens > 10",
            "CREATE INDEX ON v (tens); UPDATE t SET b = 'z' WHERE a = 2",
        )
        assert await one("SELECT * FROM t JOIN u ON t.a * 10 = u.tens") == [("2", "z", "20")]
        assert await one("SELECT tens FROM v ORDER BY tens") == [("10",), ("20",)]
        assert await one("SHOW TABLES") == [("t",), ("u",)]
        assert await two("SHOW TABLES") == []
        assert await two.fails("SELECT * FROM t") == "42P01"
        assert stored(coordinator) == set()

        await one("COMMIT")
        assert await two("SELECT a, b FROM t ORDER BY a") == [("1", "x"), ("2", "z")]
        assert await two("SELECT tens FROM v ORDER BY tens") == [("10",), ("20",)]
        assert await two("SELECT * FROM u") == [("20",)]
        await two("INSERT INTO t VALUES (3, 'new')")
        assert await one("SELECT count(*) FROM v") == [("3",)]
    async with world.served() as (_, client):
        assert await client("SELECT count(*) FROM v") == [("3",)]
        assert await client("SELECT * FROM u") == [("20",)]


async def test_rollback_leaves_nothing(coordinator: Coordinator, client: Client) -> None:
    await client.script("CREATE TABLE t (a int); INSERT INTO t VALUES (1)")
    version = coordinator.objects.version
    await client.script(
        "BEGIN; CREATE TABLE u (a int); INSERT INTO u VALUES (1); ALTER TABLE t RENAME TO s",
        "CREATE MATERIALIZED VIEW m AS SELECT sum(a) FROM s; CREATE SOURCE c FROM LOAD GENERATOR COUNTER",
    )
    assert await client("SELECT * FROM m") == [("1",)]
    assert await client("SELECT * FROM c") == []
    await client("ROLLBACK")

    assert await client("SHOW OBJECTS") == [
        ("shop/orders", "collection"),
        ("shop/spending", "collection"),
        ("t", "table"),
    ]
    assert stored(coordinator) == {"sql/public/t"}
    assert coordinator.objects.version == version
    await client.script("BEGIN; CREATE TABLE u (a int)")
    assert await client.fails("SELECT nothing") == "42703"
    assert await client.tag("COMMIT") == "ROLLBACK"
    assert stored(coordinator) == {"sql/public/t"}


async def test_materialized_view_may_read_tables_of_its_transaction(coordinator: Coordinator, client: Client) -> None:
    ingest(coordinator, [(1, "ann", 10.0)])
    await client.script("BEGIN; CREATE TABLE names (customer text, name text); INSERT INTO names VALUES ('ann', 'Ann')")
    await client('CREATE MATERIALIZED VIEW m AS SELECT name, amount FROM "shop/orders" JOIN names USING (customer)')
    await client("CREATE MATERIALIZED VIEW n AS SELECT count(*) AS n FROM m")
    assert await client("SELECT name, amount FROM m") == [("Ann", "10")]
    await client("COMMIT")
    assert await client("SELECT name, amount FROM m") == [("Ann", "10")]
    ingest(coordinator, [(2, "ann", 5.0)])
    assert await client("SELECT n FROM n") == [("2",)]


async def test_tables_can_be_swapped_in_a_transaction(world: SqlWorld) -> None:
    async with world.served() as (coordinator, client):
        for name, row in (("a", 1), ("b", 2), ("c", 3)):
            await client.script(f"CREATE TABLE {name} (x int); INSERT INTO {name} VALUES ({row})")
        await client.script(
            "BEGIN; ALTER TABLE a RENAME TO t; ALTER TABLE b RENAME TO a; ALTER TABLE t RENAME TO b; DROP TABLE c",
            "CREATE TABLE c (y text); INSERT INTO c VALUES ('new')",
        )
        assert await client("SELECT a.x, b.x, c.y FROM a, b, c") == [("2", "1", "new")]
        await client("COMMIT")
        assert await client("SELECT a.x, b.x, c.y FROM a, b, c") == [("2", "1", "new")]
        assert stored(coordinator) == {"sql/public/a", "sql/public/b", "sql/public/c"}
        for name, identifier in [(item.name, item.id) for item in coordinator.objects.items.values()]:
            assert coordinator.store.tables.name_of(identifier) == f"sql/public/{name}"
    async with world.served() as (_, client):
        assert await client("SELECT a.x, b.x, c.y FROM a, b, c") == [("2", "1", "new")]


async def test_writes_and_definitions_commit_together(coordinator: Coordinator) -> None:
    one, two = Client(coordinator), Client(coordinator)
    await one.script("CREATE TABLE t (a int); CREATE TABLE gone (a int)")
    for number in range(3):
        await one("BEGIN")
        await one(f"CREATE TABLE t{number} (a int)")
        await one(f"INSERT INTO t VALUES ({number})")
        await one("INSERT INTO gone VALUES (1)")
        await one(f"INSERT INTO t{number} VALUES ({number})")
        if number == 2:
            await one("DROP TABLE gone")
        await one("COMMIT")
        assert await two(f"SELECT count(*), (SELECT a FROM t{number}) FROM t") == [(str(number + 1), str(number))]
    assert await two.fails("SELECT * FROM gone") == "42P01"


def fail_after_commits(coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch, times: int) -> list[DiskFullError]:
    """Make reading the names fail after a commit; the result is empty once all failures have happened."""
    failures = [DiskFullError("no space left on device")] * times
    version, append, committed = coordinator.store.sql_catalog.version, coordinator.store.tables.append, list[bool]()

    def append_first(*args: Any, **options: Any) -> bool:
        is_written = append(*args, **options)
        committed.extend([True] * is_written)
        return is_written

    def fail() -> int:
        if committed and failures:
            raise failures.pop()
        return version()

    monkeypatch.setattr(coordinator.store.tables, "append", append_first)
    monkeypatch.setattr(coordinator.store.sql_catalog, "version", fail)
    return failures


async def test_commit_stands_after_a_failed_read_of_names(world: SqlWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world.served() as (coordinator, client):
        await client("CREATE TABLE t (a int)")
        failures = fail_after_commits(coordinator, monkeypatch, 1)
        await client.script("BEGIN; INSERT INTO t VALUES (1); CREATE TABLE u AS SELECT 2 AS b; COMMIT")
        assert not failures
        assert await client("SELECT a, b FROM t, u") == [("1", "2")]
    async with world.served() as (_, client):
        assert await client("SELECT a, b FROM t, u") == [("1", "2")]


async def test_a_commit_after_one_of_unknown_outcome_fails_if_nothing_was_written(
    monkeypatch: pytest.MonkeyPatch, coordinator: Coordinator, client: Client
) -> None:
    await client("CREATE TABLE t (a int)")

    def fail(*_: object, **__: object) -> None:
        raise DiskFullError("no space left on device")

    with monkeypatch.context() as full:
        fail_after_commits(coordinator, full, 2)
        assert await client.fails("CREATE TABLE u (a int)") == "08007"
    with monkeypatch.context() as full:
        full.setattr(coordinator.store.tables, "append", fail)
        with pytest.raises(DiskFullError):
            await client("CREATE TABLE w (a int)")
    assert await client("SHOW TABLES") == [("t",), ("u",)]


async def test_read_of_a_table_dropped_by_another_process_fails(coordinator: Coordinator, client: Client) -> None:
    """A session may still have the names from before a DROP that is committed."""
    await client.script("CREATE TABLE t (a int); CREATE TABLE u (a int)")
    (table,) = [item.id for item in coordinator.objects.items.values() if item.name == "t"]
    define(coordinator.store, Definitions(dropped=(table,)))
    error = await client.error("SELECT * FROM t")
    assert (error.sqlstate, error.message) == ("42P01", 'relation "t" was dropped')
    assert await client("SELECT * FROM u") == []


async def test_failed_transaction_leaves_nothing(coordinator: Coordinator) -> None:
    one, two = Client(coordinator), Client(coordinator)
    await one("CREATE TABLE t (a int)")

    await one("BEGIN")
    assert await one("SELECT * FROM t") == []
    await one.script("INSERT INTO t VALUES (1); CREATE TABLE u (a int)")
    await two("INSERT INTO t VALUES (2)")
    assert await one.fails("COMMIT") == "40001"  # what was read has been written
    assert await two("SELECT * FROM t") == [("2",)]
    assert await one.fails("SELECT * FROM u") == "42P01"
    assert stored(coordinator) == {"sql/public/t"}
    assert await one.tag("CREATE TABLE u (a int)") == "CREATE TABLE"


@pytest.mark.parametrize(
    ("defined", "meanwhile", "sqlstate"),
    [
        ("CREATE TABLE u (a int)", "CREATE VIEW u AS SELECT 1", "42P07"),
        ("ALTER TABLE t RENAME TO u", "CREATE TABLE u (a int)", "42P07"),
        ("CREATE VIEW v AS SELECT * FROM t", "DROP TABLE t", "40001"),
        ("CREATE INDEX ON t (a)", "DROP TABLE t", "40001"),
        ("DROP TABLE t", "DROP TABLE t", "40001"),
        ("DROP TABLE t", "CREATE VIEW v AS SELECT * FROM t", "40001"),
        ("ALTER TABLE t RENAME TO u", "ALTER TABLE t RENAME TO s", "40001"),
        ("CREATE TABLE u (a int)", "CREATE TABLE v (a int)", None),
        ("CREATE VIEW v AS SELECT * FROM t", "ALTER TABLE t RENAME TO s", None),
    ],
)
async def test_conflicting_definitions_fail_with_40001(
    defined: str, meanwhile: str, sqlstate: str | None, coordinator: Coordinator
) -> None:
    one, two = Client(coordinator), Client(coordinator)
    await one.script("CREATE TABLE t (a int); BEGIN")
    await one(defined)
    await two(meanwhile)
    after = await two("SHOW OBJECTS")
    if sqlstate is None:
        assert await one.tag("COMMIT") == "COMMIT"
    else:
        assert await one.fails("COMMIT") == sqlstate
        assert await two("SHOW OBJECTS") == after


async def test_many_sessions_define_at_once(coordinator: Coordinator) -> None:
    await Client(coordinator)("CREATE TABLE log (who int, what int)")

    async def one(who: int) -> None:
        client = Client(coordinator)
        for what in range(4):
            await client("BEGIN")
            await client(f"CREATE TABLE own_{who}_{what} AS SELECT {what} AS a")
            await client(f"INSERT INTO log VALUES ({who}, {what})")
            await client("COMMIT")
            assert await client(f"SELECT count(*) FROM log, own_{who}_{what} WHERE who = {who}") == [(str(what + 1),)]

    await asyncio.gather(*map(one, range(4)))
    assert len(await Client(coordinator)("SHOW TABLES")) == 17


async def test_statements_that_a_transaction_block_cannot_run_are_refused(client: Client) -> None:
    await client.script("CREATE TABLE t (a int); BEGIN; CREATE TABLE u (a int)")
    assert await client.fails("SUBSCRIBE u") == "0A000"
    await client.script("ROLLBACK; BEGIN READ ONLY")
    assert await client.fails("CREATE TABLE u (a int)") == "25006"
    await client.script("ROLLBACK; BEGIN; INSERT INTO t VALUES (1); CREATE TABLE u (a int)")
    assert await client("SELECT * FROM u") == []
    assert await client("SELECT * FROM t LEFT JOIN u ON true") == [("1", None)]


def test_defaults_outlive_the_process(world: SqlWorld) -> None:
    world.script("CREATE TABLE t (a int DEFAULT 1, b text DEFAULT 'it''s')")
    texts = ("ALTER TABLE t RENAME TO u", "INSERT INTO u (a) VALUES (2)", "INSERT INTO u DEFAULT VALUES", "TABLE u")
    assert sorted(world.script(*texts)[-1]) == [("1", "it's"), ("2", "it's")]


@pytest.mark.parametrize(
    ("column", "hint"),
    [
        ("a int, FOREIGN KEY (a) REFERENCES t MATCH FULL", "add NOT NULL"),
        ("a int UNIQUE DEFERRABLE INITIALLY DEFERRED", "Omit the word"),
        ("a int, b int GENERATED ALWAYS AS (a)", "Write STORED"),
        ("a int GENERATED ALWAYS AS IDENTITY (CYCLE)", "Omit CYCLE"),
    ],
)
def test_refused_constraints_have_hints(world: SqlWorld, column: str, hint: str) -> None:
    with pytest.raises(SqlError) as raised:
        world.script(f"CREATE TABLE t ({column})")

    assert raised.value.sqlstate == "0A000"
    assert hint in (raised.value.hint or "")


async def test_columns_of_dependencies_cannot_change(world: SqlWorld) -> None:
    async with world.served() as (coordinator, client):
        await client.script("CREATE TABLE t (a int); INSERT INTO t VALUES (1); CREATE VIEW v AS SELECT a FROM t")
        assert await client.fails("ALTER TABLE t ALTER a TYPE text") == "2BP01"
        assert await client.fails("ALTER TABLE v ADD b int") == "42809"
        assert await client.tag("ALTER TABLE t ADD COLUMN IF NOT EXISTS a int") == "ALTER TABLE"
        await client.script(
            "BEGIN; DROP VIEW v; ALTER TABLE t ADD b int DEFAULT 2; CREATE VIEW v AS SELECT a + b AS c FROM t; COMMIT"
        )
        assert await client("SELECT c FROM v") == [("3",)]
        assert stored(coordinator) == {"sql/public/t"}
    async with world.served() as (_, client):
        assert await client("SELECT c FROM v") == [("3",)]
