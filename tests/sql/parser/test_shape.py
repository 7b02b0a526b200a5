"""Shapes of statements: which constants become parameters, and which texts are left alone."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from derive.sql.parser.shape import shape_of

INTEGER, BIGINT, NUMERIC = 23, 20, 1700


@pytest.mark.parametrize(
    ("text", "shape", "oids", "arguments"),
    [
        ("SELECT a FROM t WHERE b = 2147483647", "SELECT a FROM t WHERE b = $1", (INTEGER,), ["2147483647"]),
        ("SELECT a FROM t WHERE b=-2147483648", "SELECT a FROM t WHERE b=$1", (BIGINT,), ["-2147483648"]),
        ("SELECT a FROM t WHERE b < 1.50;", "SELECT a FROM t WHERE b < $1;", (NUMERIC,), ["1.50"]),
        ("SELECT a FROM t WHERE b <> 9223372036854775808", "SELECT a FROM t WHERE b <> $1", (NUMERIC,), None),
        ("UPDATE t SET a = '', b = 'it''s' WHERE c", "UPDATE t SET a = $1, b = $2 WHERE c", (0, 0), ["", "it's"]),
        (
            """SELECT "b = 1", 'b = 1' FROM t WHERE b = 1""",
            """SELECT "b = 1", 'b = 1' FROM t WHERE b = $1""",
            None,
            None,
        ),
        ("delete from t where (b = 'ä')", "delete from t where (b = $1)", (0,), ["ä"]),
        ("WITH x AS (SELECT 1) SELECT 2 WHERE 1 = 2", "WITH x AS (SELECT 1) SELECT 2 WHERE 1 = $1", None, None),
        ("INSERT INTO t VALUES (1, 'x', NULL, -2)", "INSERT INTO t VALUES ($1, $2, NULL, $3)", None, ["1", "x", "-2"]),
        ("INSERT INTO t (a, b) VALUES (1, 2), (3, 4)", "INSERT INTO t (a, b) VALUES ($1, $2), ($3, $4)", None, None),
        ("INSERT INTO t VALUES (f(1, 'a'), 1 + 2, ARRAY[1, 2], 'b'::text, 7)", None, (INTEGER,), ["7"]),
        ("INSERT INTO t VALUES (1) ON CONFLICT (a) DO UPDATE SET b = 'q'", None, (INTEGER, 0), ["1", "q"]),
    ],
)
def test_constants_are_replaced_where_a_parameter_means_the_same(
    text: str, shape: str | None, oids: tuple[int, ...] | None, arguments: list[str] | None
) -> None:
    found = shape_of(text)
    assert found is not None
    assert shape is None or found.text == shape
    assert oids is None or found.oids == oids
    assert arguments is None or [argument.decode() for argument in found.arguments] == arguments


@pytest.mark.parametrize(
    "text",
    [
        "CREATE TABLE t (a integer DEFAULT 5 CHECK (a = 5))",
        "EXPLAIN SELECT 1 WHERE 1 = 1",
        "SELECT 5, 'a' LIMIT 3",
        "SELECT a FROM t WHERE b = 1 -- a comment",
        "SELECT a FROM t WHERE b = 1 /* a comment */",
        "SELECT a FROM t WHERE b = 1 AND c = E'x'",
        "SELECT a FROM t WHERE b = 1 AND c = $1",
        "SELECT a FROM t WHERE b = 1 AND c = $$x$$",
        "SELECT a FROM t WHERE b = 1 AND c = 'x",
        "SELECT a FROM t WHERE b = 1::bigint",
        "SELECT a FROM t WHERE b = 'x' 'y'",
        "SELECT a FROM t WHERE b = 1 + 2",
        "SELECT a FROM t WHERE b = 5e3",
        "SELECT a FROM t WHERE b = 5.",
        "SELECT f(a => 5) FROM t WHERE b @>= 7",
        "SELECT a FROM t WHERE b = '2020-01-01' AT TIME ZONE 'UTC'",
        "INSERT INTO t SELECT 1, 'x'",
        "INSERT INTO t VALUES (1, E'x')",
        "INSERT INTO t VALUES (DEFAULT)",
    ],
)
def test_other_statements_have_no_shape(text: str) -> None:
    assert shape_of(text) is None


_TEXTS = st.text(st.sampled_from("'\"=<>() ,$-5a;\\/*E"), max_size=8)


@given(st.lists(st.tuples(st.sampled_from(["=", "<", "<>", ">="]), st.one_of(st.integers(0, 99), _TEXTS)), max_size=4))
def test_shape_with_its_arguments_is_the_statement(comparisons: list[tuple[str, int | str]]) -> None:
    """A statement equals its shape with each parameter replaced by its constant, and no quote is misread."""
    constants = [
        str(value) if isinstance(value, int) else "'" + value.replace("'", "''") + "'" for _, value in comparisons
    ]
    sides = [f"a {sign} {constant}" for (sign, _), constant in zip(comparisons, constants, strict=True)]
    text = "SELECT a FROM t WHERE " + " AND ".join(sides or ["true"])
    shape = shape_of(text)
    if shape is None:
        assert not constants
        return
    assert [argument.decode() for argument in shape.arguments] == [str(value) for _, value in comparisons]
    assert re.sub(r"\$(\d+)", lambda match: constants[int(match[1]) - 1], shape.text) == text
