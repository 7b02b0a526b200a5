"""Domains, held against a real PostgreSQL: definitions, casts, writes, and maintained views over them."""

from __future__ import annotations

from pathlib import Path

import pytest
from postgres_scripts import maintained, outcomes
from psycopg import Connection
from sql_world import Client, SqlWorld

from derive.sql.coordinator import Coordinator

SCRIPTS = {
    "casts": (
        "CREATE DOMAIN posint AS int CHECK (VALUE > 0)",
        "CREATE DOMAIN code varchar(3) CONSTRAINT upper CHECK (value = upper(value)) CHECK (value <> 'NO') NOT NULL",
        "CREATE DOMAIN plain numeric(4, 1)",
        "SELECT 3::posint, '4'::posint, CAST(NULL AS posint), 2::posint + 1",
        "SELECT 0::posint",
        "SELECT 'x'::posint",
        "SELECT 'AB'::code, 'ABCDE'::code",
        "SELECT 'ab'::code",
        "SELECT 'NO'::code",
        "SELECT NULL::code",
        "SELECT 1.25::plain, '7'::plain",
        "SELECT x::posint FROM (VALUES (1), (2)) t(x)",
        "SELECT x::posint FROM (VALUES (1), (-2)) t(x)",
        "SELECT (a + b)::posint FROM (VALUES (1, 2)) t(a, b)",
        "SELECT 1::nothing",
    ),
    "writes": (
        "CREATE DOMAIN posint AS int CHECK (VALUE > 0)",
        "CREATE DOMAIN named AS text DEFAULT 'x' NOT NULL CHECK (length(VALUE) < 4)",
        "CREATE TABLE t (a posint PRIMARY KEY, b named, c posint CHECK (c < 10), d numeric)",
        "INSERT INTO t (a, c) VALUES (1, 2), (2, NULL) RETURNING *",
        "INSERT INTO t (a) VALUES (0)",
        "INSERT INTO t VALUES (3, NULL)",
        "INSERT INTO t VALUES (3, 'long')",
        "INSERT INTO t VALUES (4, 'y'), (5, 'long')",
        "INSERT INTO t VALUES (3, 'y', 11)",
        "INSERT INTO t VALUES (3, 'y', -1)",
        "INSERT INTO t (a) VALUES (1)",
        "UPDATE t SET c = a - 1 WHERE a = 2 RETURNING c",
        "UPDATE t SET c = a - 1 WHERE a = 1",
        "UPDATE t SET b = NULL",
        "INSERT INTO t VALUES (1, 'z', 3) ON CONFLICT (a) DO UPDATE SET c = -1",
        "INSERT INTO t VALUES (1, 'z', 3) ON CONFLICT (a) DO UPDATE SET c = excluded.c RETURNING c",
        "INSERT INTO t (a) SELECT -5",
        "ALTER TABLE t ADD e posint DEFAULT 5",
        "ALTER TABLE t ADD f posint DEFAULT -5",
        "ALTER TABLE t RENAME c TO g",
        "UPDATE t SET g = -3",
        "UPDATE t SET e = 6 WHERE a = 1 RETURNING e, g",
        "TABLE t",
        "DROP DOMAIN posint",
        "DROP TABLE t",
        "DROP DOMAIN posint, named",
        "SELECT 1::posint",
    ),
    "altered types": (
        "CREATE DOMAIN few AS int CHECK (value < 1000)",
        "CREATE DOMAIN filled AS int NOT NULL",
        "CREATE TABLE t (k int PRIMARY KEY, a few)",
        "INSERT INTO t VALUES (1, 5), (2, NULL)",
        "ALTER TABLE t ALTER COLUMN a DROP DEFAULT, ALTER COLUMN a TYPE text USING a::text",
        "INSERT INTO t VALUES (3, '5000')",
        "ALTER TABLE t ALTER COLUMN a TYPE few USING a::int",
        "ALTER TABLE t ALTER COLUMN a TYPE few USING a::int % 1000",
        "INSERT INTO t VALUES (4, 4000)",
        "ALTER TABLE t ALTER COLUMN a TYPE filled",
        "DELETE FROM t WHERE a IS NULL",
        "ALTER TABLE t ALTER COLUMN a TYPE filled",
        "INSERT INTO t VALUES (4, NULL)",
        "ALTER TABLE t ALTER COLUMN a TYPE int",
        "INSERT INTO t VALUES (6, NULL), (7, 4000) RETURNING *",
    ),
    "definitions": (
        "CREATE TABLE t (a int)",
        "CREATE DOMAIN t AS int",
        "CREATE DOMAIN d AS nothing",
        "CREATE DOMAIN d AS int CHECK (VALUE + 1)",
        "CREATE DOMAIN d AS int CHECK (x > 1)",
        "CREATE DOMAIN d AS int CHECK ((SELECT true))",
        "CREATE DOMAIN d AS int NOT NULL NULL",
        "CREATE DOMAIN d AS int CONSTRAINT a CHECK (value > 1) CONSTRAINT a CHECK (value > 2)",
        "CREATE DOMAIN d AS int CHECK (value > 1)",
        "CREATE DOMAIN d AS int",
        "CREATE TABLE d (a int)",
        "CREATE VIEW v AS SELECT a::d AS a FROM t",
        "INSERT INTO t VALUES (2)",
        "SELECT * FROM v",
        "INSERT INTO t VALUES (1)",
        "SELECT * FROM v",
        "DROP DOMAIN d",
        "DROP DOMAIN d CASCADE",
        "SELECT * FROM v",
        "DROP DOMAIN nothing",
        "DROP DOMAIN IF EXISTS nothing",
        "BEGIN",
        "CREATE DOMAIN d AS int CHECK (value > 5)",
        "CREATE TABLE u (a d)",
        "INSERT INTO u VALUES (6)",
        "COMMIT",
        "INSERT INTO u VALUES (5)",
        "TABLE u",
    ),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_domains_equal_postgresql(name: str, postgres: Connection, tmp_path: Path) -> None:
    ours, theirs = outcomes(SCRIPTS[name], postgres, tmp_path)
    assert ours == theirs


def test_maintained_views_of_domains_equal_postgresql(postgres: Connection, tmp_path: Path) -> None:
    definitions = (
        "CREATE DOMAIN even AS int CHECK (VALUE % 2 = 0)",
        "CREATE TABLE t (a even, b int)",
        "INSERT INTO t VALUES (2, 4), (4, 6)",
    )
    queries = ("SELECT a, b::even AS b FROM t", "SELECT a::even AS a, count(*) FROM t GROUP BY a::even")
    changes = (
        "INSERT INTO t VALUES (2, 8)",
        "INSERT INTO t VALUES (6, 12)",
        "UPDATE t SET b = 10 WHERE b = 12",
        "DELETE FROM t WHERE a = 2",
    )
    ours, theirs = maintained(definitions, queries, changes, postgres, tmp_path)
    assert ours == theirs


def test_domains_outlast_the_server(tmp_path: Path) -> None:
    async def first(coordinator: Coordinator) -> None:
        client = Client(coordinator)
        await client.script("CREATE DOMAIN d AS int CHECK (value > 0) NOT NULL DEFAULT 7; CREATE TABLE t (a d, b int)")

    async def second(coordinator: Coordinator) -> None:
        client = Client(coordinator)
        await client("INSERT INTO t (b) VALUES (1)")
        assert await client("TABLE t") == [("7", "1")]
        assert await client.fails("INSERT INTO t VALUES (0, 1)") == "23514"
        assert await client.fails("INSERT INTO t VALUES (NULL, 1)") == "23502"
        assert await client.fails("SELECT (random() * 9)::int::d") == "0A000"
        assert await client.fails("DROP DOMAIN d CASCADE") == "2BP01"

    SqlWorld(tmp_path).within(first)
    SqlWorld(tmp_path).within(second)
