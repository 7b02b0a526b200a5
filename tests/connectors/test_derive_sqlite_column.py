"""Columns that the schema of the derived collection does not allow, or hardly means."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sqlite_derivation import derivation

from connectors.derive_sqlite import SqliteConnector
from derive.errors import Issue
from derive.position import Position

PROPERTIES = {
    "properties": {"id": {}, "orders": {"type": "integer"}, "customer": {}, "lat": {}, "sender": {}, "zzzzzz": False}
}
CLOSED = {"type": "object", **PROPERTIES, "additionalProperties": False}
WHAT = "the lambda of transform 'from0' publishes"
REFUSED = "which the schema of 'acme/out' does not allow"
UNKNOWN = "which the schema of 'acme/out' does not mention"


def check(sql: str, schema: Any, *migrations: str) -> list[Issue]:
    spec = derivation(sql, migrations=migrations)
    return SqliteConnector().check([replace(spec, collection=replace(spec.collection, write_schema=schema))])


@pytest.mark.parametrize(
    ("sql", "name", "position", "hint"),
    [
        ("SELECT $id, 1 AS ordes", "ordes", (1, 18, 5), "did you mean 'orders'?"),
        ("SELECT 1 AS orders;\n  SELECT 'ordes' AS id, 1 as \"ordes\";", "ordes", (2, 31, 5), "did you mean 'orders'?"),
        ("SELECT $id, $amount", "amount", (1, 13, 7), "known: customer, id, lat, orders, sender"),
        ("SELECT count(*), 1 AS id", "count(*)", (1, 8, 8), "known: customer, id, lat, orders, sender"),
        ("SELECT n FROM t", "n", (1, 8, 1), "known: customer, id, lat, orders, sender"),
        ("INSERT INTO t VALUES (1) RETURNING n AS lati", "lati", (1, 41, 4), "did you mean 'lat'?"),
        ("SELECT * FROM t", "n", (1, 1, 0), "known: customer, id, lat, orders, sender"),
        ("SELECT 1 AS zzzzzz", "zzzzzz", (1, 13, 6), "known: customer, id, lat, orders, sender"),
    ],
)
def test_closed_schema_refuses_unnamed_properties(
    sql: str, name: str, position: tuple[int, int, int], hint: str
) -> None:
    assert check(sql, CLOSED, "CREATE TABLE t (n)") == [
        Issue("E529", f"{WHAT} '{name}', {REFUSED}", Position("lambda.sql", *position), hint)
    ]


@pytest.mark.parametrize(
    ("sql", "schema"),
    [
        ("SELECT $id, $sender, 1 AS orders; SELECT 2 AS lat", CLOSED),
        ("SELECT json_object('ordes', 1)", CLOSED),  # which is the document itself
        ("INSERT INTO t VALUES (1)", CLOSED),
        ("SELECT 1 AS ordes", {**CLOSED, "patternProperties": {"^or": {}}}),
        ("SELECT 1 AS ordes", {"type": "object", **PROPERTIES, "additionalProperties": {"type": "integer"}}),
        ("SELECT 1 AS whatever, 2 AS lng", {"type": "object", **PROPERTIES}),  # not near enough to say
        ("SELECT 1 AS order1, 1 AS orders", {"type": "object", **PROPERTIES}),  # what it is near to is there
        ("SELECT 1 AS ordes", True),
    ],
)
def test_check_accepts_plausible_columns(sql: str, schema: Any) -> None:
    assert check(sql, schema, "CREATE TABLE t (n)") == []


def test_open_schema_gives_notes_for_unknown_columns() -> None:
    (issue,) = check("SELECT $id, $sender AS custmer,\n  1 AS [ordes2], 1 AS orders", {"type": "object", **PROPERTIES})

    assert issue.is_note
    assert issue == Issue(
        "N529", f"{WHAT} 'custmer', {UNKNOWN}", Position("lambda.sql", 1, 24, 7), "did you mean 'customer'?"
    )


@pytest.mark.parametrize(
    ("sql", "name", "position"),
    [
        ("SELECT $id, 1 AS x, 2 AS x", "x", (1, 26, 1)),
        ("SELECT 1 AS x, 2 AS y,\n  3 AS x", "x", (2, 8, 1)),
        ("SELECT $id, 1 AS id", "id", (1, 18, 2)),
        ("SELECT 1 AS id, $id", "id", (1, 17, 3)),
        ("SELECT $id, $id", "id", (1, 13, 3)),
        ("SELECT a.*, b.* FROM t a, t b", "n", (1, 1, 0)),
        ("SELECT a.n, b.n FROM t a, t b", "n", (1, 15, 1)),
        ("SELECT 1 AS y; SELECT *, 1 AS n FROM t", "n", (1, 31, 1)),
        ("INSERT INTO t VALUES (1) RETURNING n, 2 AS n", "n", (1, 44, 1)),
        ("SELECT json($flow_document), json($flow_document)", "json($flow_document)", (1, 30, 20)),
        ("SELECT 1, 1", "1", (1, 11, 1)),
    ],
)
def test_two_columns_of_one_property_are_an_error(sql: str, name: str, position: tuple[int, int, int]) -> None:
    """No document holds two values of a property, so none is published of a statement that says two."""
    hint = "name each column for a property of its own: SELECT a.x, b.x AS y"
    assert check(sql, True, "CREATE TABLE t (n)") == [
        Issue("E530", f"{WHAT} '{name}' twice", Position("lambda.sql", *position), hint)
    ]


@pytest.mark.parametrize("sql", ["SELECT 1 AS x, 2 AS X", "SELECT 1 AS x; SELECT 2 AS x"])
def test_columns_of_different_properties_are_no_error(sql: str) -> None:
    assert check(sql, True) == []
