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
    error = await client.error("CREATE OR REPLACE VIEW v AS SELECT 2 AS a")
    assert (error.sqlstate, error.detail) == ("2BP01", "These depend on it: view w.")
    assert await client("TABLE w") == [("1",)]


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
