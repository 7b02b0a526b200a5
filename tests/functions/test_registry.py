"""What others build on: resolution by PostgreSQL's rules, and the values of expressions."""

from __future__ import annotations

import apsw
import pytest

from derive.algebra.expression import Call, Case, Column, Expression, Literal
from derive.algebra.relation import Aggregate
from derive.algebra.types import Datum, Type
from derive.errors import SqlError
from derive.functions.registry import (
    aggregate_sql,
    can_fail,
    common_type,
    evaluate,
    register,
    resolve_aggregate,
    resolve_cast,
    resolve_function,
    resolve_operator,
    resolve_window,
    sql_of,
)
from derive.functions.types.numbers import numeric_of_int

B, S, I, L, D, N, T, U = (  # noqa: E741
    Type.BOOLEAN,
    Type.SMALLINT,
    Type.INTEGER,
    Type.BIGINT,
    Type.DOUBLE,
    Type.NUMERIC,
    Type.TEXT,
    Type.UNKNOWN,
)


@pytest.mark.parametrize(
    ("symbol", "types", "function", "result"),
    [
        ("+", (I, I), "add_integer", I),
        ("+", (L, I), "add_bigint_integer", L),
        ("+", (I, U), "add_integer", I),
        ("+", (I, D), "add_double", D),
        ("+", (L, N), "add_numeric", N),
        ("=", (T, U), "equal_text", B),
        ("=", (U, U), "equal_text", B),
        ("<", (S, D), "less_double", B),
        ("and", (B, B, B), "and", B),
        ("is null", (U,), "is_null", B),
        ("-", (L,), "negate_bigint", L),
    ],
)
def test_operators_are_resolved(symbol: str, types: tuple[Type, ...], function: str, result: Type) -> None:
    resolution = resolve_operator(symbol, types)

    assert (resolution.function, resolution.result_type) == (function, result)


def test_missing_names_are_refused() -> None:
    with pytest.raises(SqlError, match=r"operator does not exist: integer \+ text") as raised:
        resolve_operator("+", (I, T), 7)
    assert (raised.value.sqlstate, raised.value.offset) == ("42883", 7)

    with pytest.raises(SqlError, match=r"function lowr\(unknown\) does not exist") as raised:
        resolve_function("lowr", (U,))
    assert raised.value.hint is not None
    assert raised.value.hint.startswith("Did you mean lower? No function matches")

    for name, hint in (("strftime", "to_char"), ("greast", "No function matches")):
        with pytest.raises(SqlError, match=f"function {name}") as raised:
            resolve_function(name, (U, I))
        assert raised.value.hint is not None
        assert raised.value.hint.startswith(hint)


@pytest.mark.parametrize(
    ("types", "common"),
    [
        ((I, L), L),
        ((I, U), I),
        ((U, U), T),
        ((L, N), N),
        ((N, D), D),
        ((Type.DATE, Type.TIMESTAMPTZ), Type.TIMESTAMPTZ),
    ],
)
def test_common_type_is_resolved(types: tuple[Type, ...], common: Type) -> None:
    assert common_type(types) is common


def test_missing_common_type_is_refused() -> None:
    with pytest.raises(SqlError, match="UNION types integer and text cannot be matched"):
        common_type((I, T), "UNION")


@pytest.mark.parametrize(
    ("source", "target", "context", "name"),
    [
        (I, L, "implicit", ""),
        (L, I, "implicit", None),
        (L, I, "assignment", "bigint_to_integer"),
        (L, T, "implicit", None),
        (L, T, "assignment", "bigint_to_text"),
        (T, L, "assignment", None),
        (T, L, "explicit", "text_to_bigint"),
        (U, L, "implicit", "text_to_bigint"),
        (B, L, "explicit", None),
    ],
)
def test_casts_are_resolved(source: Type, target: Type, context: str, name: str | None) -> None:
    assert resolve_cast(source, target, context) == name  # type: ignore[arg-type]


def call(symbol: str, *arguments: Expression) -> Expression:
    resolution = resolve_operator(symbol, [argument.type for argument in arguments])
    return Call(resolution.function, arguments, resolution.result_type)


def big(value: Datum) -> Literal:
    return Literal(value, L)


@pytest.mark.parametrize(
    ("symbol", "operands", "value"),
    [
        ("+", (1, 2), 3),
        ("+", (None, 2), None),
        ("/", (-7, 2), -3),
        ("%", (-7, 3), -1),
        ("*", (1 << 40, 1 << 22), 1 << 62),
        ("<", (1, 2), 1),
        ("is distinct from", (1, None), 1),
        ("+", ((1 << 63) - 1, 1), "22003"),
        ("-", (-(1 << 63), 1), "22003"),
        ("*", (-(1 << 63), -1), "22003"),
        ("/", (1, 0), "22012"),
        ("/", (-(1 << 63), -1), "22003"),
        ("%", (-(1 << 63), -1), 0),
    ],
)
def test_integer_expressions_are_evaluated(symbol: str, operands: tuple[Datum, Datum], value: Datum | str) -> None:
    expression = call(symbol, *map(big, operands))
    of_columns = call(symbol, Column(0, L), Column(1, L))

    if isinstance(value, str):
        for failing, row in ((expression, ()), (of_columns, operands)):
            with pytest.raises(SqlError) as raised:
                evaluate(failing, row)
            assert raised.value.sqlstate == value
    else:
        assert evaluate(expression) == evaluate(of_columns, operands) == value


def test_case_evaluates_only_needed_branches() -> None:
    failing = call("/", big(1), big(0))
    expression = Case(((call("=", big(1), big(1)), big(5)),), failing, L)

    assert evaluate(expression) == 5
    assert can_fail(expression)


def test_aggregates_over_rows_are_evaluated() -> None:
    connection = apsw.Connection(":memory:")
    register(connection)
    connection.execute("CREATE TABLE row (g, i, x)")
    most = (1 << 63) - 1
    rows = [(1, most, 0.1), (1, most, 0.2), (1, None, None), (2, -1, 1e308), (2, 5, "NaN"), (3, None, None)]
    connection.executemany("INSERT INTO row VALUES (?, ?, ?)", rows)

    def values(name: str, column: str, kind: Type, over: str = "") -> list[Datum]:
        resolution = resolve_aggregate(name, (kind,))
        aggregate = Aggregate(resolution.function, (Column(0, kind),), resolution.result_type)
        sql = aggregate_sql(aggregate, [column], over=over)
        rest = "" if over else "GROUP BY g ORDER BY g"
        return [row[0] for row in connection.execute(f"SELECT {sql} FROM row {rest}")]

    assert values("count", "i", L) == [2, 2, 0]
    assert values("sum", "x", D) == [0.30000000000000004, "NaN", None]
    assert values("min", "x", D) == [0.1, 1e308, None]
    total = numeric_of_int(2 * most)
    assert values("sum", "i", L) == [total, numeric_of_int(4), None]
    assert values("sum", "i", L, "OVER (PARTITION BY g)")[0] == total


def test_window_functions_have_types() -> None:
    assert resolve_window("lag", (T, I)).result_type is T
    assert resolve_window("row_number", ()).result_type is L
    assert resolve_window("sum", (L,)).result_type is N


def test_sql_is_native_where_it_can_be() -> None:
    expression = call("<", Column(0, L), big(3))

    assert sql_of(expression, lambda column: f"c{column.index}") == "(c0 < 3)"
