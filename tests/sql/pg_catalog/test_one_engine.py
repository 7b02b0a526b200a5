"""Queries of the catalogs and functions of the session have the semantics of all other queries."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from postgres_server import server
from sql_server import served

Connection = psycopg.Connection[Any]

OBJECTS = [
    "CREATE TABLE engine_orders (id bigint NOT NULL, customer text, amount numeric(8,2))",
    "CREATE INDEX engine_orders_id ON engine_orders (id)",
    "INSERT INTO engine_orders VALUES (1, 'engine_orders', 2.5), (2, 'engine_large', 200)",
    (
        "CREATE TABLE engine_types (a smallint, b double precision, c text, d varchar(9), e char(3), f boolean, g bytea,"
        " h jsonb, i date, j time, k timestamptz, l interval, m uuid, n inet, o macaddr, p int[], q text[], r numeric)"
    ),
    'CREATE TABLE "Engine_Mixed" ("A b" int)',
    'CREATE INDEX "Engine idx" ON "Engine_Mixed" ("A b")',
    "CREATE TABLE engine_mixed (a int)",
    'CREATE TABLE "engine.dot" (a int)',
    "CREATE VIEW engine_large AS SELECT id FROM engine_orders WHERE amount > 100",
]
SAME = [
    "SELECT 7/2, current_database() IS NOT NULL",
    "SELECT -7/2, -7 % 3, version() LIKE 'PostgreSQL%'",
    "SELECT 1/0, current_user",
    "SELECT 'a_b' LIKE 'a\\_b', 'axb' LIKE 'a\\_b', current_database() = ''",
    "SELECT interval '1 month 2 days', current_user <> ''",
    "SELECT interval '36 hours', justify_hours(interval '36 hours'), version() = ''",
    "SELECT 2147483647 + 1, current_database() = ''",
    "SELECT 1.0 / 3, 0.1 + 0.2, current_schema()",
    "SELECT 'b' || 1, substring('abc' from 2), current_schema()",
    "SELECT '' IS NULL, NULL || 'x', nullif(current_schema(), 'public')",
    "SELECT round(2.5), round(-2.5), round(2.5::float8), current_schema()",
    "SELECT date '2024-01-31' + interval '1 month', current_schema()",
    "SELECT 'abc' < 'ABC', 'a' < 'B' COLLATE \"C\", current_schema()",
    "SELECT array_agg(x ORDER BY x DESC), current_schema() FROM (VALUES (1), (NULL), (2)) t(x)",
    "SELECT sum(x), avg(x::float8), count(*) FROM (VALUES (1), (2)) t(x), pg_am WHERE amname = 'btree'",
    "SELECT x / 2, x % 2 FROM (VALUES (7)) t(x), pg_database WHERE datname = current_database()",
    "SELECT 'x' ~ '^(?:X)$', 'x' ~* '^X$', regexp_replace('aXb', '[A-Z]', '-'), current_schema()",
    "SELECT '10'::oid + 1, 7::oid = 7, 'pg_class'::regclass, 'int4'::regtype, 'pg_catalog'::regnamespace",
    "SELECT 0::regclass, 4294967295::oid, -1::oid::int8, '-1'::oid",
    "SELECT 'nothing'::regclass",
    "SELECT 'x'::oid",
    "SELECT 5000000000::oid",
    "SELECT to_regclass('nothing'), to_regtype('int8'), to_regtype('nothing'), to_regnamespace('nothing')",
    "SELECT to_regclass('\"ENGINE_ORDERS\"'), to_regclass('a.engine_orders'), to_regclass('engine_orders.a')",
    "SELECT ' Public . ENGINE_Orders '::regclass, '\"public\".\"engine_orders\"'::regclass, '\"Engine_Mixed\"'::regclass",
    "SELECT 'Engine_Mixed'::regclass::text = 'engine_mixed'::regclass::text, to_regclass('engine.dot')",
    "SELECT '\"pg_catalog\".\"pg_class\"'::regclass, 'PG_TYPE'::regclass, to_regclass('pg_catalog.engine_orders')",
    "SELECT '\"engine_orders'::regclass",
    "SELECT ''::regclass",
    "SELECT 'a.b.c.d'::regclass",
    "SELECT 'public.engine_orders'::regnamespace",
    "SELECT 'INTEGER'::regtype, 'varchar(10)'::regtype, 'timestamp(3) with time zone'::regtype, '\"char\"'::regtype",
    "SELECT 'bigint []'::regtype, '_int4'::regtype, '\"pg_catalog\".\"int4\"'::regtype, 'float(20)'::regtype",
    "SELECT attname[0], (attname)[1] = 'u' FROM pg_attribute WHERE attname = 'customer'",
    "SELECT count(*) FROM pg_class WHERE relname = 'pg_settings' AND relnamespace = 'public'::regnamespace",
    (
        "SELECT DISTINCT r.rulename, r.ev_type, r.is_instead, d.refobjid::regclass::text, d.deptype FROM pg_rewrite r"
        " JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid"
        " WHERE r.ev_class = 'engine_large'::regclass ORDER BY 4, 5"
    ),
    (
        "SELECT d.refobjid::regclass, d.refobjsubid, d.deptype FROM pg_depend d"
        " WHERE d.classid = 'pg_class'::regclass AND d.objid = 'engine_orders_id'::regclass"
    ),
    "SELECT right(pg_get_viewdef('engine_large'::regclass), 1), right(definition, 1) FROM pg_views WHERE viewname = 'engine_large'",
    "SELECT has_table_privilege('engine_orders', 'SELECT, insert WITH GRANT OPTION'), has_table_privilege(1259, 'select')",
    "SELECT has_table_privilege(oid, 'DELETE') FROM pg_class WHERE relname = 'engine_orders'",
    "SELECT has_table_privilege(current_user, 'engine_orders', 'SELECT'), has_table_privilege('public', 1259, 'select')",
    "SELECT has_table_privilege(999999999, 'SELECT'), has_table_privilege(NULL, 'SELECT')",
    "SELECT has_table_privilege('nothing', 'SELECT')",
    "SELECT has_table_privilege('engine_orders', 'FLY')",
    "SELECT has_table_privilege('nobody', 'engine_orders', 'SELECT')",
    "SELECT has_any_column_privilege('engine_orders', 'SELECT')",
    "SELECT has_any_column_privilege('engine_orders', 'DELETE')",
    "SELECT has_column_privilege('engine_orders', 'id', 'SELECT'), has_column_privilege('engine_orders', 1::smallint, 'UPDATE')",
    "SELECT has_column_privilege('engine_orders', 'nothing', 'SELECT')",
    "SELECT has_schema_privilege('public', 'USAGE'), has_schema_privilege('pg_catalog'::regnamespace, 'usage')",
    "SELECT has_schema_privilege('nothing', 'USAGE')",
    "SELECT pg_get_viewdef('engine_large') IS NULL, pg_get_viewdef('public.engine_large', true) IS NULL",
    "SELECT pg_get_viewdef('nothing')",
    "SELECT pg_get_indexdef('\"Engine idx\"'::regclass, 1, true), pg_get_indexdef('\"Engine idx\"'::regclass)",
    (
        "SELECT attname, attlen, attndims, attbyval, attalign, attstorage, attcollation FROM pg_attribute"
        " WHERE attrelid = 'engine_types'::regclass AND attnum > 0 ORDER BY attnum"
    ),
    (
        "SELECT column_name, character_octet_length, identity_cycle FROM information_schema.columns"
        " WHERE table_name IN ('engine_types', 'engine_orders') ORDER BY 1"
    ),
    "SELECT hasrules, hastriggers, rowsecurity FROM pg_tables WHERE tablename = 'engine_orders'",
    (
        "SELECT typname, typbyval, typalign, typstorage, typispreferred FROM pg_type WHERE typname IN"
        " ('bool', 'char', 'name', 'int2', 'int8', 'int2vector', 'oid', 'cidr', 'float8', 'unknown', 'macaddr', 'inet',"
        " '_int4', 'timestamptz', 'interval', 'numeric', 'record', 'uuid', 'jsonb') ORDER BY 1"
    ),
    "SELECT format_type(1700, 524294), format_type(1043, 9), format_type(1042, 9), format_type(23, -1)",
    "SELECT format_type(1016, NULL), format_type(NULL, 1), format_type(0, NULL), format_type(99999, NULL)",
    "SELECT pg_typeof_is_missing(1)",
    "SELECT current_setting('nothing')",
    "SELECT current_setting('nothing', true), current_setting('TimeZone'), current_setting(NULL)",
    "SELECT set_config('my.own', 'x', false), current_setting('my.own')",
    "SELECT pg_sleep(0), pg_sleep(NULL)",
    "SELECT CASE WHEN pg_try_advisory_lock(77) THEN pg_advisory_unlock(77) END, pg_advisory_unlock_all()",
    "SELECT pg_encoding_to_char(6), pg_char_to_encoding('UTF8'), pg_is_in_recovery()",
    "SELECT quote_ident('a b'), quote_ident('select'), quote_literal('it''s'), format('%I.%L', 'A', 'b')",
    "SELECT pg_advisory_lock('x')",
    (
        "SELECT pg_size_pretty(x), pg_size_pretty(-x) FROM unnest('{0,1,10239,10240,10751,10752,20970495,20971519,20971520,"
        "10484736,10485247,10485248,107374182400,10995116277759,9223372036854775807}'::bigint[]) x"
    ),
    "SELECT getdatabaseencoding(), pg_client_encoding()",
    "SELECT tableoid, tableoid::regclass, c.tableoid = 'pg_class'::regclass FROM pg_class c WHERE relname = 'engine_orders'",
    "SELECT c.tableoid, n.tableoid FROM pg_am c LEFT JOIN pg_namespace n ON false WHERE amname = 'heap'",
    "SELECT pg_am.tableoid::regclass, count(*) FROM pg_am WHERE amname = 'heap' GROUP BY tableoid",
    "SELECT tableoid FROM pg_am a, pg_type b WHERE amname = 'heap'",
    "SELECT tableoid FROM (SELECT * FROM pg_am) a",
    (
        "SELECT relname, relkind, relkind = 'r', relkind IN ('r', 'v'), relnatts FROM pg_class"
        " WHERE relname LIKE 'engine\\_%' AND relkind IN ('r', 'v') ORDER BY 1"
    ),
    "SELECT o.id, c.relname, o.amount FROM engine_orders o JOIN pg_class c ON c.relname = o.customer ORDER BY 1",
    "SELECT c.relname, (SELECT max(id) / 2 FROM engine_orders) FROM pg_class c WHERE c.oid = 'engine_orders'::regclass",
    (
        "SELECT a.attname, format_type(a.atttypid, a.atttypmod), a.attnum, a.attnotnull FROM pg_attribute a"
        " WHERE a.attrelid = 'engine_orders'::regclass AND a.attnum > 0 ORDER BY a.attnum"
    ),
    (
        "SELECT a.attname FROM pg_attribute a WHERE EXISTS (SELECT FROM engine_orders o WHERE o.id = a.attnum)"
        " AND a.attrelid = 'engine_orders'::regclass ORDER BY 1"
    ),
    (
        "SELECT i.indkey[0], i.indkey, 1 = ANY(i.indkey), array_length(i.indkey, 1), i.indnatts / 2 FROM pg_index i"
        " WHERE i.indrelid = 'public.engine_orders'::regclass"
    ),
    (
        "SELECT k, (i.indkey)[k] FROM pg_index i, generate_subscripts(i.indkey, 1) k"
        " WHERE i.indrelid = 'engine_orders'::regclass"
    ),
    (
        "SELECT u.x, u.n FROM pg_index i, unnest(i.indkey) WITH ORDINALITY u(x, n)"
        " WHERE i.indrelid = 'engine_orders'::regclass"
    ),
    (
        "SELECT (information_schema._pg_expandarray(i.indkey)).n FROM pg_index i"
        " WHERE i.indrelid = 'engine_orders'::regclass"
    ),
    "SELECT pg_get_indexdef('engine_orders_id'::regclass), pg_get_indexdef('engine_orders_id'::regclass, 1, true)",
    "SELECT pg_table_is_visible('engine_orders'::regclass), pg_table_is_visible(1::oid), pg_get_viewdef(1::oid)",
    (
        "SELECT column_name, data_type, numeric_precision, numeric_scale, is_nullable, udt_name, ordinal_position"
        " FROM information_schema.columns WHERE table_name = 'engine_orders' ORDER BY ordinal_position"
    ),
    (
        "SELECT table_name, table_type, is_insertable_into FROM information_schema.tables"
        " WHERE table_name = 'engine_orders'"
    ),
    "SELECT tablename, hasindexes FROM pg_tables WHERE tablename LIKE 'engine%' ORDER BY 1",
    (
        "SELECT ARRAY(SELECT attname FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0 ORDER BY attnum)"
        " FROM pg_class c WHERE relname = 'engine_orders'"
    ),
    (
        "SELECT relname, (WITH RECURSIVE r(n) AS (SELECT c.relnatts::int UNION ALL SELECT n - 1 FROM r WHERE n > 1)"
        " SELECT sum(n) FROM r) FROM pg_class c WHERE relname IN ('engine_orders', 'engine_large') ORDER BY 1"
    ),
    "SELECT word, catcode FROM pg_get_keywords() WHERE word IN ('select', 'left', 'between') ORDER BY 1",
    "SELECT count(*) = 1 FROM pg_database WHERE datname = current_database() AND encoding = 6 AND datallowconn",
    (
        "SELECT typname, typlen, typbyval, typcategory, typelem, typarray, typdelim, typinput, typreceive FROM pg_type"
        " WHERE oid IN (16, 17, 20, 21, 23, 25, 701, 1009, 1043, 1082, 1114, 1184, 1186, 1700, 2950, 3802) ORDER BY oid"
    ),
    "SELECT * FROM pg_catalog.pg_clas",
    "SELECT nope FROM pg_class",
    "SELECT * FROM information_schema.nothing",
    "INSERT INTO engine_orders SELECT 3, current_schema(), 7/2 RETURNING *",
    (
        "UPDATE engine_orders SET customer = (SELECT max(relname) FROM pg_class WHERE relname = 'engine_large') WHERE id = 3"
        " RETURNING customer"
    ),
    "DELETE FROM engine_orders WHERE customer IN (SELECT relname FROM pg_class) AND id = 3 RETURNING id",
    "SELECT relname FROM pg_class WHERE oid = $1::regclass",
]


@contextmanager
def objects_in(connection: Connection) -> Iterator[Connection]:
    for statement in OBJECTS:
        connection.execute(statement.encode())
    yield connection


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    with (
        served(tmp_path_factory.mktemp("engine")) as port,
        psycopg.connect(f"host=127.0.0.1 port={port} user=flow dbname=flow", autocommit=True) as opened,
        objects_in(opened),
    ):
        yield opened


@pytest.fixture(scope="module")
def theirs() -> Iterator[Connection]:
    with server().connect() as opened:
        tables = 'engine_orders, engine_types, engine_mixed, "Engine_Mixed", "engine.dot" CASCADE'
        opened.execute(f"SET TimeZone = 'UTC'; DROP TABLE IF EXISTS {tables}".encode())
        with objects_in(opened):
            yield opened
        opened.execute(f"DROP TABLE {tables}".encode())


def outcome(connection: Connection, text: str) -> object:
    """Names and texts of all rows, or the SQLSTATE."""
    cursor = psycopg.RawCursor(connection)
    arguments = ["engine_orders"] if "$1" in text else []
    try:
        cursor.execute(text.encode(), arguments)
    except psycopg.Error as error:
        return error.sqlstate
    result = cursor.pgresult
    assert result is not None
    return [
        [result.fname(column) for column in range(result.nfields)],
        *([result.get_value(row, column) for column in range(result.nfields)] for row in range(result.ntuples)),
    ]


@pytest.mark.parametrize("text", SAME)
def test_catalog_queries_equal_postgresql(ours: Connection, theirs: Connection, text: str) -> None:
    assert outcome(ours, text) == outcome(theirs, text)


def test_tables_and_catalogs_are_read_in_one_transaction(ours: Connection) -> None:
    with ours.transaction():
        # Other tests, in any order, add a row and delete it.
        orders = len(ours.execute("SELECT id FROM engine_orders").fetchall())
        ours.execute("CREATE TABLE engine_new (a text)")
        text = "SELECT count(*), (SELECT count(*) FROM engine_orders) FROM pg_class WHERE relname = 'engine_new'"
        assert ours.execute(text.encode()).fetchone() == (1, orders)
        ours.execute("DROP TABLE engine_new")
        assert ours.execute(text.encode()).fetchone() == (0, orders)


def test_rows_of_catalogs_are_stored_as_plain_values(ours: Connection) -> None:
    ours.execute("CREATE TABLE engine_copy AS SELECT relname, oid::bigint FROM pg_class WHERE relname = 'engine_large'")
    rows = ours.execute("SELECT relname, oid > 16384 FROM engine_copy").fetchall()
    assert rows == [("engine_large", True)]
    ours.execute("CREATE VIEW engine_names AS SELECT oid, relname FROM pg_class WHERE relname LIKE 'engine%'")
    assert ours.execute("SELECT count(*) FROM engine_names").fetchone() == (8,)
    ours.execute("DROP VIEW engine_names; DROP TABLE engine_copy")


def test_system_catalogs_can_be_copied(ours: Connection) -> None:
    with ours.cursor().copy("COPY pg_am TO STDOUT") as copy:
        assert sorted(copy.rows()) == [("2", "heap", "-", "t"), ("403", "btree", "-", "i")]
    with ours.cursor().copy("COPY pg_type (typname, typinput) TO STDOUT") as copy:
        assert ("int4", "int4in") in [*copy.rows()]


@pytest.mark.parametrize(
    ("text", "sqlstate"),
    [
        ("CREATE MATERIALIZED VIEW v AS SELECT relname FROM pg_class", "0A000"),
        ("CREATE MATERIALIZED VIEW v AS SELECT current_setting('TimeZone')", "0A000"),
        ("CREATE MATERIALIZED VIEW v AS SELECT 1::oid AS a", "0A000"),
        ("CREATE TABLE v (a oid)", "0A000"),
        ("CREATE TABLE v AS SELECT oid FROM pg_class", "0A000"),
        ("SUBSCRIBE (SELECT relname FROM pg_class)", "0A000"),
        ("INSERT INTO pg_class (relname) VALUES ('x')", "42809"),
        ("DELETE FROM pg_catalog.pg_type", "42809"),
        ("UPDATE pg_settings SET setting = ''", "42809"),
        ("DROP TABLE pg_class", "42P01"),
        ("WITH x AS (DELETE FROM pg_type RETURNING 1) SELECT * FROM x", "42809"),
        ("SELECT pg_notify('a', 'b')", "0A000"),
    ],
)
def test_writes_to_catalogs_are_refused(ours: Connection, text: str, sqlstate: str) -> None:
    assert outcome(ours, text) == sqlstate
