"""Indexes on expressions and partial indexes, held against a real PostgreSQL: the same tags, rows and errors."""

from __future__ import annotations

from pathlib import Path

import pytest
from postgres_scripts import outcomes
from psycopg import Connection
from sql_world import Client, SqlWorld

from derive.errors import SqlError
from derive.sql.coordinator import Coordinator

INDEXES = "SELECT indexname FROM pg_indexes WHERE tablename = 't' ORDER BY 1"
SCRIPTS = {
    "names": (
        'CREATE TABLE t (a int, b int, name text, "Odd" text)',
        "CREATE INDEX ON t (lower(name))",
        "CREATE INDEX ON t (lower(name), (a + b))",
        'CREATE INDEX ON t (lower(name), lower("Odd"), a)',
        "CREATE INDEX ON t ((a + b), (a - b))",
        "CREATE INDEX ON t ((a + b))",
        "CREATE INDEX ON t ((a + b))",
        "CREATE INDEX ON t ((name::jsonb))",
        "CREATE INDEX ON t (coalesce(a, b))",
        "CREATE INDEX ON t ((CASE WHEN a > 1 THEN b END))",
        "CREATE INDEX ON t ((a)) WHERE b > 1",
        "CREATE INDEX ON t (a, b DESC NULLS LAST) WHERE a IS NOT NULL",
        "CREATE INDEX ON t (upper(name) text_pattern_ops DESC)",
        "CREATE INDEX named ON t (lower(t.name))",
        "CREATE INDEX IF NOT EXISTS named ON t (lower(name))",
        "CREATE INDEX named ON t (lower(name))",
        "CREATE UNIQUE INDEX ON t (lower(name))",
        "CREATE UNIQUE INDEX ON t ((a + b), name) WHERE b > 1",
        INDEXES,
        "SELECT indexdef FROM pg_indexes WHERE indexname = 't_lower_idx'",
        "SELECT indexdef FROM pg_indexes WHERE indexname = 't_lower_expr_idx'",
        "SELECT indexdef FROM pg_indexes WHERE indexname = 't_expr_name_idx'",
        "SELECT indexdef FROM pg_indexes WHERE indexname = 't_a_idx'",
        "SELECT pg_get_indexdef('t_lower_expr_idx'::regclass, 1, true), pg_get_indexdef('t_lower_expr_idx'::regclass, 2, true)",
        (
            "SELECT c.relname, a.attname, a.attnum, a.atttypid::regtype FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid"
            " WHERE c.relkind = 'i' AND c.relname LIKE 't\\_%' ORDER BY 1, 3"
        ),
        (
            "SELECT c.relname, i.indisunique, i.indkey, i.indexprs IS NULL, i.indpred IS NULL FROM pg_index i"
            " JOIN pg_class c ON c.oid = i.indexrelid WHERE c.relname LIKE 't\\_%' ORDER BY 1"
        ),
    ),
    "refused": (
        "CREATE TABLE t (a int, b timestamptz, c text)",
        "CREATE INDEX ON t (random())",
        "CREATE INDEX ON t ((a + random()))",
        "CREATE INDEX ON t (now())",
        "CREATE INDEX ON t ((b::date))",
        "CREATE INDEX ON t (date_trunc('day', b))",
        "CREATE INDEX ON t ((b::text))",
        "CREATE INDEX ON t (a) WHERE b < now()",
        "CREATE INDEX ON t (a) WHERE a",
        "CREATE INDEX ON t (sum(a))",
        "CREATE INDEX ON t ((row_number() OVER ()))",
        "CREATE INDEX ON t (generate_series(1, a))",
        "CREATE INDEX ON t ((SELECT 1))",
        "CREATE INDEX ON t (a) WHERE EXISTS (SELECT 1)",
        "CREATE INDEX ON t (lower(nothing))",
        "CREATE INDEX ON t (nothing)",
        "CREATE INDEX ON t (lower(a))",
        "CREATE INDEX ON t (a + 1)",
        "CREATE INDEX ON t (lower(c) || 'x')",
        "CREATE INDEX ON t (lower(c) nothing_ops)",
        "CREATE INDEX ON t ()",
        "CREATE INDEX ON t (lower(c)",
        "CREATE UNIQUE INDEX ON t (random())",
        "CREATE UNIQUE INDEX ON t (a) WHERE random() > 0.5",
        "CREATE VIEW v AS SELECT * FROM t",
        "CREATE UNIQUE INDEX ON v (lower(c))",
        INDEXES,
    ),
    "look-ups under writes": (
        "CREATE TABLE t (a int, b int, name text)",
        "INSERT INTO t VALUES (1, 2, 'Ann'), (2, 3, 'BEN'), (3, NULL, NULL)",
        "CREATE INDEX ON t (lower(name))",
        "CREATE INDEX ON t ((a + b))",
        "CREATE INDEX ON t (abs(a::double precision)) WHERE b > 1",
        "SELECT * FROM t WHERE lower(name) = 'ann'",
        "SELECT * FROM t WHERE a + b = 5",
        "INSERT INTO t VALUES (4, 5, 'ann'), (4, 5, 'ann')",
        "SELECT * FROM t WHERE lower(name) = 'ann' ORDER BY 1, 2",
        "UPDATE t SET name = 'Cid' WHERE lower(name) = 'ben'",
        "SELECT * FROM t WHERE lower(name) = 'ben'",
        "SELECT * FROM t WHERE lower(name) = 'cid' AND a + b = 5",
        "DELETE FROM t WHERE a + b = 9",
        "SELECT * FROM t WHERE lower(name) IN ('ann', 'cid') ORDER BY 1",
        "SELECT * FROM t WHERE abs(a::double precision) = 3",
        'ALTER TABLE t RENAME COLUMN name TO "First Name"',
        "SELECT * FROM t WHERE lower(\"First Name\") = 'cid'",
        "SELECT indexdef FROM pg_indexes WHERE indexname = 't_lower_idx'",
        "ALTER TABLE t ALTER COLUMN a TYPE bigint",
        "SELECT * FROM t WHERE a + b = 5",
        'ALTER TABLE t ALTER COLUMN "First Name" TYPE int USING 1',
        "ALTER TABLE t RENAME TO u",
        "SELECT indexdef FROM pg_indexes WHERE indexname = 't_lower_idx'",
        "ALTER TABLE u RENAME TO t",
        "ALTER TABLE t DROP COLUMN b",
        INDEXES,
        "DROP INDEX t_lower_idx",
        INDEXES,
    ),
    "unique": (
        "CREATE TABLE t (id int, name text, n int)",
        "CREATE UNIQUE INDEX ON t (lower(name))",
        "INSERT INTO t VALUES (1, 'Ann', 1)",
        "INSERT INTO t VALUES (2, 'ANN', 1)",
        "INSERT INTO t VALUES (3, NULL, 1), (4, NULL, 1)",
        "INSERT INTO t VALUES (5, 'Ben', 1), (6, 'bEN', 1)",
        "INSERT INTO t VALUES (5, 'Ben', 1)",
        "UPDATE t SET name = 'ann' WHERE id = 5",
        "UPDATE t SET name = upper(name)",
        "INSERT INTO t VALUES (7, 'ben', 7) ON CONFLICT DO NOTHING",
        "INSERT INTO t VALUES (7, 'ben', 7) ON CONFLICT (lower(name)) DO NOTHING",
        "INSERT INTO t VALUES (7, 'ben', 7) ON CONFLICT (lower(name)) DO UPDATE SET n = t.n + excluded.n RETURNING *",
        "INSERT INTO t VALUES (7, 'ben', 7) ON CONFLICT ((lower(name))) DO UPDATE SET n = 0",
        "INSERT INTO t VALUES (7, 'ben', 7) ON CONFLICT (upper(name)) DO NOTHING",
        "INSERT INTO t VALUES (7, 'ben', 7) ON CONFLICT (name) DO NOTHING",
        "INSERT INTO t VALUES (7, 'ben', 7) ON CONFLICT (nothing) DO NOTHING",
        "INSERT INTO t VALUES (7, 'ben', 7) ON CONFLICT ON CONSTRAINT t_lower_idx DO NOTHING",
        "DELETE FROM t WHERE lower(name) = 'ann'",
        "BEGIN",
        "INSERT INTO t VALUES (8, 'aNN', 8)",
        "SAVEPOINT s",
        "INSERT INTO t VALUES (9, 'anN', 8)",
        "ROLLBACK TO s",
        "DELETE FROM t WHERE id = 8",
        "INSERT INTO t VALUES (9, 'anN', 8)",
        "COMMIT",
        "SELECT * FROM t ORDER BY id",
        "SELECT * FROM t WHERE lower(name) = 'ann'",
        "CREATE UNIQUE INDEX ON t ((n + 1))",
        "CREATE UNIQUE INDEX both ON t ((n + 1), lower(name))",
        "INSERT INTO t VALUES (10, 'Cid', 2147483647)",
        "INSERT INTO t VALUES (11, 'ann', 8)",
        "ALTER TABLE t RENAME COLUMN name TO title",
        "INSERT INTO t VALUES (11, 'ann', 8)",
        "SELECT indexdef FROM pg_indexes WHERE indexname = 't_lower_idx'",
        "ALTER TABLE t ALTER COLUMN n TYPE bigint",
        "INSERT INTO t VALUES (10, 'Cid', 2147483647)",
        "ALTER TABLE t ADD FOREIGN KEY (title) REFERENCES t (title)",
        "ALTER TABLE t DROP COLUMN n",
        INDEXES,
        "DROP INDEX t_lower_idx",
        "INSERT INTO t VALUES (11, 'ann')",
        "CREATE UNIQUE INDEX ON t (lower(title))",
        INDEXES,
    ),
    "partial": (
        "CREATE TABLE t (id int, name text, deleted boolean)",
        "INSERT INTO t VALUES (1, 'a', true), (2, 'a', true), (3, 'a', false)",
        "CREATE UNIQUE INDEX i ON t (name) WHERE NOT deleted",
        "INSERT INTO t VALUES (4, 'a', false)",
        "INSERT INTO t VALUES (4, 'a', true), (5, 'a', NULL)",
        "UPDATE t SET deleted = false WHERE id = 4",
        "UPDATE t SET deleted = id = 3",
        "SELECT * FROM t ORDER BY id",
        "INSERT INTO t VALUES (6, 'a', false) ON CONFLICT (name) DO NOTHING",
        "INSERT INTO t VALUES (6, 'a', false) ON CONFLICT (name) WHERE NOT deleted DO NOTHING",
        "INSERT INTO t VALUES (6, 'a', false) ON CONFLICT (name) WHERE NOT deleted DO UPDATE SET id = 7 RETURNING *",
        "INSERT INTO t VALUES (6, 'a', true) ON CONFLICT (name) WHERE NOT deleted DO UPDATE SET id = 8 RETURNING *",
        "INSERT INTO t VALUES (6, 'a', false) ON CONFLICT DO NOTHING",
        "SELECT * FROM t WHERE name = 'a' ORDER BY id",
        "CREATE UNIQUE INDEX ON t ((id / 0)) WHERE id < 0",
        "INSERT INTO t VALUES (-1, 'z', true)",
        "SELECT indexdef FROM pg_indexes WHERE indexname = 'i'",
        "ALTER TABLE t RENAME COLUMN deleted TO gone",
        "INSERT INTO t VALUES (4, 'a', false)",
        "ALTER TABLE t DROP COLUMN gone",
        "INSERT INTO t VALUES (4, 'a')",
        INDEXES,
    ),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_expression_indexes_equal_postgresql(name: str, postgres: Connection, tmp_path: Path) -> None:
    ours, theirs = outcomes(SCRIPTS[name], postgres, tmp_path)
    assert ours == theirs


def test_expression_indexes_outlive_a_restart(tmp_path: Path) -> None:
    async def create(coordinator: Coordinator) -> None:
        client = Client(coordinator)
        await client.run("CREATE TABLE t (a int, name text, gone boolean)")
        await client.run("CREATE UNIQUE INDEX ON t (lower(name)) WHERE NOT gone")
        await client.run("CREATE INDEX looked ON t (upper(name)) WHERE a > 0")
        await client.run("INSERT INTO t VALUES (1, 'Ann', false), (2, 'ann', true)")

    async def use(coordinator: Coordinator) -> None:
        client = Client(coordinator)
        with pytest.raises(SqlError, match="duplicate key") as caught:
            await client.run("INSERT INTO t VALUES (3, 'ANN', false)")
        assert caught.value.detail == "Key (lower(name))=(ann) already exists."
        await client.run("INSERT INTO t VALUES (3, 'ANN', true)")
        rows, _ = await client.run("SELECT a FROM t WHERE upper(name) = 'ANN' ORDER BY a")
        assert rows == [("1",), ("2",), ("3",)]
        rows, _ = await client.run("SELECT indexdef FROM pg_indexes ORDER BY 1")
        assert rows == [
            ("CREATE INDEX looked ON public.t USING btree (upper(name)) WHERE (a > 0)",),
            ("CREATE UNIQUE INDEX t_lower_idx ON public.t USING btree (lower(name)) WHERE (NOT gone)",),
        ]

    SqlWorld(tmp_path).within(create)
    SqlWorld(tmp_path).within(use)


@pytest.mark.parametrize("relation", ["v", "m"])
def test_expression_indexes_of_views_find_rows(relation: str, tmp_path: Path) -> None:
    async def use(coordinator: Coordinator) -> None:
        client = Client(coordinator)
        await client.run("CREATE TABLE t (a int, name text)")
        await client.run("CREATE VIEW v AS SELECT name, sum(a) AS a FROM t GROUP BY name")
        await client.run("CREATE MATERIALIZED VIEW m AS SELECT name, sum(a) AS a FROM t GROUP BY name")
        await client.run(f"CREATE INDEX ON {relation} (lower(name), (a / 0))")  # not evaluated for all rows
        await client.run("INSERT INTO t VALUES (1, 'Ann'), (2, 'ANN'), (3, 'Ben'), (4, NULL)")
        rows, _ = await client.run(f"SELECT * FROM {relation} WHERE lower(name) = 'ann' ORDER BY a")
        assert rows == [("Ann", "1"), ("ANN", "2")]
        await client.run("UPDATE t SET name = 'Ann' WHERE a = 2")
        rows, _ = await client.run(f"SELECT * FROM {relation} WHERE lower(name) = 'ann' ORDER BY a")
        assert rows == [("Ann", "3")]
        rows, _ = await client.run("SELECT indexname FROM pg_indexes")
        assert rows == [(f"{relation}_lower_expr_idx",)]

    SqlWorld(tmp_path).within(use)
