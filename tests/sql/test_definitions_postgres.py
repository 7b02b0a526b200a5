"""Definitions beside constraints, held against a real PostgreSQL: the same tags, rows and errors."""

from __future__ import annotations

from pathlib import Path

import pytest
from postgres_scripts import outcomes
from psycopg import Connection
from sql_world import Client, SqlWorld

from derive.sql.coordinator import Coordinator
from derive.sql.execution.state import User

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
    "changes by clients": (
        "CREATE TABLE t (id int PRIMARY KEY, name text, extra int)",
        "CREATE TABLE u (id int PRIMARY KEY, t_id int REFERENCES t (id) DEFERRABLE INITIALLY DEFERRED)",
        "INSERT INTO t VALUES (1, 'a', 10), (2, 'b', 20)",
        "INSERT INTO u VALUES (1, 1)",
        "BEGIN",
        "ALTER TABLE t ALTER COLUMN name TYPE varchar(20)",
        "ALTER TABLE t ADD note text",
        "ALTER TABLE u ADD x int",
        "COMMIT",
        "INSERT INTO u VALUES (2, 2)",
        "INSERT INTO u VALUES (9, 99)",
        "ALTER TABLE t RENAME name TO label",
        "ALTER TABLE t DROP extra",
        "DELETE FROM t WHERE id = 1",
        "ALTER TABLE t DROP id",
        "SELECT id, label, note FROM t WHERE label = 'b'",
        "CREATE INDEX t_like ON t (label varchar_pattern_ops DESC NULLS LAST)",
        "CREATE INDEX ON t (label nothing_ops)",
        "CREATE VIEW v AS SELECT id FROM t",
        "ALTER TABLE v RENAME TO w",
        "TABLE w ORDER BY id",
        "ALTER TABLE t_like RENAME TO t_label",
        "SELECT indexname FROM pg_indexes WHERE tablename = 't' ORDER BY 1",
        "ALTER TABLE nothing RENAME TO x",
        "ALTER VIEW t RENAME TO x",
    ),
    "an index of a renamed column": (
        "CREATE TABLE t (a int PRIMARY KEY, b text, c int)",
        "INSERT INTO t VALUES (1, 'x', 10), (2, 'y', 20)",
        "CREATE INDEX i ON t (b)",
        "BEGIN",
        "DROP INDEX i",
        "ALTER TABLE t RENAME b TO d",
        "ALTER TABLE t ADD e int",
        "CREATE INDEX i ON t (d)",
        "COMMIT",
        "SELECT * FROM t",
        "SELECT e, d FROM t WHERE d = 'x'",
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
    "schemas": (
        "CREATE SCHEMA sc",
        "CREATE SCHEMA sc",
        "CREATE SCHEMA IF NOT EXISTS sc",
        "CREATE SCHEMA pg_x",
        "CREATE TABLE public.x (a int)",
        "CREATE TABLE sc.x (a int PRIMARY KEY, b text)",
        "CREATE TABLE nothing.x (a int)",
        "INSERT INTO sc.x VALUES (1, 'one')",
        "INSERT INTO sc.x VALUES (1, 'one')",
        "INSERT INTO public.x VALUES (7)",
        "SELECT * FROM sc.x",
        "SELECT * FROM public.x",
        "SELECT x.a FROM sc.x",
        "SELECT sc.x.a FROM sc.x",
        "SELECT a.a, b.a FROM sc.x a, public.x b",
        "SELECT sc.x.a, public.x.a FROM sc.x, public.x",
        "SET search_path = sc, public",
        "SELECT * FROM x",
        "SHOW search_path",
        "SELECT current_schema(), current_schemas(false)",
        "CREATE TABLE y (b int UNIQUE)",
        "INSERT INTO y VALUES (3)",
        "SELECT * FROM sc.y",
        "CREATE VIEW v AS SELECT x.a, o.a AS o FROM x, public.x o",
        "SELECT * FROM v",
        "SET search_path = public",
        "SELECT * FROM y",
        "SELECT * FROM sc.v",
        "SELECT * FROM v",
        "CREATE TABLE y (b text)",
        "ALTER TABLE sc.y RENAME TO z",
        "ALTER TABLE sc.z ADD c int",
        "INSERT INTO sc.z VALUES (4, 5)",
        "SELECT * FROM sc.z",
        "UPDATE sc.z SET c = 6 WHERE b = 4 RETURNING *",
        "DELETE FROM sc.z WHERE b = 3",
        "CREATE INDEX ON sc.z (c)",
        "CREATE INDEX i ON sc.z (c)",
        "CREATE INDEX i ON y (b)",
        "DROP INDEX sc.i",
        "DROP INDEX i",
        "DROP TABLE x",
        "DROP VIEW v",
        "SELECT * FROM sc.x",
        "DROP SCHEMA sc",
        "DROP SCHEMA nothing",
        "DROP SCHEMA IF EXISTS nothing",
        "SELECT nspname FROM pg_namespace WHERE nspname = 'sc'",
        "SELECT relname, relkind FROM pg_class WHERE relnamespace = 'sc'::regnamespace AND relkind IN ('r', 'v')",
        "SELECT 'sc.z'::regclass::text, to_regclass('sc.nothing'), to_regclass('z')",
        "SELECT table_schema, table_name FROM information_schema.tables WHERE table_schema = 'sc'",
        "SELECT schema_name FROM information_schema.schemata WHERE schema_name = 'sc'",
        "BEGIN",
        "CREATE SCHEMA s2",
        "CREATE TABLE s2.t (a int)",
        "INSERT INTO s2.t VALUES (1)",
        "SELECT * FROM s2.t",
        "ROLLBACK",
        "SELECT * FROM s2.t",
        "BEGIN",
        "CREATE SCHEMA s2",
        "CREATE TABLE s2.t (a int)",
        "INSERT INTO s2.t VALUES (1)",
        "COMMIT",
        "SELECT * FROM s2.t",
        "DROP SCHEMA s2 CASCADE",
        "SELECT * FROM s2.t",
        "DROP SCHEMA sc CASCADE",
        "SELECT * FROM sc.x",
        "CREATE SCHEMA s3",
        "CREATE TABLE s3.lone (a int)",
        "BEGIN",
        "SET LOCAL search_path = s3",
        "SELECT * FROM lone",
        "COMMIT",
        "SELECT * FROM lone",
        "BEGIN",
        "SET search_path = s3",
        "SELECT * FROM lone",
        "ROLLBACK",
        "SELECT * FROM lone",
        "SET search_path = nothing",
        "CREATE TABLE q (a int)",
        'SET search_path = "$user", public',
        "SHOW search_path",
        "SELECT * FROM y",
    ),
    "temporary relations": (
        "CREATE TABLE t (a int)",
        "INSERT INTO t VALUES (1)",
        "CREATE TEMPORARY TABLE t (a int PRIMARY KEY, b serial)",
        "INSERT INTO t VALUES (7), (8)",
        "INSERT INTO t VALUES (7)",
        "SELECT a FROM t",
        "SELECT a FROM public.t",
        "SELECT a FROM pg_temp.t",
        "CREATE TEMP TABLE IF NOT EXISTS t (a int)",
        "CREATE TEMP TABLE t (a int)",
        "CREATE TEMP TABLE public.u (a int)",
        "CREATE TEMP TABLE u AS SELECT a + 1 AS x FROM t",
        "SELECT * FROM u",
        "UPDATE u SET x = x * 10 WHERE x = 8 RETURNING x",
        "DELETE FROM u WHERE x = 9",
        "TABLE u",
        "CREATE TABLE pg_temp.w (a int)",
        "INSERT INTO w VALUES (1)",
        "TABLE w",
        "CREATE VIEW v AS SELECT x FROM u",
        "SELECT * FROM v",
        "SELECT * FROM public.v",
        "CREATE VIEW public.w2 AS SELECT x FROM u",
        "CREATE OR REPLACE VIEW public.w2 AS SELECT x FROM u",
        "CREATE VIEW pg_temp.w3 AS SELECT x FROM u",
        "TABLE w3",
        "DROP VIEW w3",
        "CREATE TEMP VIEW tv AS SELECT a FROM public.t",
        "SELECT * FROM tv",
        "CREATE INDEX ON u (x)",
        "CREATE UNIQUE INDEX ux ON u (x)",
        "INSERT INTO u VALUES (80)",
        "TABLE u",
        "ALTER TABLE u RENAME TO u2",
        "TABLE u2",
        "SELECT current_schema(), relpersistence FROM pg_class WHERE oid = 't'::regclass",
        "SELECT count(*) FROM pg_class WHERE relname IN ('t', 'u2') AND pg_table_is_visible(oid)",
        "BEGIN",
        "CREATE TEMP TABLE x (a int)",
        "INSERT INTO x VALUES (1)",
        "SELECT * FROM x",
        "ROLLBACK",
        "SELECT * FROM x",
        "BEGIN",
        "CREATE TEMP TABLE x (a int) ON COMMIT PRESERVE ROWS",
        "INSERT INTO x VALUES (1)",
        "COMMIT",
        "SELECT * FROM x",
        "TRUNCATE x",
        "TABLE x",
        "CREATE TEMP TABLE gone (a int) ON COMMIT DROP",
        "SELECT * FROM gone",
        "CREATE TABLE kept (a int) ON COMMIT DROP",
        "CREATE TEMP TABLE empty (a int PRIMARY KEY) ON COMMIT DELETE ROWS",
        "INSERT INTO empty VALUES (1)",
        "INSERT INTO empty SELECT a FROM public.t",
        "TABLE empty",
        "BEGIN",
        "CREATE TEMP TABLE gone ON COMMIT DROP AS SELECT 1 AS a",
        "CREATE VIEW over_gone AS SELECT a FROM gone",
        "INSERT INTO gone VALUES (2)",
        "INSERT INTO empty SELECT a FROM gone",
        "INSERT INTO empty VALUES (2)",
        "ROLLBACK",
        "BEGIN",
        "CREATE TEMP TABLE gone (a serial) ON COMMIT DROP",
        "INSERT INTO gone VALUES (DEFAULT), (DEFAULT) RETURNING a",
        "INSERT INTO empty SELECT a FROM gone",
        "SELECT * FROM empty",
        "COMMIT",
        "SELECT * FROM gone",
        "TABLE empty",
        "CREATE TEMP TABLE filled ON COMMIT DELETE ROWS AS SELECT 1 AS a",
        "TABLE filled",
        "CREATE TEMP TABLE gone2 ON COMMIT DROP AS SELECT 1 AS a",
        "TABLE gone2",
        "DROP TABLE t",
        "SELECT a FROM t",
        "DROP TABLE u2 CASCADE",
        "SELECT * FROM v",
        "DISCARD TEMP",
        "SELECT * FROM x",
        "SELECT * FROM pg_temp.x",
        "TABLE t",
    ),
    "sequences": (
        "CREATE SEQUENCE s",
        "SELECT currval('s')",
        "SELECT lastval()",
        "SELECT nextval('s')",
        "SELECT nextval('s'), currval('s'), lastval()",
        "SELECT setval('s', 10)",
        "SELECT currval('s'), lastval()",
        "SELECT nextval('s'::regclass)",
        "SELECT setval('s', 10, false)",
        "SELECT nextval('public.s')",
        "SELECT nextval('S'), nextval('\"s\"')",
        "SELECT nextval('nothing')",
        "SELECT nextval(NULL)",
        "SELECT setval('s', 0)",
        "CREATE TABLE t (a int)",
        "SELECT nextval('t')",
        "CREATE SEQUENCE s",
        "CREATE SEQUENCE IF NOT EXISTS s",
        "CREATE TABLE s (a int)",
        "CREATE SEQUENCE s2 START WITH 5 INCREMENT BY 2 MAXVALUE 9",
        "SELECT nextval('s2'), nextval('s2'), nextval('s2')",
        "SELECT nextval('s2')",
        "CREATE SEQUENCE s3 INCREMENT -3",
        "SELECT nextval('s3'), nextval('s3')",
        "SELECT setval('s3', -10), nextval('s3')",
        "CREATE SEQUENCE s4 INCREMENT BY 0",
        "CREATE SEQUENCE s4 START 0",
        "CREATE SEQUENCE s4 MINVALUE 5 MAXVALUE 4",
        "CREATE SEQUENCE s4 AS text",
        "CREATE SEQUENCE s4 AS smallint MAXVALUE 40000",
        "CREATE SEQUENCE s4 AS int NO MINVALUE NO MAXVALUE CACHE 1 NO CYCLE",
        "SELECT nextval('s4') FROM generate_series(1, 50)",
        "ALTER SEQUENCE s4 RESTART",
        "SELECT nextval('s4')",
        "ALTER SEQUENCE s4 RESTART WITH 30",
        "SELECT nextval('s4')",
        "ALTER SEQUENCE s4 RENAME TO s5",
        "SELECT nextval('s5')",
        "ALTER SEQUENCE IF EXISTS nothing RESTART",
        "ALTER SEQUENCE nothing RESTART",
        "DROP SEQUENCE s5",
        "SELECT nextval('s5')",
        "DROP SEQUENCE IF EXISTS s5",
        "DROP SEQUENCE t",
        "DROP TABLE s2",
        "CREATE TABLE u (a bigint DEFAULT nextval('s') PRIMARY KEY, b text)",
        "INSERT INTO u (b) VALUES ('x'), ('y') RETURNING a",
        "INSERT INTO u (b) SELECT 'z' FROM generate_series(1, 3) RETURNING a",
        "INSERT INTO u VALUES (100, 'w')",
        "INSERT INTO u VALUES (nextval('s'), 'v') RETURNING a",
        "UPDATE u SET a = nextval('s') WHERE b = 'x' RETURNING a",
        "ALTER TABLE u ADD c int DEFAULT nextval('s2') - 9",
        "BEGIN",
        "CREATE SEQUENCE s6",
        "SELECT nextval('s6')",
        "CREATE TABLE w (a int DEFAULT nextval('s6'))",
        "INSERT INTO w VALUES (DEFAULT), (DEFAULT) RETURNING a",
        "COMMIT",
        "INSERT INTO w VALUES (DEFAULT) RETURNING a",
        "BEGIN",
        "SELECT nextval('s6')",
        "ROLLBACK",
        "SELECT nextval('s6')",
        "SELECT relname, relkind FROM pg_class WHERE relname = 's6'",
        "CREATE SCHEMA q",
        "CREATE SEQUENCE q.s",
        "SELECT nextval('q.s'), nextval('s')",
        "DROP SEQUENCE s6",
        "DROP SEQUENCE s6 CASCADE",
        "INSERT INTO w VALUES (DEFAULT) RETURNING a",
        "COMMENT ON SEQUENCE s IS 'numbers'",
        "SELECT obj_description('s'::regclass)",
        "CREATE SEQUENCE r START 7",
        "SELECT last_value, is_called FROM r",
        "SELECT nextval('r')",
        "SELECT last_value, is_called FROM r",
        "SELECT setval('r', 20)",
        "SELECT last_value, is_called FROM r",
        (
            "SELECT pg_sequence_last_value('r'::regclass), seqstart, seqincrement, seqmin, seqmax, seqcycle"
            " FROM pg_sequence WHERE seqrelid = 'r'::regclass"
        ),
        "SELECT nextval('r')",
        "SELECT last_value, is_called FROM r",
    ),
    "sequences of columns": (
        'CREATE TABLE t (a serial, "B c" bigint GENERATED BY DEFAULT AS IDENTITY, d int)',
        "SELECT pg_get_serial_sequence('t', 'a'), pg_get_serial_sequence('public.t', 'B c'), pg_get_serial_sequence('t', 'd')",
        "SELECT pg_get_serial_sequence('t', 'nothing')",
        "SELECT pg_get_serial_sequence('nothing', 'a')",
        "SELECT currval('t_a_seq')",
        "INSERT INTO t (d) VALUES (1), (2) RETURNING a",
        "SELECT currval('t_a_seq'), currval(pg_get_serial_sequence('t', 'a'))",
        "SELECT nextval('t_a_seq'), nextval('public.t_a_seq'::regclass)",
        "INSERT INTO t VALUES (70, 80, 3)",
        "SELECT setval(pg_get_serial_sequence('t', 'a'), coalesce(max(a), 1), max(a) IS NOT NULL) FROM t",
        "INSERT INTO t (d) VALUES (4) RETURNING a",
        "SELECT setval(pg_get_serial_sequence('t', 'a'), 9, false)",
        "INSERT INTO t (d) VALUES (5) RETURNING a",
        "SELECT setval('t_a_seq', 0)",
        "SELECT nextval('t_d_seq')",
        "SELECT 't_a_seq'::regclass",
    ),
    "prepared statements over altered tables": (
        "CREATE TABLE t (a int, b int)",
        "INSERT INTO t VALUES (1, 2), (3, 4)",
        "PREPARE p AS SELECT b FROM t WHERE a = $1",
        "PREPARE q AS INSERT INTO t VALUES ($1, 9) RETURNING b",
        "PREPARE r (text) AS SELECT b FROM t WHERE b::text = $1",
        "EXECUTE p (1)",
        "ALTER TABLE t ALTER a TYPE bigint",
        "EXECUTE p (3)",
        "EXECUTE q (5)",
        "EXECUTE p (99999999999)",
        "ALTER TABLE t ALTER a TYPE text",
        "EXECUTE p (3)",
        "EXECUTE q (6)",
        "EXECUTE r ('4')",
        "ALTER TABLE t ALTER a TYPE int USING a::int",
        "EXECUTE p (5)",
        "ALTER TABLE t ALTER b TYPE text",
        "EXECUTE p (5)",
    ),
}


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


