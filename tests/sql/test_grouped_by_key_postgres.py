"""GROUP BY of a primary key, whose other columns follow from it, compared with PostgreSQL."""

from __future__ import annotations

from pathlib import Path

import pytest
from postgres_scripts import maintained, outcomes
from psycopg import Connection

SCRIPTS = {
    "primary keys": (
        "CREATE TABLE t (id int PRIMARY KEY, name text, n numeric(5,2), i interval)",
        "CREATE TABLE o (a int, b int, t int REFERENCES t, v int, PRIMARY KEY (a, b))",
        "INSERT INTO t VALUES (1, 'x', 1.5, '1 day'), (2, 'y', 2, '24:00'), (3, 'x', NULL, NULL)",
        "INSERT INTO o VALUES (1, 1, 1, 10), (1, 2, 1, 20), (2, 1, 2, 30)",
        "SELECT id, name, n, count(*) FROM t GROUP BY id ORDER BY name, id",
        "SELECT t.*, sum(o.v) FROM t LEFT JOIN o ON o.t = t.id GROUP BY t.id ORDER BY t.id",
        "SELECT t.id, upper(name), n + 1, sum(o.v) FROM t JOIN o ON o.t = t.id GROUP BY t.id HAVING max(v) > 5 AND name <> 'q' ORDER BY n",
        "SELECT a, b, v + 1 FROM o GROUP BY a, b",
        "SELECT a, v FROM o GROUP BY a",
        "SELECT name, n FROM t GROUP BY name",
        "SELECT x.name, y.name FROM t x JOIN t y ON x.id < y.id GROUP BY x.id, y.id ORDER BY 1, 2",
        "SELECT x.name, y.name FROM t x JOIN t y ON x.id < y.id GROUP BY x.id",
        "SELECT r.q, r.w FROM t AS r (p, q, w) GROUP BY r.p ORDER BY 1, 2",
        "SELECT id, (SELECT max(v) FROM o WHERE o.t = t.id AND t.name = 'x') FROM t GROUP BY id ORDER BY 1",
        "SELECT id, name, row_number() OVER (ORDER BY name, id) FROM t GROUP BY id ORDER BY id",
        "SELECT id, name FROM t GROUP BY ROLLUP (id)",
        "SELECT id, name FROM (SELECT * FROM t) s GROUP BY id",
        "SELECT t.id, name, i FROM o JOIN t ON t.id = o.t GROUP BY t.id ORDER BY 1",
        "SELECT id, generate_series(1, id), name FROM t GROUP BY id ORDER BY 1, 2",
        "SELECT id FROM t GROUP BY id ORDER BY name DESC, id",
        "SELECT DISTINCT ON (name) name, id FROM t GROUP BY id ORDER BY name, id",
        "SELECT id + 0, name FROM t GROUP BY id + 0",
        "CREATE VIEW w AS SELECT * FROM t",
        "SELECT id, name FROM w GROUP BY id",
        "CREATE VIEW v AS SELECT id, name, sum(v) AS s FROM t JOIN o ON o.t = t.id GROUP BY id",
        "ALTER TABLE o DROP CONSTRAINT o_t_fkey",
        "ALTER TABLE t DROP CONSTRAINT t_pkey",
        "TABLE v",
        "ALTER TABLE t DROP CONSTRAINT t_pkey CASCADE",
        "TABLE v",
        "TABLE w",
        "WITH c AS (SELECT * FROM o) SELECT a, b, v FROM c GROUP BY a, b",
        "SELECT o.a, o.v, count(*) FROM o NATURAL JOIN (SELECT 1 AS a) s GROUP BY a, b",
    ),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_groups_of_a_primary_key_equal_postgresql(name: str, postgres: Connection, tmp_path: Path) -> None:
    ours, theirs = outcomes(SCRIPTS[name], postgres, tmp_path)
    assert ours == theirs


def test_maintained_groups_of_a_primary_key_equal_postgresql(postgres: Connection, tmp_path: Path) -> None:
    ours, theirs = maintained(
        ("CREATE TABLE t (id int PRIMARY KEY, name text)", "CREATE TABLE o (t int, v int)"),
        ("SELECT t.*, sum(v) FROM t LEFT JOIN o ON o.t = t.id GROUP BY t.id",),
        (
            "INSERT INTO t VALUES (1, 'x'), (2, 'y')",
            "INSERT INTO o VALUES (1, 10), (1, 20)",
            "UPDATE t SET name = 'z' WHERE id = 1",
            "DELETE FROM t WHERE id = 1",
        ),
        postgres,
        tmp_path,
    )
    assert ours == theirs
