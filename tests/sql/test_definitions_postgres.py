"""Definitions beside constraints, held against a real PostgreSQL: the same tags, rows and errors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from postgres_scripts import outcomes
from postgres_server import server
from psycopg import Connection
from sql_world import Client, SqlWorld

from derive.sql.coordinator import Coordinator

SCRIPTS = {
    "comments": (
        "CREATE TABLE t (a int PRIMARY KEY, b text)",
        "CREATE VIEW v AS SELECT a AS x FROM t",
        "CREATE INDEX i ON t (a) INCLUDE (b)",
        "CREATE INDEX i3 ON t (a) INCLUDE (nothing)",
        "CREATE UNIQUE INDEX i2 ON t (b) INCLUDE (a)",
        "COMMENT ON TABLE t IS 'a table'",
        "COMMENT ON TABLE v IS 'a table'",
        "COMMENT ON VIEW v IS 'a view'",
        "COMMENT ON INDEX i IS 'an index'",
        "COMMENT ON COLUMN t.a IS 'a column'",
        "COMMENT ON COLUMN v.x IS 'x'",
        "COMMENT ON COLUMN t.nothing IS 'a column'",
        "COMMENT ON COLUMN nothing.a IS 'a column'",
        "COMMENT ON COLUMN a IS 'a column'",
        "COMMENT ON TABLE nothing IS 'x'",
        (
            "SELECT obj_description('t'::regclass), obj_description('i'::regclass, 'pg_class'),"
            " col_description('t'::regclass, 1), col_description('t'::regclass, 2), col_description('v'::regclass, 1)"
        ),
        (
            "SELECT c.relname, d.objsubid, d.description FROM pg_description d JOIN pg_class c ON c.oid ="
            " d.objoid WHERE c.relname IN ('t', 'v', 'i')"
        ),
        "INSERT INTO t VALUES (1, 'x')",
        "BEGIN",
        "COMMENT ON COLUMN t.b IS 'b'",
        "CREATE TABLE u (k int)",
        "COMMENT ON TABLE u IS 'u'",
        "ROLLBACK",
        "SELECT col_description('t'::regclass, 2)",
        "DROP VIEW v",
        "DROP INDEX i",
        "COMMENT ON COLUMN t.b IS 'b'",
        "ALTER TABLE t RENAME b TO c",
        "ALTER TABLE t ADD d int",
        "COMMENT ON TABLE t IS ''",
        ("SELECT obj_description('t'::regclass), col_description('t'::regclass, 2), col_description('t'::regclass, 1)"),
        "COMMENT ON COLUMN t.a IS NULL",
        "SELECT col_description('t'::regclass, 1)",
        "BEGIN",
        "CREATE TABLE u (k int)",
        "COMMENT ON TABLE u IS 'u'",
        "COMMENT ON COLUMN u.k IS 'k'",
        "COMMIT",
        "SELECT obj_description('u'::regclass), col_description('u'::regclass, 1)",
        "TABLE t",
    ),
    "rights and refresh": (
        "CREATE TABLE t (a int PRIMARY KEY, b text)",
        "REFRESH MATERIALIZED VIEW nothing",
        "REFRESH MATERIALIZED VIEW t",
        "CREATE VIEW w AS SELECT a FROM t",
        "REFRESH MATERIALIZED VIEW w",
        "GRANT SELECT ON t TO postgres",
        "GRANT ALL PRIVILEGES ON ALL TABLES IN SCHEMA public TO PUBLIC",
        "GRANT SELECT ON nothing TO PUBLIC",
        "GRANT USAGE ON SCHEMA public TO postgres",
        "REVOKE ALL ON t FROM PUBLIC",
        "REVOKE GRANT OPTION FOR SELECT ON t FROM postgres CASCADE",
    ),
}


@pytest.fixture(scope="module")
def postgres() -> Iterator[Connection]:
    with server().connect() as connection:
        connection.autocommit = True
        yield connection


@pytest.mark.parametrize("name", SCRIPTS)
def test_definitions_equal_postgresql(name: str, postgres: Connection, tmp_path: Path) -> None:
    ours, theirs = outcomes(SCRIPTS[name], postgres, tmp_path)
    assert ours == theirs


def test_comments_outlast_the_server_and_keep_views_maintained(tmp_path: Path) -> None:
    async def first(coordinator: Coordinator) -> None:
        client = Client(coordinator)
        await client.run("CREATE TABLE t (a int)")
        await client.run("CREATE MATERIALIZED VIEW v AS SELECT count(*) AS n FROM t")
        assert (await client.run("TABLE v"))[0] == [("0",)]
        await client.run("COMMENT ON MATERIALIZED VIEW v IS 'rows of t'")
        await client.run("COMMENT ON COLUMN v.n IS 'number'")
        await client.run("INSERT INTO t VALUES (1), (2)")
        assert (await client.run("TABLE v"))[0] == [("2",)]

    async def second(coordinator: Coordinator) -> None:
        client = Client(coordinator)
        await client.run("DELETE FROM t WHERE a = 1")
        assert (await client.run("TABLE v"))[0] == [("1",)]
        described = "SELECT obj_description('v'::regclass), col_description('v'::regclass, 1)"
        assert (await client.run(described))[0] == [("rows of t", "number")]
        await client.run("REFRESH MATERIALIZED VIEW CONCURRENTLY v WITH DATA")

    SqlWorld(tmp_path).within(first)
    SqlWorld(tmp_path).within(second)