def test_views_keep_the_relations_of_their_search_path(tmp_path: Path) -> None:
    async def first(coordinator: Coordinator) -> None:
        client = Client(coordinator)
        await client.script("CREATE SCHEMA s; CREATE TABLE t (a int); CREATE TABLE s.t (b int)")
        await client("SET search_path = s, public")
        await client("CREATE MATERIALIZED VIEW v AS SELECT t.b, o.a FROM t, public.t o")
        await client.script("INSERT INTO t VALUES (1), (2); INSERT INTO public.t VALUES (7)")
        assert sorted(await client("TABLE v")) == [("1", "7"), ("2", "7")]

    async def second(coordinator: Coordinator) -> None:
        client = Client(coordinator)
        await client.script("DELETE FROM s.t WHERE b = 1; UPDATE t SET a = 8")
        assert await client("TABLE s.v") == [("2", "8")]
        assert await client.fails("TABLE v") == "42P01"
        definition = "WITH o AS (SELECT a FROM t) SELECT t.b, o.a FROM t, o"
        await client.script("SET search_path = s, public", f"CREATE VIEW w AS {definition.replace('t)', 'public.t)')}")
        await client("RESET search_path")
        ((text,),) = await client("SELECT pg_get_viewdef('s.w'::regclass)")
        assert text == "WITH o AS (SELECT a FROM public.t) SELECT t.b, o.a FROM s.t, o;"
        await client("CREATE VIEW s.n (x) AS SELECT a, a AS y FROM public.t")
        ((text,),) = await client("SELECT pg_get_viewdef('s.n'::regclass)")
        assert text == "SELECT * FROM (SELECT a, a AS y FROM public.t) AS n (x, y);"
        assert await client("TABLE s.w") == [("2", "8")]
        assert await client.fails("DROP SCHEMA s") == "2BP01"

    SqlWorld(tmp_path).within(first)
    SqlWorld(tmp_path).within(second)


