"""Queries of clients about the catalogs, as tools send them unasked, and their answers."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TypedDict

import pytest
from catalog_queries import OBJECTS, ask, planned

from derive.algebra.types import Row, Type
from derive.errors import SqlError
from derive.functions.types.type_info import datum_of_text
from derive.sql.backends import Backend
from derive.sql.catalog.system_relations import system_relations
from derive.sql.pg_catalog.objects import CatalogObjects, SessionFacts
from derive.sql.pg_catalog.snapshot import CatalogSnapshot, UserCatalog
from derive.sql.preparation import result_columns


class Recorded(TypedDict):
    """A query, the names of the columns that PostgreSQL gives it, and how many rows there are here."""

    text: str
    columns: list[str]
    rows: int


RECORDED: dict[str, dict[str, Recorded]] = json.loads((Path(__file__).parent / "recorded.json").read_text())
"""By the program that asks, and what for. They were recorded by a PostgreSQL, but for those of programs that are not in
package registries (DBeaver, Metabase, Npgsql, pgAdmin, Prisma, Rails), which are known from their sources. A PostgreSQL
was asked them all; what it has of its own accord (types, functions, rules) is more than what is here."""

ORDERS = 16385


@pytest.mark.sampled(50)
@pytest.mark.parametrize(
    "query",
    [
        pytest.param(query, id=f"{program}: {name}")
        for program, queries in RECORDED.items()
        for name, query in queries.items()
    ],
)
def test_recorded_queries_are_answered(query: Recorded) -> None:
    assert [column.name for column in planned(query["text"]).columns] == query["columns"]
    assert len(ask(query["text"])) == query["rows"]


def test_recorded_queries_have_their_recorded_answers() -> None:
    def answers(program: str, name: str) -> list[Row]:
        return ask(RECORDED[program][name]["text"])

    assert [row[:4] for row in answers("Metabase 0.56", "tables")] == [
        ("public", "totals", "MATERIALIZED VIEW", None),
        ("public", "orders", "TABLE", "what people order"),
        ("public", "large", "VIEW", None),
    ]
    assert [row[:6] for row in answers("Metabase 0.56", "fields")] == [
        ("id", "int8", 0, "public", "large", 0),
        ("document", "jsonb", 1, "public", "large", 0),
        ("id", "int8", 0, "public", "orders", 0),
        ("customer", "text", 1, "public", "orders", 0),
        ("amount", "numeric", 2, "public", "orders", 0),
        ("at", "timestamptz", 3, "public", "orders", 0),
        ("customer", "text", 0, "public", "totals", 0),
        ("total", "numeric", 1, "public", "totals", 0),
    ]
    assert answers("Metabase 0.56", "indexes") == [("public", "orders", "id")]
    assert {row[2:] for row in answers("Metabase 0.56", "privileges")} >= {("orders", 1, 1, 1, 1)}
    assert [row[:3] for row in answers("DBeaver 24", "columns")][:2] == [
        ("orders", ORDERS, "id"),
        ("orders", ORDERS, "customer"),
    ]
    assert answers("DBeaver 24", "index column") == [("id",)]
    assert answers("DBeaver 24", "search path") == [("public",)]


@pytest.mark.parametrize(
    ("text", "row"),
    [
        ("SELECT version()", ("PostgreSQL 16.0 (flowctl)",)),
        ("SELECT current_schema(), current_schema, current_database()", ("public", "public", "flow")),
        ("SELECT current_user, session_user, user", ("flow", "flow", "flow")),
        ("SELECT current_setting('server_version_num')", ("160000",)),
        ("SELECT 'orders'::regclass::oid, 'public.orders'::regclass", (ORDERS, "orders")),
        ("SELECT CAST('acme.\"acmeBank/balances\"' AS regclass)::oid", (16389,)),
        ("SELECT 16389::regclass, (16389)::pg_catalog.regclass::text", ('acme."acmeBank/balances"',) * 2),
        ("SELECT 'int8'::regtype::oid, 20::regtype, 1016::regtype::text", (20, "bigint", "bigint[]")),
        ("SELECT c.oid::regclass FROM pg_class c WHERE oid = 16385", ("orders",)),
        ("SELECT to_regclass('nothing'), to_regtype('nothing')", (None, None)),
        ("SELECT format_type(atttypid, -1) FROM pg_attribute WHERE attname = 'at'", ("timestamp with time zone",)),
        (
            "SELECT pg_get_viewdef('totals'::regclass)",
            ("SELECT customer, sum(amount) AS total FROM orders GROUP BY customer",),
        ),
        ("SELECT obj_description(oid, 'pg_class') FROM pg_class WHERE relname = 'orders'", ("what people order",)),
        (
            "SELECT relname OPERATOR(pg_catalog.~) '^(ORD)' COLLATE pg_catalog.default FROM pg_class WHERE oid = 16385",
            (0,),
        ),
        ("SELECT relname ~* '^ORD', relname !~ 'x', relname !~* 'DER' FROM pg_class WHERE oid = 16385", (1, 1, 0)),
        (
            "SELECT array_agg(nspname ORDER BY oid) FROM pg_namespace",
            (datum_of_text(Type.TEXT_ARRAY, "{pg_catalog,public,information_schema,acme}"),),
        ),
        ("SELECT indkey::text, indkey[0], 1 = ANY(indkey) FROM pg_index", ("1", 1, 1)),
        ("SELECT table_type FROM information_schema.tables WHERE table_name = 'large'", ("VIEW",)),
        ("SELECT view_definition FROM information_schema.views", ("SELECT id FROM orders WHERE amount > 100",)),
        ("SELECT tablename, indexname FROM pg_indexes", ("orders", "orders_by_id")),
        ("SELECT has_table_privilege('orders', 'select'), pg_table_is_visible('orders'::regclass)", (1, 1)),
        ("SELECT '{}'::jsonb, ('\"pg_catalog\".\"' || 'int8' || '\"')::regtype::text", ("{}", "bigint")),
        ("SELECT count(*) FROM unnest(current_schemas(true))", (2,)),
        ("SELECT * FROM current_schema()", ("public",)),
        ("SELECT name, utc_offset = '0 s', is_dst FROM pg_timezone_names", ("UTC", 1, 0)),
        ("SELECT word, catcode FROM pg_get_keywords() WHERE word = 'left'", ("left", "T")),
        (
            "SELECT ('public.' || quote_ident('orders'))::regclass::oid, 'flow.public.orders'::regclass::oid",
            (ORDERS,) * 2,
        ),
        ("SELECT k FROM pg_index, generate_subscripts(indkey, 1) AS k", (0,)),
        ("SELECT x, y, n FROM pg_index, unnest(indkey, indoption) WITH ORDINALITY u(x, y, n)", (1, 0, 1)),
        ("SELECT relkind = ANY('{r,m}') FROM pg_class WHERE oid = 16385", (1,)),
        ("SELECT 'flow' = ANY(ARRAY(SELECT rolname FROM pg_roles))", (1,)),
        ("SELECT relname, n_live_tup FROM pg_stat_user_tables WHERE relid = 16385", ("orders", None)),
        ("SELECT columns.column_name FROM information_schema.columns WHERE ordinal_position = 4", ("at",)),
        ("SELECT 'it''s' || E'\\n' || $$x$$ FROM pg_am LIMIT 1", ("it's\nx",)),
    ],
)
def test_catalog_functions_and_casts_are_evaluated(text: str, row: Row) -> None:
    assert ask(text)[0] == row


@pytest.mark.parametrize(
    ("text", "parameters"),
    [
        (
            "SELECT 1 FROM pg_class WHERE oid = $1 AND relname = $2 AND relkind = ANY($3)",
            (Type.OID, Type.TEXT, Type.TEXT_ARRAY),
        ),
        ("SELECT 1 FROM pg_class WHERE oid = ANY($1::oid[]) AND $2 = 1", (Type.OID_ARRAY, Type.INTEGER)),
        ("SELECT 1 FROM pg_attribute WHERE attnum > $2 AND attname = $1::pg_catalog.text", (Type.TEXT, Type.SMALLINT)),
    ],
)
def test_parameters_have_types_of_columns(text: str, parameters: tuple[Type, ...]) -> None:
    assert planned(text).parameters == parameters


def test_catalog_queries_take_arguments() -> None:
    text = "SELECT relname FROM pg_class WHERE oid = ANY($1) AND relname <> $2 ORDER BY 1"

    assert ask(text, datum_of_text(Type.OID_ARRAY, "{16385,16386,16387}"), "it's") == [
        ("large",),
        ("orders",),
        ("totals",),
    ]
    assert ask(text, datum_of_text(Type.OID_ARRAY, "{}"), None) == []


def test_columns_have_names_and_oids_of_postgresql() -> None:
    text = """SELECT version(), 1, oid::text, relname AS "a (b)", CASE WHEN true THEN 1 END, oid::regclass, c.relkind,
              c.relname, c.oid, reltuples, relkind::text, relname::text FROM pg_class c"""
    columns = result_columns(planned(text).columns, None)

    names = ["version", "?column?", "oid", "a (b)", "case", "oid", "relkind"]
    assert [column.name for column in columns] == [*names, "relname", "oid", "reltuples", "relkind", "relname"]
    assert [column.oid for column in columns] == [25, 23, 25, 19, 23, 25, 18, 19, 26, 700, 25, 25]


@pytest.mark.parametrize(
    ("expression", "name"),
    [
        ("count(*)", "count"),
        ("NULL", "?column?"),
        ("TRUE", "?column?"),
        ("1::numeric", "numeric"),
        ("'orders'::regclass", "regclass"),
        ("current_user", "current_user"),
        ("array(SELECT 1)", "array"),
        ("COALESCE(relname, 'x')", "coalesce"),
        ("relname AS Camel", "camel"),
        ('relname AS "Camel"', "Camel"),
        ("c.RELNAME", "relname"),
        ("indkey[0]", "indkey"),
        ("relname || 'x'", "?column?"),
    ],
)
def test_expression_columns_have_names_of_postgresql(expression: str, name: str) -> None:
    grouped = " GROUP BY 1 = 1" if expression == "count(*)" else ""

    assert planned(f"SELECT {expression} FROM pg_class c LEFT JOIN pg_index ON true{grouped}").columns[0].name == name


def test_pg_settings_shows_the_session() -> None:
    text = "SELECT current_setting('TimeZone'), current_setting('mine', true)"

    assert ask(text, settings={"TimeZone": "Asia/Tokyo", "mine": "x"}) == [("Asia/Tokyo", "x")]
    assert ask(text) == [("UTC", None)]


@pytest.mark.parametrize(
    ("text", "sqlstate"),
    [
        ("SELECT * FROM pg_class JOIN orders ON true", "42P01"),
        ("SELECT nope FROM pg_class", "42703"),
        ("SELECT nope(1) FROM pg_class", "42883"),
        ("SELECT FROM WHERE pg_class", "42601"),
        ("SELECT oid = 'x' FROM pg_class", "22P02"),
        ("SELECT 1 FROM pg_class; DROP TABLE pg_class", "42601"),
        ("SELECT * FROM pg_class, read_text('/etc/hostname')", "42883"),
        ("SELECT * FROM pg_class, pg_get_keywords(1)", "42883"),
        ("SELECT pg_read_file('/etc/passwd') FROM pg_class", "42883"),
        ("SELECT 'nothing'::regclass", "42P01"),
        ("SELECT 'nothing'::regtype", "42704"),
        ("SELECT 'nothing'::regnamespace", "3F000"),
        ("SELECT 'nothing'::regproc", "42883"),
        ("SELECT 'nothing'::regrole", "42704"),
        ("SELECT current_setting('nothing')", "42704"),
        ("SELECT 4294967296::oid", "22003"),
        ("SELECT '5000000000'::oid", "22003"),
        ("SELECT (relname).x FROM pg_class", "0A000"),
    ],
)
def test_invalid_queries_are_refused(text: str, sqlstate: str) -> None:
    with pytest.raises(SqlError) as raised:
        ask(text)

    assert raised.value.sqlstate == sqlstate


def test_catalog_without_relations_is_empty() -> None:
    assert ask("SELECT count(*) FROM pg_class", objects=CatalogObjects()) == [(0,)]
    assert ask("SELECT count(*) FROM pg_class") == [(5,)]


def test_current_user_is_the_user_of_the_session() -> None:
    text = "SELECT current_user, session_user, user, current_role, count(*) FROM pg_roles WHERE rolname = current_user"
    names = ["current_user", "session_user", "user", "current_role", "count"]
    assert [column.name for column in planned(text).columns] == names
    for user in ("ann", "it's", "flow", "ann"):
        assert ask(text, user=user) == [(user, user, user, user, 1)]


def test_users_have_one_oid_in_all_sessions() -> None:
    """The owner has 10, and another user the same oid in each session, in `pg_roles` and `pg_stat_activity`."""
    begun = datetime(2026, 1, 1, tzinfo=UTC)
    users = ("flow", "ann", "bob")
    backends = [
        Backend(number, user, "flow", "", ("::1", 5), begun, "idle", "SELECT 1")
        for number, user in enumerate(users, start=1)
    ]
    text = "SELECT usename, usesysid, backend_start = '2026-01-01' AND client_addr = '::1' FROM pg_stat_activity"
    seen = ask(f"{text} ORDER BY pid", backends=backends)
    assert [(name, is_known) for name, _, is_known in seen] == [(user, 1) for user in users]
    assert seen[0][1] == 10
    assert len({oid for _, oid, _ in seen}) == 3

    for user, oid, _ in seen:
        own = "SELECT rolname, oid, pg_get_userbyid(oid), oid::regrole FROM pg_roles WHERE rolname = current_user"
        assert ask(own, user=str(user)) == [(user, oid, user, user)]


def test_users_share_the_rows_of_a_snapshot() -> None:
    snapshot = CatalogSnapshot(OBJECTS)
    attributes = system_relations()["pg_catalog", "pg_attribute"].id
    roles = system_relations()["pg_catalog", "pg_roles"].id
    ann, ben = (partial(SessionFacts, user=name) for name in ("ann", "ben"))
    assert snapshot.rows(attributes, ann) is snapshot.rows(attributes, ben)
    for user, facts in (("ann", ann), ("ben", ben)):
        assert any(user in row for row in snapshot.rows(roles, facts))
        others = {name: UserCatalog(snapshot, user).oid_of("regrole", name) is None for name in ("flow", "ann", "ben")}
        assert others == {"flow": False, "ann": user != "ann", "ben": user != "ben"}
