"""Statements that write, held against a real PostgreSQL: the same tags, rows and errors, and the same tables in the end."""

from __future__ import annotations

from pathlib import Path

import pytest
from postgres_scripts import in_ours, in_postgres, outcomes
from psycopg import Connection
from sql_world import SqlWorld

SCRIPTS = {
    "WITH before writes": (
        "CREATE TABLE t (a int, b text)",
        "WITH x AS (SELECT 1 AS a UNION ALL SELECT 2) INSERT INTO t SELECT a, 'n' || a FROM x RETURNING a",
        "WITH x AS (SELECT 2 AS a), y AS (SELECT a + 1 AS a FROM x) INSERT INTO t (a) TABLE y",
        "WITH x AS (SELECT max(a) AS m FROM t) UPDATE t SET b = (SELECT m::text FROM x) WHERE a < (SELECT m FROM x)",
        "WITH x AS (SELECT * FROM t WHERE a = 2) UPDATE t SET b = x.b || '!' FROM x WHERE t.a = x.a RETURNING t.a, t.b",
        "WITH x (k) AS (VALUES (1), (7)) DELETE FROM t USING x WHERE t.a = x.k RETURNING *",
        "WITH x AS (SELECT 3 AS k) DELETE FROM t WHERE a IN (SELECT k FROM x)",
        "WITH x AS (SELECT 5 AS a) INSERT INTO t WITH x AS (SELECT 6 AS a) SELECT a FROM x",
        "WITH x AS (SELECT 1), x AS (SELECT 2) DELETE FROM t",
        "WITH x AS (SELECT 1 AS a) UPDATE x SET a = 2",
        "WITH x AS (SELECT 1 AS a) INSERT INTO t VALUES ((SELECT a FROM x), 'v')",
        "TABLE t",
    ),
    "rows that conditions say": (
        "CREATE TABLE t (a int, b text, c char(4), d numeric(6, 2), e date, f boolean, g smallint)",
        "CREATE VIEW u AS SELECT g FROM generate_series(1, 60) AS g",
        "INSERT INTO t SELECT g, 'n' || g % 7, 'x' || g, g / 4.0, DATE '2024-01-01' + g, g % 2 = 0, g % 5 FROM u",
        "INSERT INTO t (a) VALUES (NULL), (5)",
        "UPDATE t SET b = b || '!' WHERE a = 7 RETURNING a, b",
        "UPDATE t SET a = a + 100 WHERE a BETWEEN 10 AND 12 AND b <> 'n4' RETURNING *",
        "DELETE FROM t WHERE a IN (1, 2, NULL, 200) RETURNING a",
        "DELETE FROM t WHERE a > 100 AND a < 112 RETURNING a",
        "UPDATE t SET f = NULL WHERE NOT f AND g = 3 RETURNING a",
        "DELETE FROM t WHERE d = 10.50 OR d = 11 RETURNING d",
        "DELETE FROM t WHERE c = 'x20' RETURNING c",
        "DELETE FROM t WHERE e = '2024-02-01' RETURNING e",
        "UPDATE t SET b = 'z' WHERE b >= 'n6' RETURNING a, b",
        "UPDATE t SET b = x.b FROM (VALUES (30, 'thirty'), (31, 'more')) AS x (a, b) WHERE t.a = x.a AND t.g = 0",
        "UPDATE t SET a = NULL WHERE a = NULL OR a < NULL",
        "DELETE FROM t WHERE f AND a = 5 OR b = 'z!'",
        "SELECT * FROM t",
    ),
    "TRUNCATE": (
        "CREATE TABLE t (a int)",
        "CREATE TABLE u (a int)",
        "INSERT INTO t VALUES (1), (1), (2)",
        "INSERT INTO u VALUES (1)",
        "TRUNCATE TABLE ONLY t, u, t RESTART IDENTITY CASCADE",
        "TABLE t",
        "TABLE u",
        "INSERT INTO t VALUES (3)",
        "TRUNCATE t",
        "TRUNCATE nowhere",
        "TABLE t",
    ),
    "defaults": (
        "CREATE TABLE t (a int DEFAULT 1 + 2 NOT NULL, b text DEFAULT 'x' || 'y', c numeric NULL DEFAULT 1, d text)",
        "INSERT INTO t DEFAULT VALUES RETURNING *",
        "INSERT INTO t VALUES (DEFAULT, DEFAULT, 5, 'd'), (7, 'z', DEFAULT, DEFAULT) RETURNING *",
        "INSERT INTO t (b) VALUES (NULL), ('w')",
        "INSERT INTO t (d, a) SELECT 's', 8",
        "INSERT INTO t (b) TABLE t",
        "INSERT INTO t VALUES (NULL)",
        "UPDATE t SET a = DEFAULT, d = DEFAULT WHERE b = 'z' RETURNING *",
        "UPDATE t SET b = DEFAULT || '!'",
        "TABLE t",
        "CREATE TABLE n (a timestamptz DEFAULT now(), b date DEFAULT '2024-02-29', c double precision DEFAULT -1.5e0)",
        "INSERT INTO n DEFAULT VALUES",
        "SELECT a <= now() AND a > now() - interval '1 minute', b, c FROM n",
        "CREATE TABLE e (a int DEFAULT 'x')",
        "CREATE TABLE e (a int DEFAULT true)",
        "CREATE TABLE e (a int, b int DEFAULT a)",
        "CREATE TABLE e (a int DEFAULT (SELECT 1))",
        "CREATE TABLE e (a int DEFAULT max(1))",
        "CREATE TABLE e (a int DEFAULT 1 DEFAULT 2)",
        "CREATE TABLE e (a int DEFAULT nothing())",
        "CREATE TABLE e (a smallint DEFAULT 100000)",
        "INSERT INTO e DEFAULT VALUES",
        "CREATE TABLE g (a boolean DEFAULT (1 = 1 AND NOT false) NOT NULL, b int[] DEFAULT '{1,2}')",
        "INSERT INTO g DEFAULT VALUES RETURNING a, b",
    ),
    "columns": (
        "CREATE TABLE t (a int, b text NOT NULL DEFAULT 'x')",
        "INSERT INTO t VALUES (1, 'p'), (1, 'p'), (2, 'q')",
        "ALTER TABLE t ADD COLUMN c int DEFAULT 7 NOT NULL, ADD d text",
        "INSERT INTO t (a) VALUES (3) RETURNING *",
        "ALTER TABLE t ADD COLUMN c int",
        "ALTER TABLE ONLY t ADD COLUMN IF NOT EXISTS c int",
        "ALTER TABLE t ADD e int NOT NULL",
        "ALTER TABLE t DROP COLUMN nothing",
        "ALTER TABLE t DROP COLUMN IF EXISTS nothing, DROP a",
        "ALTER TABLE IF EXISTS nowhere ADD a int",
        "ALTER TABLE nowhere ADD a int",
        "BEGIN",
        "ALTER TABLE t ADD g boolean DEFAULT true",
        "INSERT INTO t (c) VALUES (9)",
        "ALTER TABLE t DROP b",
        "SELECT * FROM t",
        "ROLLBACK",
        "TABLE t",
        "DELETE FROM t WHERE b = 'p'",
        "TABLE t",
    ),
    "altered": (
        "CREATE TABLE t (a int, b text NOT NULL DEFAULT 'x')",
        "INSERT INTO t VALUES (1, 'p'), (NULL, 'q')",
        "ALTER TABLE t RENAME COLUMN a TO n",
        "ALTER TABLE t RENAME b TO s",
        "ALTER TABLE t RENAME COLUMN n TO s",
        "ALTER TABLE t RENAME COLUMN nothing TO m",
        "SELECT n, s FROM t",
        "ALTER TABLE t ALTER COLUMN n SET DEFAULT 5 + 2, ALTER s DROP DEFAULT",
        "INSERT INTO t (s) VALUES ('r') RETURNING n, s",
        "INSERT INTO t (n) VALUES (3)",
        "ALTER TABLE t ALTER n SET NOT NULL",
        "ALTER TABLE t ALTER s DROP NOT NULL",
        "INSERT INTO t (n) VALUES (3) RETURNING n, s",
        "DELETE FROM t WHERE n IS NULL",
        "ALTER TABLE t ALTER n SET NOT NULL",
        "INSERT INTO t VALUES (NULL, 'z')",
        "ALTER TABLE t ALTER n SET DEFAULT 'x'",
        "ALTER TABLE t ALTER nothing DROP DEFAULT",
        "ALTER TABLE t ADD c int, ALTER c SET DEFAULT 4",
        "INSERT INTO t VALUES (8, 'z') RETURNING *",
        "TABLE t",
    ),
    "changing values": (
        "CREATE TABLE t (a int)",
        "INSERT INTO t SELECT * FROM generate_series(1, 60)",
        "SELECT count(*) FROM (SELECT a, a AS b FROM (SELECT random() AS a FROM t) x) y WHERE a <> b",
        "SELECT count(*) FROM (SELECT a, a AS b FROM (SELECT random() AS a FROM t) x WHERE a > 0.5) y WHERE a < 0.5",
    ),
    "times of a new table": (
        "CREATE TABLE t AS SELECT now() AS a, nullif(now(), now()) AS b FROM generate_series(1, 50)",
        "SELECT count(DISTINCT a), count(b) FROM t",
        "BEGIN",
        "CREATE TEMPORARY TABLE u AS SELECT now() AS a, current_timestamp AS b FROM generate_series(1, 50)",
        "SELECT count(*) FROM u WHERE a = now() AND b = now()",
        "COMMIT",
    ),
    "joined": (
        "CREATE TABLE t (a int, b int)",
        "INSERT INTO t VALUES (1, 10), (2, 20), (3, 30)",
        "UPDATE t SET b = t.b + v.n FROM (VALUES (1, 5), (3, 7)) v (k, n) WHERE v.k = t.a RETURNING t.a, n",
        "DELETE FROM t USING t AS o WHERE o.a = t.a + 1 AND o.b = 20",
        "VALUES (1, 'x'), (2, 'y') ORDER BY 1 DESC LIMIT 1",
        "SELECT * FROM t",
    ),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_write_statements_equal_postgresql(name: str, postgres: Connection, tmp_path: Path) -> None:
    ours, theirs = outcomes(SCRIPTS[name], postgres, tmp_path)
    assert ours == theirs


def test_returning_of_on_conflict_has_the_order_of_the_input(postgres: Connection, tmp_path: Path) -> None:
    texts = (
        "CREATE TABLE t (a int PRIMARY KEY, b int, c text UNIQUE)",
        "INSERT INTO t VALUES (2, 0, 'x'), (4, 0, 'y')",
        (
            "INSERT INTO t VALUES (1, 1, 'p'), (4, 1, 'q'), (3, 1, 'r'), (2, 1, 's'), (5, 1, 't') ON CONFLICT (a)"
            " DO UPDATE SET b = t.b + 10 RETURNING *"
        ),
        (
            "INSERT INTO t VALUES (8, 2, 'y'), (9, 2, 'z'), (10, 2, 'x') ON CONFLICT (c) DO UPDATE SET b = 7, a = t.a + 20"
            " WHERE t.a = 4 RETURNING *"
        ),
    )
    ours = SqlWorld(tmp_path).within(lambda coordinator: in_ours(coordinator, texts))
    assert ours == in_postgres(postgres, texts)