def test_schema_cannot_be_dropped_beside_a_new_relation_in_it(tmp_path: Path) -> None:
    async def both(coordinator: Coordinator) -> None:
        one, other = Client(coordinator), Client(coordinator)
        await one("CREATE SCHEMA s")
        await one.script("BEGIN; CREATE TABLE s.t (a int)")
        await other.script("BEGIN; DROP SCHEMA s")
        await one("COMMIT")
        assert await other.fails("COMMIT") == "40001"
        await one.script("BEGIN; CREATE TABLE s.u (a int)")
        await other("DROP SCHEMA s CASCADE")
        assert await one.fails("COMMIT") == "40001"

    SqlWorld(tmp_path).within(both)


def test_temporary_relations_belong_to_one_session_and_end_with_it(tmp_path: Path) -> None:
    async def sessions(coordinator: Coordinator) -> None:
        one, other = Client(coordinator), Client(coordinator)
        await one.script("CREATE TEMP TABLE t (a int); INSERT INTO t VALUES (1)")
        await other.script("CREATE TEMP TABLE t (b text); INSERT INTO t VALUES ('x')")
        assert await one("TABLE t") == [("1",)]
        assert await other("TABLE t") == [("x",)]
        (number,) = {item.schema for item in coordinator.objects.items.values()} - {one.session._state.temporary}
        assert await one.fails(f"TABLE {number}.t") == "42P01"
        await other.script("DROP TABLE t; CREATE TABLE t (c int); INSERT INTO t VALUES (3)")
        await one(f"SET search_path = {number}, public, pg_temp")
        assert await one("TABLE t") == [("3",)]
        await one("SET search_path = public")
        assert await one("TABLE t") == [("1",)]
        await other.script("DROP TABLE t; CREATE TEMP TABLE t (b text)")
        assert await one("SELECT relname FROM pg_class WHERE relpersistence = 't'") == [("t",)]
        assert await one.fails("CREATE MATERIALIZED VIEW v AS SELECT a FROM t") == "0A000"
        await one.session.close()
        assert [item.schema for item in coordinator.objects.items.values()] == [number]

    SqlWorld(tmp_path).within(sessions)


