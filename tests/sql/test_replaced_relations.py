"""Relations that are reset, dropped or altered under transactions and subscriptions: who has read one is told.

Law: all reads of a transaction are of one state, and what it commits follows from what is there still.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from sql_world import Client, SqlWorld, derive_all, ingest

from derive.engine.reset import reset
from derive.errors import SqlError
from derive.sql.coordinator import Coordinator
from derive.sql.execution.executor import planned
from derive.sql.execution.query import rows_at

SPENT = 'SELECT customer, spent FROM "shop/spending"'
Change = Callable[[SqlWorld, Coordinator, Client], Awaitable[None]]


async def is_reset(world: SqlWorld, coordinator: Coordinator, _: Client) -> None:
    reset(world.catalog, coordinator.store, ["shop/spending"])
    derive_all(world, coordinator)


async def is_dropped(world: SqlWorld, _: Coordinator, other: Client) -> None:
    await other("DROP TABLE t")


async def is_created_again(world: SqlWorld, _: Coordinator, other: Client) -> None:
    await other.script("DROP TABLE t; CREATE TABLE t (n bigint, note text)")


async def has_a_column_renamed(world: SqlWorld, _: Coordinator, other: Client) -> None:
    await other("ALTER TABLE t RENAME COLUMN note TO remark")


async def has_a_column_added(world: SqlWorld, _: Coordinator, other: Client) -> None:
    await other("ALTER TABLE t ADD COLUMN more text")


async def is_renamed(world: SqlWorld, _: Coordinator, other: Client) -> None:
    await other("ALTER TABLE t RENAME TO s")


async def nothing(world: SqlWorld, _: Coordinator, other: Client) -> None: ...


CHANGES = [
    (SPENT, is_reset, True),
    ("SELECT n FROM t", is_dropped, True),
    ("SELECT n FROM t", is_created_again, True),
    ("SELECT n FROM t", has_a_column_renamed, True),
    ("SELECT n FROM t", has_a_column_added, False),
    ("SELECT n FROM t", is_renamed, False),
    (SPENT, nothing, False),
]


ENDS = ("TABLE kept", "INSERT INTO kept VALUES (1)")


@pytest.mark.sampled(12)
@pytest.mark.parametrize("is_strict", [False, True])
@pytest.mark.parametrize("last", ENDS)
@pytest.mark.parametrize(("query", "change", "is_conflict"), CHANGES)
async def test_transaction_fails_after_a_relation_it_read_was_replaced(
    world: SqlWorld,
    coordinator: Coordinator,
    query: str,
    change: Change,
    last: str,
    *,
    is_conflict: bool,
    is_strict: bool,
) -> None:
    isolation = "strict serializable" if is_strict and query != SPENT else "serializable"  # nothing derives here
    client, other = Client(coordinator), Client(coordinator)
    await client("CREATE TABLE t (n bigint, note text)")
    await client("CREATE TABLE kept (n bigint)")
    await client("INSERT INTO t VALUES (1, 'one')")
    ingest(coordinator, [(1, "ann", 10.0)])
    derive_all(world, coordinator)
    await client.script(f"SET transaction_isolation = '{isolation}'; BEGIN")
    await client(query)
    await change(world, coordinator, other)
    again = SPENT if query == SPENT else ENDS[0]  # what is derived may not be known when a table was created
    if is_conflict and last == ENDS[0]:
        assert await client.fails(again) == "40001"
    else:
        await client(again if last == ENDS[0] else last)
        if is_conflict:
            assert await client.fails("COMMIT") == "40001"
        else:
            await client("COMMIT")


async def test_altered_table_keeps_its_identity(coordinator: Coordinator, client: Client) -> None:
    await client.script("CREATE TABLE t (k bigint, v text); INSERT INTO t VALUES (1, 'one'), (2, NULL)")
    table = coordinator.store.tables.find("sql/public/t")
    assert table is not None
    await client("ALTER TABLE t ADD COLUMN n int")
    await client("INSERT INTO t VALUES (3, 'three', 3)")
    await client("DELETE FROM t WHERE k = 2")
    await client("ALTER TABLE t ADD COLUMN d int DEFAULT 7")
    await client("UPDATE t SET v = 'uno' WHERE k = 1")
    assert await client("SELECT * FROM t ORDER BY k") == [("1", "uno", None, "7"), ("3", "three", "3", "7")]
    await client.script("ALTER TABLE t DROP COLUMN v; ALTER TABLE t RENAME COLUMN n TO m; DELETE FROM t WHERE m = 3")
    assert await client("SELECT * FROM t") == [("1", None, "7")]
    altered = coordinator.store.tables.find("sql/public/t")
    assert altered is not None
    assert altered.id == table.id
    assert await client.fails(f"SELECT * FROM t AS OF {table.since + 1}") == "22023"
    await client("ALTER TABLE t RENAME COLUMN k TO key")  # its key is another, and so is the table
    other = coordinator.store.tables.find("sql/public/t")
    assert other is not None
    assert other.id != table.id
    assert await client("SELECT * FROM t") == [("1", None, "7")]


async def test_rows_for_an_altered_table_are_refused(coordinator: Coordinator) -> None:
    client, other = Client(coordinator), Client(coordinator)
    await client.script("CREATE TABLE t (k bigint, v text); BEGIN; INSERT INTO t VALUES (1, 'one')")
    await other("ALTER TABLE t ADD COLUMN n int")
    assert await client.fails("COMMIT") == "40001"
    assert await other("SELECT * FROM t") == []


def test_read_names_a_table_that_is_dropped_before_its_rows_are_read(tmp_path: Path) -> None:
    async def read(coordinator: Coordinator) -> None:
        reader, other = Client(coordinator), Client(coordinator)
        await other.script("CREATE TABLE v AS SELECT 1 AS n")
        await reader("TABLE v")
        state = reader.session._state
        query = planned(state, "SELECT n + 1 FROM v", ()).query
        assert query is not None
        rows = rows_at(state, query, coordinator.timeline.latest)
        await other("DROP TABLE v")
        with pytest.raises(SqlError, match="was dropped") as raised:
            list(rows)
        assert raised.value.sqlstate == "42P01"

    SqlWorld(tmp_path).within(read)
