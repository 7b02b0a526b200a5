"""Rows, held against a real PostgreSQL: as JSON, as texts, their NULLs and comparisons; and repeated ON CONFLICT."""

from __future__ import annotations

from pathlib import Path

import pytest
from postgres_scripts import maintained, outcomes
from psycopg import Connection

TABLES = (
    "CREATE TABLE t (a int, b numeric(6,2), c text, d boolean, e char(3), f timestamptz)",
    "INSERT INTO t VALUES (1, 1.25, 'x', true, 'ab', '2020-01-01 10:00+00'), (2, NULL, 'a \"b\\', false, '', NULL), (3, 3.25, '', NULL, NULL, NULL)",
    "INSERT INTO t (a) VALUES (NULL)",
    "CREATE TABLE u (a int, g text)",
    "INSERT INTO u VALUES (1, 'one'), (2, NULL)",
)
SCRIPTS = {
    "rows": (
        *TABLES,
        "SELECT to_jsonb(t) FROM t",
        "SELECT to_jsonb(ROW(1, 'a', NULL, true)), to_jsonb((1, 2)), row_to_json(ROW(1.25))::jsonb",
        "SELECT jsonb_agg(t ORDER BY a) FROM t",
        "SELECT a, jsonb_agg(u ORDER BY g) FROM u GROUP BY a",
        "SELECT jsonb_build_object('row', u, 'n', 1), jsonb_build_array(u.*, ROW(u.*, 1)) FROM u",
        "SELECT jsonb_object_agg(a, u) FROM u",
        "SELECT (SELECT to_jsonb(s) FROM (SELECT t.a, t.c) s) FROM t",
        "SELECT t.a, to_jsonb(u), to_jsonb(t) -> 'c' FROM t LEFT JOIN u ON t.a = u.a",
        "SELECT count(u), count(*), count(ROW(u.a)) FROM t LEFT JOIN u ON t.a = u.a",
        "SELECT t::text, t.*::text, ROW(a, b, d, e)::text, CAST((c, 1) AS text) FROM t",
        "SELECT u::text, u IS NULL, u IS NOT NULL FROM t LEFT JOIN u ON t.a = u.a",
        "SELECT a, t IS NULL, t IS NOT NULL, t.* IS NULL, ROW(t.*) IS NOT NULL, (a, b) IS NULL FROM t",
        "SELECT ROW(1, 'a b', NULL, 'x\"y\\', '', 'p,q', '(')::text, ROW(NULL)::text",
        "SELECT v::text FROM (VALUES (1, 'a'), (2, NULL)) v",
        "SELECT (a, b) = (1, 1.25), (a, b) < (2, 0), (a, b) IN ((1, 1.25), (3, 4)), (a, b) IN (SELECT 3, 3.25) FROM t",
        "UPDATE t SET (a, b) = (SELECT 7, 8.25) WHERE a = 1 RETURNING t::text, to_jsonb(t)",
    ),
    "results": (
        *TABLES,
        "SELECT t FROM t ORDER BY a",
        "SELECT t, t.a + 1, u FROM t LEFT JOIN u ON t.a = u.a ORDER BY t.a",
        "SELECT ROW(1, 2), (1, 'a b', NULL), ROW(NULL), ROW('')",
        "SELECT ROW(t.*, u.g) AS both FROM t JOIN u USING (a) ORDER BY both IS NULL, g",
        "SELECT (a, count(*)) FROM u GROUP BY a ORDER BY a",
        "SELECT t FROM t WHERE a > 1 ORDER BY a LIMIT 1",
        "WITH w AS (SELECT a, b FROM t) SELECT w FROM w ORDER BY a",
        "SELECT t.f FROM (SELECT ROW(1, 2)::text AS f) t",
        "SELECT v FROM (VALUES (1, 'a'), (2, NULL)) AS v ORDER BY column1",
        "SELECT a, g FROM (((((SELECT a FROM t) s JOIN u USING (a)))))",
        "SELECT * FROM ((((SELECT a FROM u WHERE a = 1))) s CROSS JOIN (((SELECT 2 AS b))) z)",
        "SELECT * FROM ((((SELECT a FROM u WHERE) s JOIN u USING (a))))",
    ),
    "repeated conflicts": (
        "CREATE TABLE k (id int PRIMARY KEY, n int)",
        "INSERT INTO k VALUES (1, 1), (2, 2)",
        "INSERT INTO k VALUES (1, 5), (1, 6) ON CONFLICT (id) DO UPDATE SET n = excluded.n",
        "INSERT INTO k VALUES (1, 5), (1, 6) ON CONFLICT (id) DO UPDATE SET n = excluded.n WHERE k.n = 99 RETURNING *",
        "INSERT INTO k VALUES (1, 5), (2, 9), (1, 6) ON CONFLICT (id) DO UPDATE SET n = excluded.n WHERE excluded.n = 6 RETURNING *",
        "INSERT INTO k VALUES (1, 5), (1, 7), (1, 8) ON CONFLICT (id) DO UPDATE SET n = excluded.n WHERE excluded.n = 5",
        "INSERT INTO k VALUES (1, 5), (1, 7), (1, 8) ON CONFLICT (id) DO UPDATE SET n = excluded.n WHERE excluded.n = 7",
        "INSERT INTO k VALUES (1, 5), (1, 7), (1, 8) ON CONFLICT (id) DO UPDATE SET n = excluded.n WHERE excluded.n = 8",
        "INSERT INTO k VALUES (3, 5), (3, 6) ON CONFLICT (id) DO UPDATE SET n = excluded.n WHERE false",
        "INSERT INTO k VALUES (4, 5), (4, 6) ON CONFLICT (id) DO NOTHING",
        "TABLE k",
    ),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_rows_equal_postgresql(name: str, postgres: Connection, tmp_path: Path) -> None:
    postgres.execute("SET TimeZone = 'UTC'")
    ours, theirs = outcomes(SCRIPTS[name], postgres, tmp_path)
    assert ours == theirs


def test_maintained_views_of_rows_equal_postgresql(postgres: Connection, tmp_path: Path) -> None:
    queries = (
        "SELECT to_jsonb(u) AS j, u::text AS r, u IS NULL AS n FROM u",
        "SELECT t.a, jsonb_agg(u ORDER BY u.g) AS us, count(u) AS n FROM t LEFT JOIN u ON t.a = u.a GROUP BY t.a",
    )
    changes = (
        "INSERT INTO u VALUES (1, 'uno'), (3, ''), (NULL, NULL)",
        "UPDATE u SET g = 'two' WHERE a = 2",
        "DELETE FROM u WHERE a = 1",
    )
    ours, theirs = maintained(TABLES, queries, changes, postgres, tmp_path)
    assert ours == theirs
