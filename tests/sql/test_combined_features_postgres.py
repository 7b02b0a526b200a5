"""Features that meet in one script, held against a real PostgreSQL; `random_scripts.py` finds such scripts."""

from __future__ import annotations

from pathlib import Path

import pytest
from postgres_scripts import outcomes
from psycopg import Connection
from sql_world import Client
from test_views import until_maintained

from derive.sql.coordinator import Coordinator

SCRIPTS: dict[str, tuple[str, ...]] = {
    "a generated column of a wider type than its expression": (
        "CREATE TABLE t (s smallint, g int GENERATED ALWAYS AS (s) STORED)",
        "INSERT INTO t (s) VALUES (1) RETURNING pg_typeof(s)::text, pg_typeof(g)::text, g",
        "UPDATE t SET s = 2 RETURNING pg_typeof(s)::text, pg_typeof(g)::text, g",
        "ALTER TABLE t ADD b bigint GENERATED ALWAYS AS (s) STORED",
        "UPDATE t SET s = 3 RETURNING pg_typeof(b)::text, b",
        "CREATE FUNCTION wide(x int) RETURNS bigint IMMUTABLE LANGUAGE SQL AS 'SELECT x'",
        "SELECT pg_typeof(wide(g))::text, wide(g) FROM t",
    ),
    "a text of char(n) in another column": (
        "CREATE TABLE t (c char(3), h text, g text GENERATED ALWAYS AS (c) STORED)",
        "INSERT INTO t (c, h) VALUES ('x', 'y'::char(4)) RETURNING *",
        "UPDATE t SET h = c RETURNING h, c, g, h || '|'",
        "INSERT INTO t (h, c) SELECT c, h FROM t RETURNING h, c, g",
        "WITH d AS (UPDATE t SET h = c RETURNING h, c) SELECT h, c, h || '|' FROM d",
        "CREATE FUNCTION same(x text) RETURNS text IMMUTABLE LANGUAGE SQL AS 'SELECT x'",
        "SELECT same(c), same('x'::char(3)), same(c) || '|', length(same(c)) FROM t",
    ),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_combined_statements_equal_postgresql(name: str, postgres: Connection, tmp_path: Path) -> None:
    ours, theirs = outcomes(SCRIPTS[name], postgres, tmp_path)
    assert ours == theirs


async def test_view_is_not_replaced_by_a_query_of_itself(client: Client) -> None:
    """PostgreSQL accepts such a view, and refuses to read it."""
    await client.script("CREATE VIEW v AS SELECT 1 AS a", "CREATE VIEW w AS SELECT a FROM v")
    assert await client.fails("CREATE OR REPLACE VIEW w AS SELECT a + 1 AS a FROM w") == "42P17"
    assert await client.fails("CREATE OR REPLACE VIEW v AS SELECT a FROM w") == "42P17"
    await client("CREATE OR REPLACE VIEW v AS SELECT 2 AS a")
    assert await client("TABLE w") == [("2",)]
    await client("CREATE MATERIALIZED VIEW m AS SELECT a FROM w")
    error = await client.error("CREATE OR REPLACE VIEW v AS SELECT 3 AS a")
    assert (error.sqlstate, error.detail) == ("2BP01", "These depend on it: materialized view m.")
    assert await client("TABLE m") == [("2",)]


async def test_returning_reads_a_maintained_view_beside_generated_columns(
    coordinator: Coordinator, client: Client
) -> None:
    await client.script(
        "CREATE TABLE t (k int PRIMARY KEY, g int GENERATED ALWAYS AS (k * 2) STORED)",
        "CREATE TABLE u (a int)",
        "CREATE MATERIALIZED VIEW m AS SELECT a FROM u",
        "INSERT INTO u VALUES (7)",
    )
    await until_maintained(coordinator, "m")
    assert await client("INSERT INTO t (k) VALUES (1) RETURNING g, (SELECT max(a) FROM m)") == [("2", "7")]
    assert await client("UPDATE t SET k = 2 RETURNING g, (SELECT max(a) FROM m)") == [("4", "7")]
    query = "WITH d AS (INSERT INTO t (k) VALUES (3) RETURNING g) SELECT g, a FROM d, m"
    assert await client(query) == [("6", "7")]


async def test_views_over_views_follow_an_altered_table(coordinator: Coordinator, client: Client) -> None:
    """A view over a view is maintained from the present columns of the table, also beside a later view."""
    await client.script(
        "CREATE TABLE t (x int, y int, k int)",
        "INSERT INTO t VALUES (1, 10, 100)",
        "CREATE MATERIALIZED VIEW below AS SELECT k FROM t",
        "CREATE MATERIALIZED VIEW above AS SELECT k + 1 AS k FROM below",
    )
    names = ["below", "above"]
    for change in ("ADD COLUMN z int", "DROP COLUMN y", "ADD COLUMN v int"):
        for name in names:
            await until_maintained(coordinator, name)
        names.append(f"later{len(names)}")
        await client.script(
            f"ALTER TABLE t {change}",
            "INSERT INTO t (x, k, z) VALUES (2, 20, 200)",
            f"CREATE MATERIALIZED VIEW {names[-1]} AS SELECT x, z FROM t",
        )
        await until_maintained(coordinator, names[-1])
        await client("UPDATE t SET k = k + 1")
        assert await client("SELECT k FROM above EXCEPT ALL SELECT k + 1 FROM t") == []
        assert await client(f"SELECT x, z FROM {names[-1]} EXCEPT ALL SELECT x, z FROM t") == []
        assert {error for _, _, error, *_ in await client("SHOW MAINTENANCE")} == {None}
