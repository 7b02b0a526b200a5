"""ALTER TABLE of a table with indexes, views and foreign keys, compared with PostgreSQL."""

from __future__ import annotations

from pathlib import Path

import pytest
from postgres_scripts import outcomes
from psycopg import Connection
from sql_world import Client, SqlWorld

from derive.sql.coordinator import Coordinator

SCRIPTS = {
    "indexes follow": (
        "CREATE TABLE t (a int PRIMARY KEY, b text, c int, d int UNIQUE)",
        "INSERT INTO t VALUES (1, 'x', 10, 7), (2, 'y', 20, 8)",
        "CREATE INDEX t_b ON t (b)",
        "CREATE INDEX t_bc ON t (b, c)",
        "ALTER TABLE t ADD COLUMN e int DEFAULT 5",
        "SELECT * FROM t WHERE b = 'x'",
        "ALTER TABLE t RENAME COLUMN b TO name",
        "SELECT * FROM t WHERE name = 'y'",
        "ALTER TABLE t ALTER COLUMN e TYPE text",
        "INSERT INTO t VALUES (3, 'z', 30, 7, 'q')",
        "INSERT INTO t VALUES (3, 'z', 30, 9, 'q')",
        "SELECT * FROM t WHERE name = 'z' AND c = 30",
        "ALTER TABLE t DROP COLUMN c",
        "SELECT indexname FROM pg_indexes WHERE tablename = 't' ORDER BY 1",
        "SELECT * FROM t WHERE name >= 'y'",
        "DROP INDEX t_bc",
        "DROP INDEX t_b",
        "BEGIN",
        "CREATE INDEX again ON t (name)",
        "ALTER TABLE t ADD COLUMN f int",
        "UPDATE t SET f = a WHERE name = 'x'",
        "ALTER TABLE t ADD CONSTRAINT positive CHECK (f > 0)",
        "SELECT * FROM t WHERE name = 'x'",
        "COMMIT",
        "SELECT * FROM t WHERE name = 'x'",
        "SELECT indexname FROM pg_indexes WHERE tablename = 't' ORDER BY 1",
        "CREATE UNIQUE INDEX again ON t (f)",
        "ALTER TABLE t DROP CONSTRAINT t_pkey",
        "SELECT * FROM t WHERE name = 'x'",
        "ALTER TABLE t ADD PRIMARY KEY (d)",
        "SELECT * FROM t WHERE name = 'x'",
        "SELECT indexname FROM pg_indexes WHERE tablename = 't' ORDER BY 1",
    ),
    "views follow": (
        "CREATE TABLE t (a int PRIMARY KEY, b text, c int, d int)",
        "INSERT INTO t VALUES (1, 'x', 10, 7), (2, 'y', 20, 8)",
        "CREATE VIEW v AS SELECT * FROM t",
        "CREATE VIEW w AS SELECT a, b FROM t WHERE c > 10",
        "CREATE VIEW x AS SELECT b FROM w",
        "CREATE VIEW m AS SELECT b, count(*) FROM t GROUP BY b",
        "ALTER TABLE t ADD COLUMN e int DEFAULT 5",
        "TABLE v",
        "TABLE w",
        "TABLE m",
        "ALTER TABLE t DROP COLUMN d",
        "DROP VIEW v",
        "ALTER TABLE t DROP COLUMN d",
        "TABLE x",
        "ALTER TABLE t DROP COLUMN c",
        "BEGIN",
        "ALTER TABLE t ADD COLUMN f int DEFAULT 9",
        "INSERT INTO t VALUES (3, 'x', 30, 1, 2)",
        "TABLE x",
        "TABLE w",
        "COMMIT",
        "TABLE x",
        "TABLE m",
        "ALTER TABLE t DROP COLUMN c CASCADE",
        "TABLE x",
        "TABLE w",
        "TABLE m",
        "TABLE t",
    ),
    "renamed beside views": (
        "CREATE TABLE t (a int, b int)",
        "INSERT INTO t VALUES (1, 2), (3, 4)",
        "CREATE VIEW m AS SELECT x.a, y.a AS other FROM t x JOIN t y ON x.a < y.a",
        "CREATE VIEW m2 AS SELECT count(*) FROM m",
        "CREATE INDEX ON t (a)",
        "BEGIN",
        "ALTER TABLE t RENAME COLUMN b TO c",
        "ALTER TABLE t RENAME COLUMN c TO b",
        "TABLE m",
        "COMMIT",
        "TABLE m2",
        "ALTER TABLE t RENAME COLUMN b TO d",
        "TABLE m",
        "SELECT * FROM t WHERE a = 3",
        "INSERT INTO t VALUES (5, 6)",
        "TABLE m",
        "TABLE m2",
        "SELECT d FROM t WHERE a + d = 11",
        "UPDATE t SET d = 7 WHERE a = 1",
        "DELETE FROM t WHERE a = 3",
        "SELECT * FROM t WHERE a = 5",
        "CREATE VIEW m3 AS SELECT a, sum(d) FROM t GROUP BY a",
        "TABLE m3",
        "TABLE m",
        "TABLE m2",
        "TABLE t",
    ),
    "keys follow": (
        "CREATE TABLE t (k int PRIMARY KEY, v text)",
        "INSERT INTO t VALUES (1, 'one'), (2, 'two')",
        "BEGIN",
        "DELETE FROM t WHERE k = 2",
        "ALTER TABLE t RENAME TO s",
        "INSERT INTO s VALUES (1, 'more') ON CONFLICT (k) DO UPDATE SET v = excluded.v RETURNING *",
        "INSERT INTO s VALUES (2, 'again')",
        "COMMIT",
        "TABLE s",
        "BEGIN",
        "ALTER TABLE s RENAME TO r",
        "INSERT INTO r VALUES (1, 'double')",
        "ROLLBACK",
        "INSERT INTO s VALUES (2, 'double')",
        "SELECT v FROM s WHERE k = 2",
    ),
    "referring follow": (
        "CREATE TABLE p (a int PRIMARY KEY, b int UNIQUE, up int REFERENCES p)",
        "CREATE TABLE c (x int REFERENCES p, y int REFERENCES p (b) ON DELETE CASCADE)",
        "INSERT INTO p VALUES (1, 1, NULL), (2, 2, 1)",
        "INSERT INTO c VALUES (1, 2)",
        "CREATE INDEX ON p (b)",
        "CREATE INDEX ON c (x)",
        "ALTER TABLE p RENAME COLUMN a TO id",
        "ALTER TABLE p RENAME COLUMN b TO other",
        "ALTER TABLE p ADD COLUMN n text",
        "INSERT INTO c VALUES (3, 2)",
        "INSERT INTO p VALUES (5, 5, 4)",
        "DELETE FROM p WHERE id = 1",
        "DELETE FROM p WHERE other = 2",
        "TABLE c",
        "INSERT INTO c VALUES (1, 1)",
        "ALTER TABLE p DROP COLUMN other",
        "ALTER TABLE p DROP COLUMN other CASCADE",
        "INSERT INTO c VALUES (1, 77)",
        "INSERT INTO c VALUES (2, 77)",
        "ALTER TABLE p DROP CONSTRAINT p_pkey",
        "ALTER TABLE c DROP COLUMN x",
        "TABLE c",
        "TABLE p",
    ),
    "generated": (
        "CREATE TABLE g (a int, b int GENERATED ALWAYS AS (a + 1) STORED, c int)",
        "INSERT INTO g (a, c) VALUES (1, 2)",
        "ALTER TABLE g DROP COLUMN a",
        "ALTER TABLE g DROP COLUMN a CASCADE",
        "TABLE g",
    ),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_dependents_of_an_altered_table_equal_postgresql(name: str, postgres: Connection, tmp_path: Path) -> None:
    maintained = [text.replace("CREATE VIEW m", "CREATE MATERIALIZED VIEW m") for text in SCRIPTS[name]]
    ours, theirs = outcomes(maintained, postgres, tmp_path, SCRIPTS[name])
    assert [(tag.replace("MATERIALIZED ", ""), rows) for _, (tag, rows) in ours] == [outcome for _, outcome in theirs]


async def test_dependents_of_an_altered_table_outlive_the_process(tmp_path: Path) -> None:
    world = SqlWorld(tmp_path)
    async with world.served() as (_, client):
        await client.script(
            "CREATE TABLE t (a int PRIMARY KEY, b text); INSERT INTO t VALUES (1, 'x'), (2, 'y')",
            "CREATE INDEX t_b ON t (b); CREATE MATERIALIZED VIEW m AS SELECT *, a + 1 AS next FROM t",
            "BEGIN; ALTER TABLE t ADD COLUMN c int DEFAULT 3; INSERT INTO t VALUES (3, 'z', 4); COMMIT",
            "ALTER TABLE t ADD COLUMN d int; UPDATE t SET d = 9 WHERE b = 'y'",
        )
        rows = await client("SELECT * FROM m ORDER BY a")
        assert rows == [("1", "x", "2"), ("2", "y", "3"), ("3", "z", "4")]
    async with world.served() as (_, client):
        await client("INSERT INTO t VALUES (4, 'w', 5, 6)")
        assert await client("SELECT * FROM m ORDER BY a") == [*rows, ("4", "w", "5")]
        assert await client("SELECT * FROM t WHERE b = 'y'") == [("2", "y", "3", "9")]
        assert await client("SELECT indexname FROM pg_indexes WHERE tablename = 't' ORDER BY 1") == [
            ("t_b",),
            ("t_pkey",),
        ]


@pytest.mark.parametrize(
    ("meanwhile", "sqlstate"),
    [("CREATE VIEW w AS SELECT a FROM t", "40001"), ("CREATE TABLE other (a int)", None), ("DROP VIEW v", None)],
)
async def test_an_altered_table_and_definitions_of_other_sessions(
    meanwhile: str, sqlstate: str | None, coordinator: Coordinator
) -> None:
    one, two = Client(coordinator), Client(coordinator)
    await one.script("CREATE TABLE t (a int, b int); CREATE VIEW v AS SELECT a FROM t; INSERT INTO t VALUES (1, 2)")
    await one.script("BEGIN; ALTER TABLE t DROP COLUMN b")
    await two(meanwhile)
    if sqlstate is None:
        assert await one.tag("COMMIT") == "COMMIT"
        assert await two("TABLE t") == [("1",)]
    else:
        assert await one.fails("COMMIT") == sqlstate
        assert await two("TABLE t") == [("1", "2")]
