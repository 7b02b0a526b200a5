"""Constraints, ON CONFLICT, identity and generated columns, and reads of own writes, compared with PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from postgres_scripts import outcomes
from postgres_server import server
from psycopg import Connection

SCRIPTS = {
    "keys": (
        "CREATE TABLE t (a int PRIMARY KEY, b text UNIQUE, c int, d text DEFAULT 'x', CONSTRAINT k UNIQUE (c, d))",
        "INSERT INTO t VALUES (1, 'a', 1), (2, 'b', NULL), (3, NULL, NULL), (4, NULL, NULL) RETURNING *",
        "INSERT INTO t VALUES (1, 'c', 1)",
        "INSERT INTO t VALUES (5, 'a', 1)",
        "INSERT INTO t VALUES (5, 'c', 1)",
        "INSERT INTO t VALUES (NULL, 'c', 2)",
        "INSERT INTO t VALUES (5, 'c', 2), (5, 'd', 3)",
        "INSERT INTO t SELECT a, b || '!', 7 FROM t WHERE a = 1",
        "INSERT INTO t SELECT a + 10, NULL, a FROM t",
        "UPDATE t SET a = 2 WHERE a = 1",
        "UPDATE t SET a = a + 100 RETURNING a",
        "UPDATE t SET b = 'b' WHERE a = 101",
        "UPDATE t SET a = NULL WHERE a = 101",
        "DELETE FROM t WHERE a = 101",
        "INSERT INTO t VALUES (101, 'a', 1)",
        "TABLE t",
        "CREATE TABLE n (a numeric(4, 2) PRIMARY KEY, b timestamptz, UNIQUE (b))",
        "INSERT INTO n VALUES (1.0, '2024-01-01 00:00:00+00')",
        "INSERT INTO n VALUES (1.00, NULL)",
        "INSERT INTO n VALUES (2, '2024-01-01 01:00:00+01')",
        "CREATE TABLE f (a double precision PRIMARY KEY, b uuid UNIQUE, c bytea UNIQUE, d date UNIQUE, e boolean UNIQUE)",
        "INSERT INTO f VALUES (0, 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '\\x01', '2024-01-01', true)",
        "INSERT INTO f (a) VALUES (-0.0)",
        "INSERT INTO f VALUES (1, 'A0EEBC999C0B4EF8BB6D6BB9BD380A11')",
        "INSERT INTO f (a, c) VALUES (1, '\\001')",
        "INSERT INTO f (a, d) VALUES (1, '2024-1-1')",
        "INSERT INTO f (a, e) VALUES (1, 't')",
        "INSERT INTO f (a) VALUES ('NaN'), ('NaN')",
    ),
    "definitions": (
        "CREATE TABLE t (a int PRIMARY KEY, b int PRIMARY KEY)",
        "CREATE TABLE t (a int, PRIMARY KEY (a), PRIMARY KEY (a))",
        "CREATE TABLE t (a int, UNIQUE (nothing))",
        "CREATE TABLE t (a int, UNIQUE (a, a))",
        "CREATE TABLE t (a int, PRIMARY KEY (a, a))",
        "CREATE TABLE t (a int, CONSTRAINT x CHECK (a > 0), CONSTRAINT x CHECK (a > 1))",
        "CREATE TABLE t (a int CHECK (a))",
        "CREATE TABLE t (a int CHECK (b > 1))",
        "CREATE TABLE t (a int CHECK (a > (SELECT 1)))",
        "CREATE TABLE t (a int CHECK (max(a) > 1))",
        "CREATE TABLE t (a int GENERATED ALWAYS AS (b) STORED)",
        "CREATE TABLE t (a int, b int GENERATED ALWAYS AS (b + 1) STORED)",
        "CREATE TABLE t (a int, b double precision GENERATED ALWAYS AS (random()) STORED)",
        "CREATE TABLE t (a int, b date GENERATED ALWAYS AS (a) STORED)",
        "CREATE TABLE t (a int DEFAULT 1 GENERATED ALWAYS AS IDENTITY)",
        "CREATE TABLE t (a text GENERATED ALWAYS AS IDENTITY)",
        "CREATE TABLE t (a int NULL PRIMARY KEY)",
        "CREATE TABLE IF NOT EXISTS t (a int CONSTRAINT first PRIMARY KEY, CONSTRAINT second UNIQUE (a))",
        "INSERT INTO t VALUES (1)",
        "INSERT INTO t VALUES (1)",
    ),
    "checks": (
        "CREATE TABLE t (a int CHECK (a > 0), b int, CHECK (a < b), CONSTRAINT sum CHECK (a + b < 100 OR t.b IS NULL))",
        "INSERT INTO t VALUES (1, 2), (NULL, NULL), (5, NULL)",
        "INSERT INTO t VALUES (0, 1)",
        "INSERT INTO t VALUES (3, 2)",
        "INSERT INTO t VALUES (60, 70)",
        "INSERT INTO t SELECT 1, 1",
        "UPDATE t SET a = b WHERE a = 1",
        "UPDATE t SET b = b + 1 WHERE a = 1 RETURNING a, b",
        "INSERT INTO t VALUES (1, 2) RETURNING 1 / 0",
        "TABLE t",
    ),
    "on conflict": (
        "CREATE TABLE t (a int PRIMARY KEY, b int DEFAULT 7, c text UNIQUE, CHECK (b < 100))",
        "INSERT INTO t VALUES (1, 1, 'x'), (2, 2, 'y') ON CONFLICT DO NOTHING RETURNING a",
        "INSERT INTO t VALUES (1, 5, 'z'), (3, 3, 'y'), (4, 4, 'w') ON CONFLICT DO NOTHING RETURNING a",
        "INSERT INTO t VALUES (1, 5, 'z') ON CONFLICT (a) DO UPDATE SET b = t.b + excluded.b RETURNING *",
        "INSERT INTO t AS o VALUES (1, 5, 'z') ON CONFLICT (a) DO UPDATE SET b = o.b * 2, c = excluded.c RETURNING o.c",
        "INSERT INTO t VALUES (1), (9) ON CONFLICT (a) DO UPDATE SET b = excluded.b RETURNING a, b, c",
        "INSERT INTO t VALUES (2, 9) ON CONFLICT (a) DO UPDATE SET b = 50 WHERE t.b > 1000 RETURNING a",
        "INSERT INTO t VALUES (2, 9) ON CONFLICT (a) DO UPDATE SET b = 50 WHERE excluded.b = 9",
        "INSERT INTO t VALUES (7, 1, 'y') ON CONFLICT (a) DO NOTHING",
        "INSERT INTO t VALUES (7, 1, 'y') ON CONFLICT (c) DO UPDATE SET a = excluded.a",
        "INSERT INTO t VALUES (1, 1, 'y') ON CONFLICT (a) DO UPDATE SET c = 'w'",
        "INSERT INTO t VALUES (2, 1), (2, 2) ON CONFLICT (a) DO UPDATE SET b = excluded.b",
        "INSERT INTO t VALUES (20, 1), (20, 2) ON CONFLICT (a) DO UPDATE SET b = excluded.b",
        "INSERT INTO t VALUES (20, 1), (20, 2) ON CONFLICT (a) DO NOTHING",
        "INSERT INTO t VALUES (1, 200) ON CONFLICT (a) DO UPDATE SET b = 1",
        "INSERT INTO t VALUES (1, 2) ON CONFLICT (a) DO UPDATE SET b = 200",
        "INSERT INTO t VALUES (1, 2) ON CONFLICT (b) DO NOTHING",
        "INSERT INTO t VALUES (1, 2) ON CONFLICT (nothing) DO NOTHING",
        "INSERT INTO t VALUES (1, 2) ON CONFLICT ON CONSTRAINT t_pkey DO UPDATE SET b = DEFAULT",
        "INSERT INTO t VALUES (1, 2) ON CONFLICT ON CONSTRAINT nothing DO NOTHING",
        "INSERT INTO t VALUES (1, 2) ON CONFLICT ON CONSTRAINT t_b_check DO NOTHING",
        "INSERT INTO t VALUES (1, 2) ON CONFLICT DO UPDATE SET b = 1",
        "INSERT INTO t VALUES (1, 2) ON CONFLICT (a) DO UPDATE SET b = (SELECT max(b) FROM t) RETURNING b",
        "INSERT INTO t SELECT g, g, g::text FROM generate_series(1, 5) g ON CONFLICT (a) DO UPDATE SET c = excluded.c",
        "TABLE t",
        "BEGIN",
        "INSERT INTO t VALUES (30, 1) ON CONFLICT (a) DO UPDATE SET b = 99 RETURNING a, b",
        "INSERT INTO t VALUES (30, 1) ON CONFLICT (a) DO UPDATE SET b = t.b + 1 RETURNING a, b",
        "UPDATE t SET a = 31 WHERE a = 30",
        "INSERT INTO t VALUES (30, 3), (31, 4) ON CONFLICT (a) DO UPDATE SET b = t.b + 10 RETURNING a, b",
        "DELETE FROM t WHERE a = 31",
        "INSERT INTO t VALUES (31, 4) ON CONFLICT (a) DO UPDATE SET b = t.b + 10 RETURNING a, b",
        "COMMIT",
        "TABLE t",
    ),
    "identity": (
        "CREATE TABLE t (a int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, b serial, d text)",
        "ALTER TABLE t ADD c bigint GENERATED BY DEFAULT AS IDENTITY (START WITH 1)",
        "INSERT INTO t (d) VALUES ('x'), ('y') RETURNING *",
        "INSERT INTO t DEFAULT VALUES RETURNING *",
        "INSERT INTO t (a, d) VALUES (9, 'z')",
        "INSERT INTO t (a, d) VALUES (DEFAULT, 'z') RETURNING *",
        "INSERT INTO t (a, d) OVERRIDING SYSTEM VALUE VALUES (90, 'z') RETURNING *",
        "INSERT INTO t (a, c, d) OVERRIDING USER VALUE VALUES (91, 92, 'z') RETURNING a, c, d",
        "INSERT INTO t (b, c) VALUES (50, DEFAULT), (DEFAULT, 60) RETURNING a, b, c",
        "INSERT INTO t (c) VALUES (NULL)",
        "INSERT INTO t (a) SELECT 1",
        "INSERT INTO t (d) SELECT 'n' RETURNING a",
        "UPDATE t SET a = 4",
        "UPDATE t SET d = 'u', c = DEFAULT WHERE a = 90 RETURNING a, c > 0, d",
        "INSERT INTO t (a) OVERRIDING SYSTEM VALUE VALUES (1)",
        "CREATE TABLE s (a smallserial)",
        "INSERT INTO s VALUES (DEFAULT), (7), (DEFAULT) RETURNING a",
        "TRUNCATE s RESTART IDENTITY",
        "INSERT INTO s VALUES (DEFAULT) RETURNING a",
        "ALTER TABLE s ADD b int GENERATED ALWAYS AS IDENTITY",
        "INSERT INTO s VALUES (DEFAULT) RETURNING *",
    ),
    "generated columns": (
        "CREATE TABLE t (a int, b int GENERATED ALWAYS AS (a * 2) STORED, CHECK (b < 100))",
        "ALTER TABLE t ADD c text GENERATED ALWAYS AS ('n' || a) STORED UNIQUE",
        "INSERT INTO t VALUES (1), (2) RETURNING *",
        "INSERT INTO t (a, b) VALUES (3, DEFAULT) RETURNING b",
        "INSERT INTO t (a, b) VALUES (3, 4)",
        "INSERT INTO t VALUES (1)",
        "INSERT INTO t VALUES (70)",
        "UPDATE t SET a = a + 10 RETURNING a, b, c",
        "UPDATE t SET b = 1",
        "UPDATE t SET b = DEFAULT, a = 20 WHERE a = 11 RETURNING *",
        "UPDATE t SET a = x.k FROM (VALUES (20, 21)) x (o, k) WHERE a = x.o RETURNING a, b, x.k",
        "INSERT INTO t SELECT 40 RETURNING b",
        "ALTER TABLE t DROP COLUMN a",
        "ALTER TABLE t ADD d int GENERATED ALWAYS AS (a + 1) STORED",
        "ALTER TABLE t RENAME a TO e",
        "INSERT INTO t VALUES (50) ON CONFLICT DO NOTHING",
        "INSERT INTO t VALUES (49) RETURNING *",
        "TABLE t",
    ),
    "altered constraints": (
        "CREATE TABLE t (a int, b text, c int)",
        "INSERT INTO t VALUES (1, 'x', 1), (1, 'y', NULL)",
        "ALTER TABLE t ADD PRIMARY KEY (a)",
        "ALTER TABLE t ADD PRIMARY KEY (c)",
        "ALTER TABLE t ADD UNIQUE (b)",
        "ALTER TABLE t ADD CONSTRAINT small CHECK (c < 1)",
        "ALTER TABLE t ADD CONSTRAINT small CHECK (c < 10)",
        "ALTER TABLE t ADD CONSTRAINT small CHECK (c < 11)",
        "ALTER TABLE t ALTER c SET NOT NULL",
        "INSERT INTO t VALUES (2, 'x', 3)",
        "INSERT INTO t VALUES (2, 'z', 30)",
        "UPDATE t SET a = 2, c = 2 WHERE b = 'y'",
        "ALTER TABLE t ALTER c SET NOT NULL, ADD CONSTRAINT k PRIMARY KEY (a, c)",
        "INSERT INTO t VALUES (2, 'z', 2)",
        "ALTER TABLE t ALTER a DROP NOT NULL",
        "ALTER TABLE t DROP CONSTRAINT nothing",
        "ALTER TABLE t DROP CONSTRAINT IF EXISTS nothing, DROP CONSTRAINT t_b_key",
        "INSERT INTO t VALUES (3, 'x', 3)",
        "ALTER TABLE t RENAME CONSTRAINT small TO large",
        "ALTER TABLE t RENAME c TO d",
        "INSERT INTO t VALUES (4, 'x', 30)",
        "ALTER TABLE t DROP COLUMN d",
        "INSERT INTO t VALUES (3, 'x')",
        "ALTER TABLE t ADD e int UNIQUE CHECK (e > 0)",
        "INSERT INTO t VALUES (5, 'x', 0)",
        "INSERT INTO t VALUES (5, 'x', 1), (6, 'x', 1)",
        "BEGIN",
        "CREATE TABLE u (a int)",
        "INSERT INTO u VALUES (1)",
        "ALTER TABLE u ADD PRIMARY KEY (a)",
        "INSERT INTO u VALUES (2)",
        "COMMIT",
        "INSERT INTO u VALUES (2)",
        "TABLE t",
    ),
    "unique indexes": (
        "CREATE TABLE t (a int, b text)",
        "INSERT INTO t VALUES (1, 'x'), (1, 'y'), (2, NULL)",
        "CREATE UNIQUE INDEX ON t (a)",
        "CREATE UNIQUE INDEX ON t (a, b)",
        "CREATE UNIQUE INDEX IF NOT EXISTS t_a_b_idx ON t (b)",
        "CREATE UNIQUE INDEX t_a_b_idx ON t (b)",
        "CREATE UNIQUE INDEX named ON t (b)",
        "INSERT INTO t VALUES (1, 'x')",
        "INSERT INTO t VALUES (3, 'x')",
        "INSERT INTO t VALUES (3, 'x') ON CONFLICT (b) DO UPDATE SET a = excluded.a RETURNING *",
        "INSERT INTO t VALUES (3, 'x') ON CONFLICT ON CONSTRAINT named DO NOTHING",
        "SELECT count(*) FROM pg_constraint WHERE conrelid = 't'::regclass",
        "SELECT indexrelid::regclass::text, indisunique, indisprimary FROM pg_index WHERE indrelid = 't'::regclass",
        "ALTER TABLE t DROP CONSTRAINT named",
        "DROP INDEX named",
        "INSERT INTO t VALUES (4, 'x')",
        "ALTER TABLE t ADD UNIQUE (a)",
        "DROP INDEX t_a_key",
        "DROP INDEX t_a_b_idx, nothing",
        "DROP INDEX IF EXISTS nothing",
        "BEGIN",
        "CREATE UNIQUE INDEX again ON t (a)",
        "INSERT INTO t VALUES (4, 'z')",
        "ROLLBACK",
        "TABLE t",
    ),
    "own writes": (
        "CREATE TABLE t (a int PRIMARY KEY, b text)",
        "CREATE TABLE n (a int, b text)",
        "CREATE VIEW v AS SELECT a, count(*) AS rows FROM n GROUP BY a",
        "INSERT INTO n VALUES (1, 'x'), (1, 'x'), (2, 'y')",
        "BEGIN",
        "INSERT INTO t VALUES (1, 'one') RETURNING a",
        "SELECT * FROM t",
        "INSERT INTO n VALUES (1, 'x'), (3, 'z')",
        "SELECT * FROM v",
        "DELETE FROM n WHERE a = 1 AND b = 'x'",
        "SELECT * FROM v",
        "INSERT INTO n SELECT a + 10, b FROM n",
        "UPDATE n SET b = b || '!' WHERE a > 10 RETURNING *",
        "SELECT n.a, n.b, t.b FROM n JOIN t ON t.a + 11 = n.a",
        "SELECT b FROM n WHERE a = 12",
        "SAVEPOINT s",
        "UPDATE t SET a = 2, b = 'two'",
        "INSERT INTO t VALUES (1, 'again')",
        "INSERT INTO t VALUES (2, 'again')",
        "ROLLBACK TO s",
        "TABLE t",
        "SELECT count(*) FROM n",
        "TRUNCATE n",
        "SELECT count(*) FROM n",
        "COMMIT",
        "TABLE n",
        "TABLE t",
    ),
    "locks": (
        "CREATE TABLE t (a int, b int)",
        "INSERT INTO t VALUES (1, 2), (2, 3)",
        "SELECT * FROM t WHERE a = 1 FOR UPDATE",
        "SELECT * FROM t ORDER BY a LIMIT 1 FOR NO KEY UPDATE OF t NOWAIT",
        "SELECT * FROM t ORDER BY a FOR SHARE SKIP LOCKED LIMIT 1",
        "SELECT * FROM (SELECT a FROM t FOR KEY SHARE) x",
        "SELECT a FROM t FOR UPDATE FOR SHARE",
        "SELECT a FROM t FOR nothing",
    ),
}


TABLE_OF_CATALOGS = (
    "CREATE TABLE t (a int GENERATED ALWAYS AS IDENTITY, b text DEFAULT 'x' CONSTRAINT one UNIQUE, c int CHECK (c > 0))",
    "ALTER TABLE t ADD d bigint GENERATED BY DEFAULT AS IDENTITY, ADD e int GENERATED ALWAYS AS (c + 1) STORED",
    "ALTER TABLE t ADD PRIMARY KEY (c, a), ADD CONSTRAINT two CHECK (c < d)",
)
CATALOG_QUERIES = (
    (
        "SELECT conname, contype, conkey, convalidated, condeferrable, conindid <> 0, pg_get_constraintdef(oid)"
        " FROM pg_constraint WHERE conrelid = 't'::regclass AND contype <> 'n'"
    ),
    (
        "SELECT c.relname, c.relkind, i.indisprimary, i.indisunique, i.indkey FROM pg_index i JOIN pg_class c"
        " ON c.oid = i.indexrelid WHERE i.indrelid = 't'::regclass"
    ),
    "SELECT relchecks, relhasindex FROM pg_class WHERE oid = 't'::regclass",
    (
        "SELECT attname, attnotnull, attidentity, attgenerated, atthasdef FROM pg_attribute"
        " WHERE attrelid = 't'::regclass AND attnum > 0"
    ),
    (
        "SELECT constraint_name, constraint_type FROM information_schema.table_constraints"
        " WHERE table_name = 't' AND constraint_name NOT LIKE '%not_null'"
    ),
    (
        "SELECT constraint_name, column_name, ordinal_position FROM information_schema.key_column_usage"
        " WHERE table_name = 't'"
    ),
    (
        "SELECT constraint_name, column_name FROM information_schema.constraint_column_usage"
        " WHERE table_name = 't' AND constraint_name NOT LIKE '%not_null'"
    ),
    (
        "SELECT column_name, is_nullable, is_identity, identity_generation, identity_start, identity_maximum,"
        " is_generated FROM information_schema.columns WHERE table_name = 't'"
    ),
)


@pytest.fixture(scope="module")
def postgres() -> Iterator[Connection]:
    with server().connect() as connection:
        connection.autocommit = True
        yield connection


@pytest.mark.parametrize("name", SCRIPTS)
def test_constraints_equal_postgresql(name: str, postgres: Connection, tmp_path: Path) -> None:
    ours, theirs = outcomes(SCRIPTS[name], postgres, tmp_path)
    assert ours == theirs


def test_catalogs_of_constraints_equal_postgresql(postgres: Connection, tmp_path: Path) -> None:
    ours, theirs = outcomes((*TABLE_OF_CATALOGS, *CATALOG_QUERIES), postgres, tmp_path)
    assert ours == theirs
