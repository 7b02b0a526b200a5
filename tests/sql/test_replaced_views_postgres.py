"""CREATE OR REPLACE VIEW, and columns renamed below views, held against a real PostgreSQL."""

from __future__ import annotations

from pathlib import Path

import pytest
from postgres_scripts import outcomes
from psycopg import Connection
from sql_world import SqlWorld

from derive.errors import SqlError

TABLES = (
    "CREATE TABLE t (id int PRIMARY KEY, a int, b text, n numeric(6,2))",
    "INSERT INTO t VALUES (1, 10, 'x', 1.50), (2, 20, NULL, 2.25)",
)
_READS = (
    "CREATE VIEW {0}1 AS SELECT a, b FROM t",
    "CREATE VIEW {0}2 AS SELECT * FROM t",
    "CREATE VIEW {0}3 (p) AS SELECT x.a + y.a FROM t AS x JOIN t y (u, v) ON x.a = y.v WHERE x.a > 0",
    "CREATE VIEW {0}4 AS SELECT s.a AS z FROM (SELECT * FROM t) s NATURAL JOIN (SELECT a FROM t) q",
    "CREATE VIEW {0}5 AS WITH c AS (SELECT a FROM t WHERE t.b IS NULL) SELECT sum(a) AS s, max(t.a) AS m FROM c JOIN t USING (a)",
    "CREATE VIEW {0}6 AS SELECT t.b, (SELECT max(u.a) FROM t u WHERE u.id <= t.id) AS m FROM public.t",
)
SCRIPTS = {
    "replaced": (
        *TABLES,
        "CREATE VIEW v AS SELECT id, b, n FROM t",
        "CREATE OR REPLACE VIEW v AS SELECT id, upper(b) AS b, n FROM t",
        "TABLE v",
        "CREATE OR REPLACE VIEW v AS SELECT id, b, n, a FROM t",
        "TABLE v",
        "CREATE OR REPLACE VIEW v AS SELECT id, b, n FROM t",
        "CREATE OR REPLACE VIEW v AS SELECT id, b AS c, n, a FROM t",
        "CREATE OR REPLACE VIEW v AS SELECT id::bigint, b, n, a FROM t",
        "CREATE OR REPLACE VIEW v AS SELECT id, b, n::numeric(7,2), a FROM t",
        "CREATE OR REPLACE VIEW v AS SELECT id, b, n::numeric(6,2), a FROM t",
        "CREATE OR REPLACE VIEW v AS SELECT id, b::varchar(3), n, a FROM t",
        "CREATE OR REPLACE VIEW v (id, b, n, a, one) AS SELECT id, b, n, a, 1 FROM t",
        "TABLE v",
        "CREATE OR REPLACE VIEW t AS SELECT 1",
    ),
    "replaced below views": (
        *TABLES,
        "CREATE VIEW v AS SELECT id, a FROM t",
        "CREATE VIEW w AS SELECT * FROM v",
        "CREATE VIEW x AS SELECT w.id, v.a FROM w JOIN v USING (id)",
        "CREATE OR REPLACE VIEW v AS SELECT id, a * 2 AS a, b FROM t WHERE id > 1",
        "TABLE v",
        "TABLE w",
        "TABLE x",
        "CREATE OR REPLACE VIEW v AS SELECT id, a FROM x",
        "INSERT INTO t VALUES (3, 30, 'z', 0)",
        "TABLE x",
        "DROP VIEW v",
        "DROP VIEW v CASCADE",
        "TABLE w",
    ),
    "renamed": (
        *TABLES,
        *(text.format("v") for text in _READS),
        "ALTER TABLE t RENAME COLUMN a TO c",
        *(f"TABLE v{number}" for number in range(1, 7)),
        "INSERT INTO t (id, c) VALUES (3, 30)",
        "ALTER TABLE t ADD a text DEFAULT 'new'",
        *(f"TABLE v{number}" for number in range(1, 7)),
        "ALTER TABLE t RENAME c TO d",
        "ALTER TABLE t RENAME b TO c",
        "UPDATE t SET d = d + 1",
        *(f"TABLE v{number}" for number in range(1, 7)),
        "ALTER TABLE t DROP COLUMN d",
        "ALTER TABLE t DROP COLUMN a",
        "TABLE v2",
        "ALTER TABLE t RENAME id TO key",
        "SELECT v2.id, v6.m FROM v2, v6",
    ),
    "renamed columns of views": (
        "CREATE TABLE t (id int, a int, b text)",
        "INSERT INTO t VALUES (1, 10, 'x'), (2, 20, 'y')",
        "CREATE VIEW v AS SELECT id, a, b FROM t",
        "CREATE VIEW w AS SELECT v.a + 1 AS n, * FROM v",
        "CREATE VIEW z (k, l) AS SELECT id, max(a) FROM v AS q GROUP BY id",
        "CREATE FUNCTION f() RETURNS bigint LANGUAGE sql AS 'SELECT count(*) FROM z'",
        "ALTER VIEW v RENAME COLUMN a TO c",
        "ALTER VIEW v RENAME nothing TO d",
        "ALTER VIEW v RENAME c TO b",
        "ALTER TABLE v RENAME b TO bb",
        "ALTER VIEW IF EXISTS nothing RENAME a TO b",
        "ALTER VIEW nothing RENAME a TO b",
        "ALTER TABLE v ADD COLUMN x int",
        "ALTER VIEW v RENAME CONSTRAINT x TO y",
        "SELECT * FROM v",
        "SELECT a FROM v",
        "SELECT * FROM w",
        "SELECT * FROM z",
        "SELECT f()",
        "SELECT c, bb FROM v WHERE c > 10",
        "ALTER VIEW z RENAME COLUMN k TO kk",
        "SELECT kk, l FROM z",
        "BEGIN",
        "ALTER VIEW v RENAME bb TO e",
        "SELECT e FROM v",
        "ROLLBACK",
        "SELECT bb FROM v",
        "CREATE OR REPLACE VIEW v AS SELECT id, a, b FROM t",
        "CREATE OR REPLACE VIEW v AS SELECT id, a AS c, b AS bb FROM t",
        "SELECT * FROM w",
        "DROP VIEW v",
        "DROP VIEW v CASCADE",
    ),
    "replaced by a temporary view": (
        *TABLES,
        "CREATE VIEW v AS SELECT id FROM t",
        "CREATE VIEW w AS TABLE v",
        "CREATE TEMP TABLE x (id int)",
        "CREATE OR REPLACE VIEW v AS SELECT id FROM x",
        "SELECT (SELECT count(*) FROM v), (SELECT count(*) FROM public.v), (SELECT count(*) FROM w)",
        "CREATE VIEW w AS SELECT 1 FROM x",
        "CREATE VIEW w AS SELECT 1 FROM x",
        "DROP TABLE x CASCADE",
        "SELECT (SELECT count(*) FROM v), (SELECT count(*) FROM w)",
    ),
    "renamed in a relation of its column's name": (
        "CREATE TABLE a (a int, b int)",
        "INSERT INTO a VALUES (1, 2)",
        "CREATE VIEW v AS SELECT a, to_jsonb(s) AS j FROM a, LATERAL (SELECT b) s",
        "ALTER TABLE a RENAME b TO c",
        "ALTER TABLE a RENAME a TO d",
        "TABLE v",
    ),
    "renamed in a transaction": (
        *TABLES,
        "BEGIN",
        "CREATE VIEW v AS SELECT a FROM t WHERE a > 5",
        "ALTER TABLE t RENAME a TO c",
        "ALTER TABLE t RENAME c TO d",
        "TABLE v",
        "COMMIT",
        "TABLE v",
        "BEGIN",
        "ALTER TABLE t RENAME d TO e",
        "ROLLBACK",
        "INSERT INTO t (id, d) VALUES (5, 50)",
        "TABLE v",
    ),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_replaced_views_equal_postgresql(name: str, postgres: Connection, tmp_path: Path) -> None:
    ours, theirs = outcomes(SCRIPTS[name], postgres, tmp_path)
    assert ours == theirs


def test_functions_follow_a_renamed_column(tmp_path: Path) -> None:
    """PostgreSQL reads the text of a function anew, so that it fails."""
    world = SqlWorld(tmp_path)
    body = "SELECT count(*) FROM (SELECT DISTINCT * FROM t) s WHERE b = $1"
    world.script(*TABLES, f"CREATE FUNCTION f(text) RETURNS bigint LANGUAGE sql AS '{body}'")
    world.script("ALTER TABLE t RENAME b TO c", "INSERT INTO t VALUES (3, 10, 'x', 1)")
    assert world.script("SELECT f('x')") == [[("2",)]]


@pytest.mark.parametrize(
    "definition",
    [
        "VIEW v AS SELECT to_jsonb(t) AS j FROM t",
        "MATERIALIZED VIEW v AS SELECT (r).id, to_jsonb(r) AS j FROM (SELECT x AS r FROM t x) s",
        "FUNCTION f() RETURNS jsonb LANGUAGE sql AS 'SELECT to_jsonb(t) FROM t'",
    ],
)
def test_fields_of_rows_keep_their_names(definition: str, tmp_path: Path) -> None:
    """PostgreSQL shows the new name of a field; here a rename must not leave the field out."""
    world = SqlWorld(tmp_path)
    world.script(*TABLES, f"CREATE {definition}")
    with pytest.raises(SqlError) as raised:
        world.script("ALTER TABLE t RENAME b TO c")
    assert raised.value.sqlstate == "2BP01"


def test_maintained_views_follow_a_renamed_column(postgres: Connection, tmp_path: Path) -> None:
    steps = (
        *TABLES,
        *(text.format("m") for text in _READS),
        "ALTER TABLE t RENAME COLUMN a TO c",
        *(f"TABLE m{number}" for number in range(1, 7)),
        "INSERT INTO t VALUES (3, 30, 'y', 7), (4, NULL, NULL, NULL)",
        "UPDATE t SET c = c + 1 WHERE id = 1",
        "DELETE FROM t WHERE id = 2",
        *(f"TABLE m{number}" for number in range(1, 7)),
        "ALTER TABLE t RENAME b TO a",
        "UPDATE t SET a = 'w' WHERE id = 3",
        *(f"TABLE m{number}" for number in range(1, 7)),
    )
    own = [step.replace("CREATE VIEW", "CREATE MATERIALIZED VIEW", 1) for step in steps]
    ours, theirs = outcomes(own, postgres, tmp_path, steps)
    begin = len(TABLES) + len(_READS)
    assert [outcome for _, outcome in ours[begin:]] == [outcome for _, outcome in theirs[begin:]]


async def test_views_have_their_earlier_names_after_a_restart(tmp_path: Path) -> None:
    world = SqlWorld(tmp_path)
    async with world.served() as (_, client):
        await client.script(
            "CREATE TABLE t (id int PRIMARY KEY, a int, b text); INSERT INTO t VALUES (1, 10, 'x')",
            "CREATE VIEW v AS SELECT * FROM t; CREATE MATERIALIZED VIEW m AS SELECT b, sum(a) AS a FROM t GROUP BY b",
            "CREATE INDEX ON v (a); CREATE VIEW w AS SELECT a FROM v; CREATE OR REPLACE VIEW w AS SELECT a, b FROM v",
            "ALTER TABLE t RENAME a TO c; ALTER TABLE t RENAME b TO a",
        )
        assert await client.fails("ALTER TABLE t RENAME id TO key") == "2BP01"
    async with world.served() as (_, client):
        await client("INSERT INTO t (id, a, c) VALUES (2, 'x', 5)")
        assert await client("SELECT * FROM v ORDER BY id") == [("1", "10", "x"), ("2", "5", "x")]
        assert await client("TABLE m") == [("x", "15")]
        assert await client("SELECT * FROM w WHERE a = 5") == [("5", "x")]
        assert await client("SELECT pg_get_viewdef('w'::regclass)") == [("SELECT a, b FROM v;",)]
        assert await client("SHOW CREATE VIEW v") == [("v", 'CREATE VIEW "v" AS SELECT * FROM t AS t (id, a, b)')]
