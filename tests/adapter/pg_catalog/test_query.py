"""Questions of clients about the catalog: recorded ones of JDBC, DBeaver, Metabase and Npgsql, and their answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from catalog_session import OBJECTS

from derive.adapter.pg_catalog.objects import CatalogObjects
from derive.adapter.pg_catalog.query import answer, is_catalog_query, prepare
from derive.compute.algebra.types import Datum, Row
from derive.errors import SqlError

RECORDED: dict[str, str] = json.loads((Path(__file__).parent / "recorded.json").read_text())
"""Queries by the client that asks them."""

ORDERS, PUBLIC = 16385, 2200


def ask(text: str, *arguments: Datum) -> list[Row]:
    return answer(prepare(text, OBJECTS), OBJECTS, arguments)


ASKED: list[tuple[str, tuple[Datum, ...], int]] = [
    ("jdbc_tables", (), 2),
    ("jdbc_columns", (), 4),
    ("jdbc_pk", (), 0),
    ("jdbc_index", (), 1),
    ("jdbc_types", (), 44),
    ("jdbc_typeinfo", (20,), 1),
    ("jdbc_typinput", (1016,), 1),
    ("jdbc_schemas", (), 4),
    ("jdbc_fk", (), 0),
    ("jdbc_keywords", (), 1),
    ("dbeaver_db", ("flow",), 1),
    ("dbeaver_set", ("TimeZone",), 1),
    ("dbeaver_typecat", (), 1),
    ("dbeaver_ver", (), 1),
    ("dbeaver_schemas", (), 4),
    ("dbeaver_types", (), 44),
    ("dbeaver_tables", (PUBLIC,), 3),
    ("dbeaver_cols", (ORDERS,), 4),
    ("dbeaver_cons", (ORDERS,), 0),
    ("dbeaver_idx", (ORDERS,), 1),
    ("metabase_tables", (), 4),
    ("metabase_columns", (), 9),
    ("metabase_priv", (), 4),
    ("metabase_enum", (), 0),
    ("npgsql", (), 42),
]


@pytest.mark.parametrize(("name", "arguments", "rows"), ASKED)
def test_recorded_queries_are_answered(name: str, arguments: tuple[Datum, ...], rows: int) -> None:
    assert is_catalog_query(RECORDED[name])
    assert len(ask(RECORDED[name], *arguments)) == rows


def test_all_that_is_recorded_is_asked() -> None:
    assert {name for name, _, _ in ASKED} == RECORDED.keys()


def test_answers_of_recorded_queries() -> None:
    assert [row[1:5] for row in ask(RECORDED["jdbc_tables"])] == [
        ("public", "orders", "TABLE", "what people order"),
        ("public", "large", "VIEW", None),
    ]
    assert [(row[3], row[4], row[5]) for row in ask(RECORDED["jdbc_columns"])][:2] == [
        ("id", 20, 1),
        ("customer", 25, 0),
    ]
    assert ask(RECORDED["jdbc_index"])[0][2:9] == ("orders", 1, None, "orders_by_id", 3, 1, "id")
    assert ask(RECORDED["jdbc_typinput"], 1016) == [(1, "b", "_int8", 1016)]
    columns = {(row[4], row[0]): row[1] for row in ask(RECORDED["metabase_columns"])}
    assert columns["orders", "at"] == "timestamptz"


@pytest.mark.parametrize(
    ("text", "row"),
    [
        ("SELECT version()", ("PostgreSQL 16.0 (flowctl)",)),
        ("SELECT current_schema(), current_schema, current_database()", ("public", "public", "flow")),
        ("SELECT current_user, session_user, user", ("flow", "flow", "flow")),
        ("SELECT current_setting('server_version_num')", ("160000",)),
        ("SELECT 'orders'::regclass::oid, 'public.orders'::regclass", (ORDERS, ORDERS)),
        ("SELECT CAST('acme.\"acmeBank/balances\"' AS regclass)", (16389,)),
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
        ("SELECT array_agg(nspname ORDER BY oid) FROM pg_namespace", ("{pg_catalog,public,information_schema,acme}",)),
        ("SELECT indkey, indkey[0], 1 = ANY(indkey) FROM pg_index", ("1", None, 1)),
        ("SELECT table_type FROM information_schema.tables WHERE table_name = 'large'", ("VIEW",)),
        ("SELECT view_definition FROM information_schema.views", ("SELECT id FROM orders WHERE amount > 100",)),
        ("SELECT tablename, indexname FROM pg_indexes", ("orders", "orders_by_id")),
        ("SELECT has_table_privilege('orders', 'select'), pg_table_is_visible('orders'::regclass)", (1, 1)),
        ("SELECT 'it''s' || E'\\n' || $$x$$ FROM pg_am LIMIT 1", ("it's\nx",)),
    ],
)
def test_functions_and_casts(text: str, row: Row) -> None:
    assert is_catalog_query(text)
    assert ask(text)[0] == row


@pytest.mark.parametrize(
    ("text", "parameters"),
    [
        ("SELECT 1 FROM pg_class WHERE oid = $1 AND relname = $2 AND relkind = ANY($3)", (26, 19, 1002)),
        ("SELECT 1 FROM pg_class WHERE oid = ANY($1::oid[]) AND $2 = 1", (1028, 25)),
        ("SELECT 1 FROM pg_attribute WHERE attnum > $2 AND attname = $1::pg_catalog.text", (25, 21)),
    ],
)
def test_types_of_parameters(text: str, parameters: tuple[int, ...]) -> None:
    assert prepare(text, OBJECTS).parameters == parameters


def test_types_that_the_client_names_come_first() -> None:
    assert prepare("SELECT 1 FROM pg_class WHERE oid = $1 AND relnatts = $2", OBJECTS, (20, 0)).parameters == (20, 21)


def test_arguments() -> None:
    text = "SELECT relname FROM pg_class WHERE oid = ANY($1) AND relname <> $2 ORDER BY 1"

    assert ask(text, "{16385,16386,16387}", "it's") == [("large",), ("orders",), ("totals",)]
    assert ask(text, "{}", None) == []


def test_columns_are_named_as_postgresql_names_them() -> None:
    text = 'SELECT version(), 1, oid::text, relname AS "a (b)", CASE WHEN true THEN 1 END, oid::regclass, c.relkind FROM pg_class c'
    columns = prepare(text, OBJECTS).columns

    assert [column.name for column in columns] == ["version", "?column?", "oid", "a (b)", "case", "regclass", "relkind"]
    assert [column.oid for column in columns] == [25, 23, 25, 25, 23, 25, 18]


def test_settings_are_those_of_the_session() -> None:
    query = prepare("SELECT current_setting('TimeZone'), current_setting('mine', true)", OBJECTS)

    assert answer(query, OBJECTS, settings={"TimeZone": "Asia/Tokyo", "mine": "x"}) == [("Asia/Tokyo", "x")]
    assert answer(query, OBJECTS) == [("UTC", None)]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "SELECT 1",
        "SELECT * FROM orders",
        "SELECT 'pg_class'",
        "SELECT user FROM orders",
        "SELECT version FROM orders",
        "INSERT INTO t SELECT relname FROM pg_class",
        "SELECT 1 -- pg_class",
        "SHOW server_version",
        "SELECT now(), lower('pg_catalog')",
    ],
)
def test_other_statements_are_not_about_the_catalog(text: str) -> None:
    assert not is_catalog_query(text)


@pytest.mark.parametrize(
    ("text", "sqlstate"),
    [
        ("SELECT * FROM pg_class JOIN orders ON true", "42P01"),
        ("SELECT nope FROM pg_class", "42703"),
        ("SELECT nope(1) FROM pg_class", "42883"),
        ("SELECT FROM WHERE pg_class", "42601"),
        ("SELECT oid = 'x' FROM pg_class", "22P02"),
        ("SELECT 1 FROM pg_class; DROP TABLE pg_class", "0A000"),
        ("SELECT * FROM pg_class, read_text('/etc/hostname')", "0A000"),
    ],
)
def test_what_cannot_be_answered(text: str, sqlstate: str) -> None:
    with pytest.raises(SqlError) as raised:
        ask(text)

    assert raised.value.sqlstate == sqlstate
    assert ask("SELECT count(*) FROM pg_class") == [(5,)]


def test_a_catalog_of_nothing() -> None:
    nothing = CatalogObjects()

    assert answer(prepare("SELECT count(*) FROM pg_class", nothing), nothing) == [(0,)]
