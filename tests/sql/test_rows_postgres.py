"""Rows, held against a real PostgreSQL: as JSON, as texts, their NULLs and comparisons; and repeated ON CONFLICT."""

from __future__ import annotations

from pathlib import Path

import pytest
from postgres_scripts import maintained, outcomes
from psycopg import Connection
from sql_world import SqlWorld

from derive.errors import SqlError

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
    "rows as values": (
        "CREATE TABLE t (id int PRIMARY KEY, g text, n numeric(8,2), b boolean, c char(3), iv interval)",
        "INSERT INTO t VALUES (1,'x',1.50,true,'ab','1 day'),(2,'x',-2.25,false,'b','24:00'),(3,'y',NULL,NULL,NULL,NULL),(4,'y',10.00,true,'ab ','1 mon'),(5,NULL,3.75,false,'',NULL)",
        "CREATE TABLE u (id int, g text, v int)",
        "INSERT INTO u VALUES (1,'x',10),(1,'y',20),(2,'x',30),(6,'z',40),(NULL,NULL,50)",
        "SELECT id, (id, g) > ALL (SELECT id, g FROM u WHERE v < 30) AS r FROM t",
        "SELECT id, (id, g) < ANY (SELECT id, g FROM u) AS r FROM t",
        "SELECT id, (id, g) >= ANY (SELECT u.id, u.g FROM u WHERE u.v > t.id * 10) AS r FROM t",
        "SELECT id, (id, g) <= ALL (SELECT id, g FROM u) AS r FROM t",
        "SELECT id, (id, g) = ALL (SELECT id, g FROM u WHERE v = 10) AS r FROM t",
        "SELECT id, (id, g) <> ANY (SELECT id, g FROM u WHERE v = 10) AS r FROM t",
        "SELECT id, (id, c) < ALL (SELECT 4, 'b'::char(5)) AS r FROM t",
        "SELECT id, (n, id) > ANY (SELECT 1, 2.5) AS r FROM t",
        "SELECT id, (id, iv) = ALL (SELECT 1, interval '24 hours') AS r FROM t",
        "SELECT id, (iv, id) >= ALL (SELECT interval '24 hours', 2) AS r FROM t",
        "SELECT (id, g) > ALL (SELECT id FROM u) FROM t",
        "SELECT (id, g) > ALL (SELECT id, g, v FROM u) FROM t",
        "SELECT (id, g) > ALL (SELECT g, id FROM u) FROM t",
        "SELECT g LIKE ANY (SELECT g FROM u) FROM t",
        "SELECT id, id <> ANY (SELECT id FROM u), id = ALL (SELECT 1), id > ALL (SELECT v / 10 FROM u) FROM t",
        "SELECT DISTINCT (g, b) FROM t",
        "SELECT DISTINCT (c, n), b FROM t",
        "SELECT DISTINCT u FROM u",
        "SELECT DISTINCT u FROM t LEFT JOIN u USING (id)",
        "SELECT (g, b), count(*) FROM t GROUP BY 1",
        "SELECT (g, b) AS k, count(*), max(n) FROM t GROUP BY k",
        "SELECT count(*) FROM t GROUP BY (g, b)",
        "SELECT (b, g), count(*) FROM t GROUP BY ROLLUP ((g, b))",
        "SELECT u.*, count(*) FROM u GROUP BY u.id, u.g, u.v",
        "SELECT count(*) FROM u GROUP BY u",
        "SELECT u FROM u GROUP BY u",
        "SELECT id FROM t ORDER BY t DESC LIMIT 2",
        "SELECT (g, id) AS r FROM t ORDER BY r LIMIT 2",
        "SELECT (g, id) FROM t ORDER BY 1 DESC LIMIT 2",
        "SELECT (g, id) FROM t ORDER BY 1 DESC NULLS LAST LIMIT 2",
        "SELECT u, t.id FROM t LEFT JOIN u USING (id) ORDER BY u, t.id LIMIT 3",
        "SELECT u, t.id FROM t LEFT JOIN u USING (id) ORDER BY u DESC, t.id LIMIT 3",
        "SELECT row_number() OVER (ORDER BY id), u FROM u ORDER BY u LIMIT 2",
        "SELECT count(DISTINCT (g, b)) FROM t",
        "SELECT count(DISTINCT (g, c)), count(DISTINCT ROW(b)), count(DISTINCT (n, NULL::int)) FROM t",
        "SELECT g, count(DISTINCT (b, n)) FROM t GROUP BY g",
        "SELECT count(DISTINCT u), count(u) FROM t LEFT JOIN u USING (id)",
        "SELECT count(DISTINCT (g, b)) FILTER (WHERE id > 2) FROM t",
        "SELECT (t).id, (t).g, (u).v FROM t JOIN u ON (t).id = (u).id WHERE (u).v > 10",
        "SELECT (u).*, 1 AS one FROM u",
        "SELECT (u).nothing FROM u",
        "SELECT (ROW(1,'a')).f3",
        "SELECT max((t).n), (t).g FROM t GROUP BY (t).g",
        "SELECT (s).k FROM (SELECT id AS k FROM t) s",
        "SELECT (x).a + 1 FROM (VALUES (1), (2)) x(a)",
        "SELECT (nothing).a FROM t",
        "INSERT INTO u VALUES (9,'q',9) RETURNING u",
        "INSERT INTO u VALUES (9,'q',9), (9,NULL,8) RETURNING u, (id, v), (u).g",
        "UPDATE u SET v = v + 1 WHERE id = 9 RETURNING u.*, u, ROW(g, v)",
        "UPDATE u SET v = t.id FROM t WHERE u.id = t.id RETURNING u, (t).g",
        "DELETE FROM u WHERE id = 9 RETURNING (id, g), u IS NULL, to_jsonb(u)",
    ),
    "rows in subqueries": (
        *TABLES,
        "SELECT r FROM (SELECT ROW(a, c) AS r FROM t) s",
        "SELECT s.r, (r).f1, (s.r).f2, r IS NULL, r IS NOT NULL FROM (SELECT ROW(a, c) AS r FROM t) s",
        "SELECT * FROM (SELECT ROW(1) AS r, 2 AS b) s (x)",
        "SELECT (r).* FROM (SELECT ROW(a, e) AS r FROM t) s",
        "SELECT s.*, 1 AS one FROM (SELECT t AS everything, a FROM t) s",
        "SELECT (everything).b, to_jsonb(everything), to_jsonb(s), everything::text FROM (SELECT t AS everything FROM t) s",
        "WITH c AS (SELECT u AS r, a FROM u) SELECT c.r, count(*) FROM c GROUP BY c.r ORDER BY c.r",
        "WITH c (x) AS (SELECT ROW(a, g) FROM u) SELECT x FROM c WHERE x = ROW(1, 'one'::text)",
        "SELECT ROW(a, g) AS r FROM u UNION ALL SELECT ROW(a, c) FROM t ORDER BY r DESC LIMIT 3",
        "SELECT 1 AS n, ROW(a, g) AS r FROM u UNION ALL SELECT 2, ROW(a, c) FROM t ORDER BY 2, 1 LIMIT 4",
        "SELECT r FROM (SELECT ROW(a) AS r FROM u UNION SELECT ROW(a) FROM t) s",
        "(SELECT u FROM u) EXCEPT (SELECT u FROM u WHERE a = 1)",
        "SELECT DISTINCT r FROM (SELECT ROW(a, g) AS r FROM u CROSS JOIN (VALUES (1), (2)) v) s",
        "SELECT x.r, y.r, x.r = y.r, x.r <> y.r, x.r < y.r, x.r >= y.r, x.r IS DISTINCT FROM y.r FROM (SELECT ROW(a, g) AS r FROM u) x, (SELECT ROW(a, c) AS r FROM t) y",
        "SELECT t = u FROM (SELECT a, g FROM u) t, u",
        "SELECT t.a, s.r FROM t LEFT JOIN (SELECT a, ROW(a, g) AS r FROM u) s USING (a) ORDER BY s.r NULLS FIRST LIMIT 3",
        "SELECT t.a, s.r FROM t LEFT JOIN (SELECT a, ROW(a, g) AS r FROM u) s USING (a) ORDER BY s.r DESC NULLS LAST, t.a LIMIT 3",
        "SELECT count(r), count(*) FROM t LEFT JOIN (SELECT a, ROW(NULL::int, NULL::int) AS r FROM u) s USING (a)",
        "SELECT count(DISTINCT r), min((r).f2) FROM (SELECT ROW(a, g) AS r FROM u) s",
        "SELECT row_to_json((SELECT _e FROM (SELECT t.a AS x, t.c AS y) AS _e))::jsonb FROM t",
        "SELECT coalesce(json_agg(row_to_json((SELECT _e FROM (SELECT t.a AS id) AS _e)) ORDER BY a), '[]')::jsonb FROM t",
        "SELECT jsonb_build_object('row', (SELECT u FROM u WHERE u.a = t.a LIMIT 1), (SELECT 'key'), (SELECT g FROM u WHERE u.a = t.a)) FROM t",
        "SELECT (SELECT u FROM u WHERE u.a = t.a) FROM t",
        "SELECT (SELECT ROW(u.g, t.c) FROM u WHERE u.a = t.a) AS r, a FROM t",
        "SELECT (SELECT u FROM u) FROM t",
        "SELECT r IN (ROW(1, 2), ROW(3, 4)), r NOT IN (ROW(3, 4)) FROM (SELECT ROW(1, 2) AS r) s",
        "SELECT EXISTS (SELECT u FROM u WHERE a > 5)",
        "SELECT ROW(1, ROW(2, 'a b'), NULL), (ROW(1, (2, NULL)))::text",
        "SELECT to_jsonb(ROW(1, ROW(2, 3)))",
        "SELECT a, (SELECT count(*) FROM (SELECT ROW(u.a, t.a) AS r FROM u) s WHERE (s.r).f1 = (s.r).f2) FROM t",
        "SELECT r, (SELECT (s.r).f1 + (x.r).f1 FROM (SELECT ROW(5) AS r) x) FROM (SELECT ROW(a) AS r FROM t) s",
        "SELECT r FROM t, LATERAL (SELECT ROW(t.a, u.g) AS r FROM u WHERE u.a = t.a) s",
        "SELECT q.r FROM ((SELECT 1 AS a, ROW(1, 2) AS r) x JOIN u USING (a)) AS q",
        "WITH RECURSIVE c AS (SELECT 1 AS n, ROW(1, 'x'::text) AS r UNION ALL SELECT n + 1, ROW(n + 1, 'y'::text) FROM c WHERE n < 3) SELECT * FROM c",
        "SELECT (SELECT e FROM (SELECT 1 AS x) AS e) FROM t",
        "SELECT r FROM (SELECT ROW(1) AS r UNION ALL SELECT 1) s",
        "SELECT (r).nothing FROM (SELECT ROW(1) AS r) s",
        "SELECT r = ROW(1, 2) FROM (SELECT ROW(1) AS r) s",
        "SELECT r FROM (SELECT ROW(1) AS r) s, (SELECT ROW(2) AS r) u",
        "CREATE VIEW v AS SELECT ROW(1, 2) AS r",
        "CREATE VIEW v AS SELECT (s.r).f1 FROM (SELECT ROW(1, 2) AS r) s",
        "TABLE v",
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
        "SELECT count(DISTINCT (a, g)) AS n, count(DISTINCT u) AS m, max((u).a) AS a FROM u",
        "SELECT t.a, (t.a, t.c) > ALL (SELECT a, g FROM u) AS r, (t.a, t.c) <= ANY (SELECT a, g FROM u) AS s FROM t",
        "SELECT count(*) AS n FROM u GROUP BY u",
        "SELECT t.a, to_jsonb(s.r) AS j, (s.r).f2 AS g, s.r IS NULL AS n FROM t LEFT JOIN (SELECT a, ROW(a, g) AS r FROM u) s ON t.a = s.a",
        "SELECT count(*) AS n, (r).f1 AS k FROM (SELECT ROW(a) AS r FROM u UNION SELECT ROW(a) FROM t) s GROUP BY r",
        "SELECT row_to_json((SELECT _e FROM (SELECT t.a AS x, t.c AS y) AS _e))::jsonb AS j FROM t",
    )
    changes = (
        "INSERT INTO u VALUES (1, 'uno'), (3, ''), (NULL, NULL)",
        "UPDATE u SET g = 'two' WHERE a = 2",
        "DELETE FROM u WHERE a = 1",
    )
    ours, theirs = maintained(TABLES, queries, changes, postgres, tmp_path)
    assert ours == theirs


