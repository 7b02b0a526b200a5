"""INSERT of many rows of constants: the texts that are read without a syntax tree, and their rows."""

from __future__ import annotations

import pytest

from derive.algebra.types import Type
from derive.functions.types.type_info import datum_of_text
from derive.sql.parser.parse import split
from derive.sql.parser.value_rows import is_insert_of_rows, value_rows

INSERTS = [
    ("INSERT INTO t VALUES (1)", "INSERT INTO t VALUES ($1)", [("1",)]),
    (
        " insert into s.\"T x\" ( a , \"b\" )values( -1 , 'it''s (1, 2)' ),\n(NULL,'');\n",
        'insert into s."T x" ( a , "b" )values($1, $2)',
        [("-1", "'it''s (1, 2)'"), ("NULL", "''")],
    ),
    (
        "INSERT INTO t VALUES (1.5, true), (2, FALSE)",
        "INSERT INTO t VALUES ($1, $2)",
        [("1.5", "true"), ("2", "FALSE")],
    ),
    ("INSERT INTO t VALUES (1) RETURNING a", "INSERT INTO t VALUES ($1) RETURNING a", [("1",)]),
    (
        "INSERT INTO t VALUES (1),(2) ON CONFLICT (a) DO UPDATE SET b = excluded.b + 1",
        "INSERT INTO t VALUES ($1) ON CONFLICT (a) DO UPDATE SET b = excluded.b + 1",
        [("1",), ("2",)],
    ),
]


@pytest.mark.parametrize(("text", "shape", "rows"), INSERTS)
def test_rows_of_constants_are_read(text: str, shape: str, rows: list[tuple[str, ...]]) -> None:
    found = value_rows(text)
    assert found is not None
    assert found.text.strip() == shape
    assert list(zip(*found.columns, strict=True)) == rows
    assert is_insert_of_rows(text)


@pytest.mark.parametrize(
    "text",
    [
        "INSERT INTO t VALUES",
        "INSERT INTO t VALUES (1),",
        "INSERT INTO t VALUES (1)(2)",
        "INSERT INTO t VALUES (1) (2)",
        "INSERT INTO t VALUES (1); SELECT 1",
        "INSERT INTO t VALUES (1);;",
        "INSERT INTO t VALUES (DEFAULT)",
        "INSERT INTO t VALUES (1 + 2)",
        "INSERT INTO t VALUES (- 1)",
        "INSERT INTO t VALUES (1e5)",
        "INSERT INTO t VALUES (.5)",
        "INSERT INTO t VALUES (5.)",
        "INSERT INTO t VALUES (0x1F)",
        "INSERT INTO t VALUES (1_000)",
        "INSERT INTO t VALUES (nullx)",
        "INSERT INTO t VALUES (E'a')",
        "INSERT INTO t VALUES (U&'a')",
        "INSERT INTO t VALUES ('a' 'b')",
        "INSERT INTO t VALUES ('a'\n'b')",
        "INSERT INTO t VALUES ('a'::text)",
        "INSERT INTO t VALUES ($1)",
        "INSERT INTO t VALUES (1 -- a comment\n)",
        "INSERT INTO t /* a comment */ VALUES (1)",
        "INSERT INTO t VALUES (1) ON CONFLICT (a) DO UPDATE SET b = 'x'",
        "INSERT INTO t VALUES (1) RETURNING a -- a comment",
        "INSERT INTO t VALUES (1) RETURNING a; SELECT 1",
        "INSERT INTO t AS u VALUES (1)",
        "INSERT INTO t OVERRIDING SYSTEM VALUE VALUES (1)",
        "VALUES (1), (2)",
        "INSERT INTO t SELECT 1",
    ],
)
def test_other_statements_are_parsed(text: str) -> None:
    assert value_rows(text) is None
    assert not is_insert_of_rows(text)


@pytest.mark.parametrize(
    ("kind", "constants", "data"),
    [
        (Type.SMALLINT, ["-32768", "32767"], [-32768, 32767]),
        (Type.SMALLINT, ["32768"], None),
        (Type.BIGINT, ["1", "NULL", "007"], [1, None, 7]),
        (Type.BIGINT, ["1.5"], None),
        (Type.BIGINT, ["'5'"], [5]),
        (Type.BIGINT, ["'5'", "5"], None),
        (Type.DOUBLE, ["-0", "0.1", "9007199254740993"], [0.0, 0.1, 9007199254740992.0]),
        (Type.DOUBLE, ["9" * 400], None),
        (Type.NUMERIC, ["1.50", "-0"], [datum_of_text(Type.NUMERIC, text) for text in ("1.50", "0")]),
        (Type.TEXT, ["'a''b'", "null", "''"], ["a'b", None, ""]),
        (Type.TEXT, ["1"], None),
        (Type.BOOLEAN, ["true", "FALSE", "NULL"], [1, 0, None]),
        (Type.BOOLEAN, ["1"], None),
        (Type.BOOLEAN, ["'on'"], [1]),
        (Type.TEXT, ["true"], None),
        (Type.DATE, ["NULL", "NULL"], [None, None]),
    ],
)
def test_constants_become_data_of_their_column(kind: Type, constants: list[str], data: list[object] | None) -> None:
    found = value_rows(f"INSERT INTO t VALUES {', '.join(f'({constant})' for constant in constants)}")
    assert found is not None
    rows = found.rows([kind])
    assert repr(None if rows is None else [row[0] for row in rows]) == repr(data)  # 0 and 0.0 differ


def test_rows_of_different_widths_are_parsed() -> None:
    assert value_rows("INSERT INTO t VALUES (1), (2, 3)") is None


def test_long_insert_is_one_statement() -> None:
    rows = ", ".join(f"({number}, 'a;b')" for number in range(1000))
    assert split(f" \nINSERT INTO t VALUES {rows} ; ") == ((2, f"INSERT INTO t VALUES {rows}"),)