def test_temporary_relations_of_a_killed_server_are_dropped(tmp_path: Path) -> None:
    async def killed(coordinator: Coordinator) -> None:
        client = Client(coordinator)
        await client.script("CREATE TEMP TABLE t (a int); CREATE TEMP VIEW v AS SELECT a FROM t")
        client.session._state.temporary = None  # so that the end of the session drops nothing

    async def after(coordinator: Coordinator) -> None:
        client = Client(coordinator)
        assert await client.fails("TABLE t") == "42P01"
        await client.script("CREATE TEMP TABLE t (b int); INSERT INTO t VALUES (2)")
        assert await client("TABLE t") == [("2",)]
        assert [item.name for item in coordinator.objects.items.values()] == ["t"]

    SqlWorld(tmp_path).within(killed)
    SqlWorld(tmp_path).within(after)


def test_sequences_give_each_number_once_and_continue_after_the_server(tmp_path: Path) -> None:
    async def first(coordinator: Coordinator) -> None:
        one, other = Client(coordinator), Client(coordinator)
        await one.script("CREATE SEQUENCE s; CREATE SEQUENCE t INCREMENT 5; SELECT setval('t', 11, false)")
        numbers = [await client("SELECT nextval('s')") for client in (one, other, one)]
        assert numbers == [[("1",)], [("2",)], [("3",)]]
        assert await other("SELECT currval('s'), lastval()") == [("2", "2")]
        assert await one("SELECT nextval('t')") == [("11",)]

    async def second(coordinator: Coordinator) -> None:
        client = Client(coordinator)
        assert await client.fails("SELECT currval('s')") == "55000"
        ((number,),) = await client("SELECT nextval('s')")
        assert int(number or 0) > 3
        ((number,),) = await client("SELECT nextval('t')")
        assert int(number or 0) > 11
        assert int(number or 0) % 5 == 1
        assert await client.fails("CREATE MATERIALIZED VIEW v AS SELECT nextval('s')") == "0A000"

    SqlWorld(tmp_path).within(first)
    SqlWorld(tmp_path).within(second)


def test_grant_names_users_of_the_password_file(tmp_path: Path) -> None:
    async def grants(coordinator: Coordinator) -> None:
        client = Client(coordinator)
        client.session._state.user = User("ann", names=frozenset({"ann", "ben"}))
        await client("CREATE TABLE t (a int)")
        for role in ("ben", "PUBLIC", "CURRENT_USER"):
            assert await client.tag(f"GRANT SELECT ON t TO {role}") == "GRANT"
        assert await client.fails("GRANT SELECT ON t TO cas") == "42704"
        assert await client.fails("GRANT ann TO ben") == "0A000"

    SqlWorld(tmp_path).within(grants)
