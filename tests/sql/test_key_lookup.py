"""Lookups by a key give the rows that an evaluation gives, beside writers, in transactions, and after definitions."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st
from sql_world import Client, SqlWorld

from derive.errors import SqlError
from derive.sql.coordinator import Coordinator
from derive.sql.preparation import plan

CREATE = "CREATE TABLE t (a int, b text, c numeric UNIQUE, d interval, PRIMARY KEY (a, b))"


UNIQUE = "CREATE UNIQUE INDEX ON t (lower(b), a) WHERE c > 0"

LOOKUPS = [
    "SELECT * FROM t WHERE a = 1 AND b = 'x'",
    "SELECT d, a, d AS e FROM t WHERE b = $1 AND a = $2",
    "SELECT a FROM t WHERE c = 1.50",
    "SELECT a FROM t WHERE (c = $1) LIMIT 1",
    "SELECT a FROM t AS u WHERE u.c = $1",
    "SELECT d FROM t WHERE a = $1 AND c > 0 AND lower(b) = 'x'",
]
OTHERS = [
    "SELECT a FROM t WHERE a = 1",
    "SELECT a FROM t WHERE a = 1 AND b = 'x' AND c = 2",
    "SELECT a FROM t WHERE a = 1 AND a = 2 AND b = 'x'",
    "SELECT a FROM t WHERE a = 1 OR b = 'x'",
    "SELECT a FROM t WHERE c > 1",
    "SELECT a FROM t WHERE c = 1 LIMIT 0",
    "SELECT a FROM t WHERE c = 1 OFFSET 1",
    "SELECT a + 1 FROM t WHERE c = 1",
    "SELECT count(*) FROM t WHERE c = 1",
    "SELECT t.a FROM t, t AS u WHERE t.c = 1",
    "SELECT d FROM t WHERE a = $1 AND lower(b) = 'x'",
    "SELECT d FROM t WHERE a = $1 AND upper(b) = 'x' AND c > 0",
    "SELECT d FROM t WHERE a = $1 AND lower(b) = 'x' AND c > 0 AND d IS NULL",
    "SELECT a FROM u WHERE a = 1",
    "SELECT a FROM v WHERE c = 1",
]


def test_queries_of_one_key_are_lookups(tmp_path: Path) -> None:
    async def check(coordinator: Coordinator) -> None:
        client = Client(coordinator)
        await client.script(CREATE, UNIQUE, "CREATE TABLE u (a int)", "CREATE VIEW v AS SELECT a, c FROM t")
        objects = coordinator.objects
        queries = {text: plan(text, (), objects).query for text in LOOKUPS + OTHERS}
        found = [text for text, query in queries.items() if query and coordinator.key_lookups.find(query, objects)]
        assert found == LOOKUPS

    SqlWorld(tmp_path).within(check)


_STATEMENTS = st.sampled_from(
    [
        "INSERT INTO t VALUES ({k}, 'x', {v}, '1 day') ON CONFLICT DO NOTHING",
        "UPDATE t SET c = {v} + 10 * {k} WHERE a = {k}",
        "UPDATE t SET a = a + 1 WHERE a = {v}",
        "DELETE FROM t WHERE a = {k}",
        "BEGIN",
        "COMMIT",
        "ROLLBACK",
    ]
)


@settings(max_examples=5, deadline=None)
@given(st.lists(st.tuples(st.booleans(), _STATEMENTS, st.integers(0, 3), st.integers(0, 3)), max_size=14))
def test_lookups_equal_evaluations(statements: list[tuple[bool, str, int, int]]) -> None:
    """At each time and in each transaction, a row found by its key is the row that a scan of the table finds."""

    async def check(coordinator: Coordinator) -> None:
        clients = Client(coordinator), Client(coordinator)
        await clients[0].script(CREATE, UNIQUE)
        for is_second, text, key, value in statements:
            client = clients[is_second]
            try:
                await client.tag(text.format(k=key, v=value))
            except SqlError:  # a conflict with the other client
                await client.tag("ROLLBACK")
            for reader in clients:
                rows = await reader("SELECT c, a, d FROM t WHERE b || '' = 'x'")
                for number in range(5):
                    found = await reader("SELECT c, a, d FROM t WHERE b = 'x' AND a = $1", number)
                    assert found == [row for row in rows if row[1] == str(number)]
                    found = await reader(f"SELECT a FROM t WHERE c = {number}")
                    assert found == [(a,) for c, a, _ in rows if c == str(number)]

    with TemporaryDirectory() as folder:
        SqlWorld(Path(folder)).within(check)
