"""Keys in transactions of several clients: one commit of a group, snapshots, and reads by key."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from sql_world import Client

from derive.errors import SqlError
from derive.sql.coordinator import Coordinator


async def outcome(client: Client, text: str) -> str:
    """Return the tag of a statement, or the SQLSTATE with which it fails."""
    try:
        return await client.tag(text)
    except SqlError as error:
        return error.sqlstate


async def test_one_of_equal_keys_in_a_group_commits(coordinator: Coordinator) -> None:
    clients = [Client(coordinator) for _ in range(5)]
    await clients[0]("CREATE TABLE t (a int PRIMARY KEY, b int)")
    for number, client in enumerate(clients):
        await client("BEGIN")
        await client(f"INSERT INTO t VALUES (1, {number})")  # no other client has committed
    outcomes = await asyncio.gather(*(outcome(client, "COMMIT") for client in clients))

    assert sorted(outcomes) == ["23505"] * 4 + ["COMMIT"]
    assert len(await clients[0]("TABLE t")) == 1
    assert sorted(await asyncio.gather(*(outcome(one, "INSERT INTO t VALUES (2, 2)") for one in clients))) == [
        *["23505"] * 4,
        "INSERT 0 1",
    ]


async def test_upserts_of_many_clients_lose_no_update(coordinator: Coordinator) -> None:
    clients = [Client(coordinator) for _ in range(6)]
    await clients[0]("CREATE TABLE t (a int PRIMARY KEY, b int)")
    text = "INSERT INTO t VALUES (1, 1) ON CONFLICT (a) DO UPDATE SET b = t.b + 1"

    async def three(client: Client) -> None:
        for _ in range(3):
            await client(text)

    await asyncio.gather(*map(three, clients))
    assert await clients[0]("TABLE t") == [("1", "18")]


async def test_duplicate_key_that_a_snapshot_lacks_is_a_conflict(coordinator: Coordinator) -> None:
    one, two = Client(coordinator), Client(coordinator)
    await one("CREATE TABLE t (a int PRIMARY KEY)")
    await one("BEGIN")
    assert await one("SELECT count(*) FROM t") == [("0",)]
    await two("INSERT INTO t VALUES (1)")

    assert await one.fails("INSERT INTO t VALUES (1)") == "40001"  # the row is not there at the time of its reads
    await one("ROLLBACK")
    await one("BEGIN")
    await one("SAVEPOINT s")
    assert await one.fails("INSERT INTO t VALUES (1)") == "23505"
    await one("ROLLBACK TO s")
    await two("DELETE FROM t")
    await one("INSERT INTO t VALUES (2)")
    assert await one.fails("COMMIT") == "40001"  # it was told of a row that is gone


async def test_reads_by_key_see_the_time_of_their_transaction(coordinator: Coordinator) -> None:
    one, two = Client(coordinator), Client(coordinator)
    await one("CREATE TABLE t (a int, b text, c int UNIQUE, PRIMARY KEY (a, b))")
    await one("INSERT INTO t VALUES (1, 'x', 1), (1, 'y', 2), (2, 'x', 3)")
    by_key = "SELECT c FROM t WHERE b = 'x' AND a IN (1, 3)"
    assert await one(by_key) == [("1",)]
    await one("BEGIN")
    assert await one(by_key) == [("1",)]
    await two("UPDATE t SET c = 10 WHERE a = 1 AND b = 'x'")
    assert await two("SELECT a, b FROM t WHERE c = 10") == [("1", "x")]
    assert await one(by_key) == [("1",)]
    assert await one("SELECT c FROM t WHERE c = 1") == [("1",)]
    await one("UPDATE t SET c = 11 WHERE a = 2 AND b = 'x'")
    assert await one("SELECT c FROM t WHERE a = 2 AND b = 'x'") == [("11",)]
    assert await one("SELECT a FROM t WHERE c IN (3, 11)") == [("2",)]
    assert await one.fails("COMMIT") == "40001"
    assert await one("SELECT c FROM t WHERE a = 2 AND b = 'x'") == [("3",)]
    assert await one("SELECT t.c, u.c FROM t JOIN t AS u USING (b) WHERE t.a = 1 AND u.a = 2") == [("10", "3")]
    await two("ALTER TABLE t DROP COLUMN b")
    assert await one("SELECT a FROM t WHERE c = 10") == [("1",)]


async def test_open_transaction_conflicts_with_a_new_constraint(coordinator: Coordinator) -> None:
    one, two = Client(coordinator), Client(coordinator)
    await one("CREATE TABLE t (a int)")
    await one("BEGIN")
    await one("INSERT INTO t VALUES (-1)")
    await two("ALTER TABLE t ADD CHECK (a > 0), ADD UNIQUE (a)")

    assert await one.fails("COMMIT") == "40001"
    assert await one.fails("INSERT INTO t VALUES (-1)") == "23514"
    await one("BEGIN")
    await one("ALTER TABLE t ADD b int UNIQUE")
    await two("INSERT INTO t VALUES (5)")
    assert await one.fails("COMMIT") == "40001"


async def test_copied_rows_are_checked_and_completed(client: Client) -> None:
    await client(
        "CREATE TABLE t (a int PRIMARY KEY, b serial, c int GENERATED ALWAYS AS (a * 2) STORED, CHECK (a < 10))"
    )
    assert await copied(client, "COPY t (a) FROM STDIN", b"1\n2\n") == "1"
    assert await copied(client, "COPY t FROM STDIN", b"3\t7\n") == "2"
    assert await client("SELECT * FROM t ORDER BY a") == [("1", "1", "2"), ("2", "2", "4"), ("3", "7", "6")]
    assert await copied(client, "COPY t (a) FROM STDIN", b"4\n4\n") == "23505"
    assert await copied(client, "COPY t (a) FROM STDIN", b"2\n") == "23505"
    assert await copied(client, "COPY t (a) FROM STDIN", b"11\n") == "23514"
    assert await copied(client, "COPY t (a) FROM STDIN", b"\\N\n") == "23502"
    assert await client.fails("COPY t (a, c) FROM STDIN") == "42P10"
    assert await client("SELECT count(*) FROM t") == [("3",)]


async def copied(client: Client, text: str, data: bytes) -> str:
    """Return the number of copied columns, or the SQLSTATE of a failure."""

    async def pieces() -> AsyncIterator[bytes]:
        yield data

    prepared = await client.session.prepare(text, ())
    result = await client.session.execute(prepared, ())
    assert result.copy_in
    try:
        await result.copy_in(pieces())
        await client.session.end_implicit()
    except SqlError as error:
        await client.session.fail()
        return error.sqlstate
    return str(len(result.columns or ()))


async def test_views_include_own_writes(coordinator: Coordinator) -> None:
    one, two = Client(coordinator), Client(coordinator)
    await one("CREATE TABLE t (a int PRIMARY KEY, b int)")
    await one("CREATE MATERIALIZED VIEW m AS SELECT b, count(*) AS n FROM t GROUP BY b")
    await one("CREATE VIEW v AS SELECT a FROM t WHERE b > 1")
    await one("CREATE INDEX ON v (a)")
    await one("INSERT INTO t VALUES (1, 1), (2, 2)")
    assert await one("SELECT n FROM m WHERE b = 1") == [("1",)]
    await one("BEGIN")
    await one("INSERT INTO t VALUES (3, 1)")
    await one("UPDATE t SET b = 5 WHERE a = 1")
    assert sorted(await one("SELECT * FROM m")) == [("1", "1"), ("2", "1"), ("5", "1")]
    assert await one("SELECT a FROM v WHERE a = 1") == [("1",)]
    assert sorted(await two("SELECT * FROM m")) == [("1", "1"), ("2", "1")]
    await one("COMMIT")
    assert sorted(await two("SELECT * FROM m")) == [("1", "1"), ("2", "1"), ("5", "1")]