@pytest.mark.parametrize(
    "text",
    [
        "SELECT DISTINCT (g, b) FROM t ORDER BY 1",
        "SELECT DISTINCT ON (r) (g, b) AS r, id FROM t",
        "SELECT DISTINCT (b, iv) FROM t",
        "SELECT count(DISTINCT (b, iv)) FROM t",
        "SELECT (g, b), count(*) FROM t GROUP BY ROLLUP (1)",
        "SELECT (g, b) FROM t UNION ALL SELECT (g, b, id) FROM t",
        "SELECT coalesce(r, r) FROM (SELECT (g, b) AS r FROM t) s",
        "SELECT array_agg(r) FROM (SELECT (g, b) AS r FROM t) s",
        "SELECT id FROM t WHERE (g, b) IN (SELECT (g, b) FROM t)",
        "SELECT ARRAY(SELECT t FROM t)",
        "SELECT id FROM t JOIN (SELECT (g, b) AS g FROM t) s USING (g)",
        "SELECT 1 FROM (SELECT (g, b) AS r FROM t) s NATURAL JOIN (SELECT (g, b) AS r FROM t) u",
        "SELECT r || 'a' FROM (SELECT (g, b) AS r FROM t) s",
    ],
)
def test_other_rows_as_values_are_refused(text: str, tmp_path: Path) -> None:
    world = SqlWorld(tmp_path)
    world.script("CREATE TABLE t (id int, g text, b boolean, iv interval)")
    with pytest.raises(SqlError, match="row") as raised:
        world.script(text)
    assert raised.value.sqlstate == "0A000"
