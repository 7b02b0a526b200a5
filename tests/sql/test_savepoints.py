"""Savepoints: a transaction goes back to where it was."""

from __future__ import annotations

import pytest
from conftest import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sql_world import Client, SqlWorld

from derive.sql.coordinator import Coordinator


async def test_rollback_to_a_savepoint_undoes_later_statements(client: Client) -> None:
    await client.script(
        "CREATE TABLE t (a int); BEGIN; INSERT INTO t VALUES (1); SAVEPOINT s; INSERT INTO t VALUES (2)",
        "CREATE TABLE u (a int)",
    )
    assert await client.tag("ROLLBACK TO SAVEPOINT s") == "ROLLBACK"
    assert await client.fails("SELECT * FROM u") == "42P01"
    assert await client.tag("ROLLBACK TO s") == "ROLLBACK"  # also from a failed transaction, and again
    await client("INSERT INTO t VALUES (3)")
    assert await client.tag("RELEASE s") == "RELEASE"
    assert await client.tag("COMMIT") == "COMMIT"
    assert await client("SELECT a FROM t ORDER BY a") == [("1",), ("3",)]
    assert await client.fails("SELECT * FROM u") == "42P01"


async def test_savepoint_names_may_repeat(client: Client) -> None:
    assert await client.fails("SAVEPOINT s") == "25P01"
    await client.script(
        "CREATE TABLE t (a int); BEGIN; SAVEPOINT s; INSERT INTO t VALUES (1); SAVEPOINT s; INSERT INTO t VALUES (2)",
        "ROLLBACK TO s",
    )
    await client("RELEASE SAVEPOINT s")  # the second; the first one of this name is there again
    await client.script("ROLLBACK TO s; INSERT INTO t VALUES (3); RELEASE s; SAVEPOINT savepoint")
    assert await client.fails("RELEASE s") == "3B001"
    assert await client.fails("RELEASE savepoint") == "25P02"
    await client.script("ROLLBACK TO savepoint; COMMIT")
    assert await client("SELECT a FROM t") == [("3",)]
    assert await client.fails("ROLLBACK TO savepoint") == "25P01"


async def test_rollback_to_a_savepoint_restores_cursors_and_settings(client: Client) -> None:
    await client.script(
        "BEGIN; DECLARE before CURSOR FOR SELECT 1; SET application_name = 'before'; SAVEPOINT s",
        "SET application_name = 'after'; DECLARE after CURSOR FOR SELECT 2; ROLLBACK TO s",
    )
    assert await client("SHOW application_name") == [("before",)]
    assert await client("FETCH before") == [("1",)]
    assert await client.fails("FETCH after") == "34000"


STEPS = st.lists(st.sampled_from(["write", "define", "drop", "set", "release", "back"]), max_size=12)


@settings(max_examples=examples(60, 10), deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=STEPS)
def test_transaction_commits_statements_kept_by_savepoints(
    steps: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The oracle is a stack of copies of what there should be."""

    async def work(coordinator: Coordinator) -> None:
        client = Client(coordinator)
        await client.script("CREATE TABLE t (a int); BEGIN")
        tables: list[int] = []
        rows: list[int] = []
        stack: list[tuple[list[int], list[int]]] = []
        for number, step in enumerate(steps):
            if step == "write":
                await client(f"INSERT INTO t VALUES ({number})")
                rows = [*rows, number]
            elif step == "define":
                await client.script(f"CREATE TABLE t{number} (a int); INSERT INTO t{number} VALUES ({number})")
                tables = [*tables, number]
            elif step == "drop" and tables:
                await client(f"DROP TABLE t{tables[0]}")
                tables = tables[1:]
            elif step == "set":
                await client("SAVEPOINT s")
                stack.append((tables, rows))
            elif step == "release" and stack:
                await client("RELEASE s")
                stack.pop()
            elif step == "back" and stack:
                await client("ROLLBACK TO s")
                tables, rows = stack[-1]
        await client("COMMIT")
        assert await client("SELECT a FROM t ORDER BY a") == [(str(row),) for row in rows]
        assert sorted(await client("SHOW TABLES")) == sorted([("t",), *((f"t{number}",) for number in tables)])
        for number in tables:
            assert await client(f"SELECT a FROM t{number}") == [(str(number),)]

    SqlWorld(tmp_path_factory.mktemp("savepoints")).within(work)
