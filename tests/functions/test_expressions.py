"""Nested expressions, as the planner makes them of SQL, have PostgreSQL's values: of columns and of literals."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import given, note, settings
from hypothesis import strategies as st
from postgres_oracle import call_sql, literal, literal_sql, of_ours, of_postgres
from sql_values import usual_texts

from derive.algebra.expression import Call, Case, Column, Expression
from derive.algebra.types import Datum, Type
from derive.errors import SqlError
from derive.functions.registry import can_fail, common_type, resolve_cast, resolve_function, resolve_operator

SAME = "FLOW_LAW_EXAMPLES" not in os.environ
"""Whether all runs have the same examples."""
EXAMPLES = int(os.environ.get("FLOW_LAW_EXAMPLES", "10")) * 10
LEAVES = (Type.BIGINT, Type.INTEGER, Type.SMALLINT, Type.DOUBLE, Type.NUMERIC, Type.TEXT, Type.BOOLEAN, Type.DATE)
ARITHMETIC = ("+", "-", "*", "/", "%")
COMPARISONS = ("=", "<>", "<", "<=", ">", ">=", "is distinct from", "is not distinct from")
FUNCTIONS = (
    ("abs", 1),
    ("upper", 1),
    ("length", 1),
    ("left", 2),
    ("coalesce", 2),
    ("greatest", 2),
    ("nullif", 2),
    ("concat", 2),
)


@dataclass(frozen=True, slots=True)
class Written:
    """An expression of ours, and the same in SQL; `row` is what its columns stand for."""

    expression: Expression
    sql: str


@dataclass
class Row:
    """The data of columns, in the order in which they were made up."""

    data: list[Datum]


def cast(written: Written, kind: Type) -> Written:
    name = resolve_cast(written.expression.type, kind, "implicit")
    assert name is not None
    if not name:
        return Written(replace(written.expression, type=kind), written.sql)
    return Written(Call(name, (written.expression,), kind), written.sql)


def called(symbol: str, operands: list[Written], *, is_operator: bool) -> Written:
    if symbol in {"||", "concat"} and {Type.NUMERIC, Type.DOUBLE} & {operand.expression.type for operand in operands}:
        # Trailing zeros, and the sign of zero, are PostgreSQL's alone.
        raise SqlError("42883", "their texts differ")
    resolve = resolve_operator if is_operator else resolve_function
    resolution = resolve(symbol, [operand.expression.type for operand in operands])
    casted = [cast(operand, kind) for operand, kind in zip(operands, resolution.argument_types, strict=True)]
    arguments = tuple(operand.expression for operand in casted)
    return Written(
        Call(resolution.function, arguments, resolution.result_type),
        call_sql(symbol, [operand.sql for operand in operands]),
    )


@st.composite
def expressions(draw: st.DrawFn, row: Row, depth: int) -> Written:
    if not depth or draw(st.integers(0, 5)) == 0:
        return draw(leaves(row))
    operands = [draw(expressions(row, depth - 1)) for _ in range(2)]
    symbols = (*ARITHMETIC, *ARITHMETIC, *COMPARISONS, "||")
    choices: list[Any] = [*symbols, *FUNCTIONS, "case", "and", "is null"]
    choice = draw(st.sampled_from(choices))
    try:
        if choice == "case":
            return case(draw(conditions(row, depth - 1)), operands)
        if choice == "and":
            both = [draw(conditions(row, depth - 1)) for _ in range(2)]
            return called(draw(st.sampled_from(["and", "or"])), both, is_operator=True)
        if isinstance(choice, tuple):
            return called(choice[0], operands[: choice[1]], is_operator=False)
        return called(choice, operands[:1] if choice == "is null" else operands, is_operator=True)
    except SqlError:
        return operands[0]


@st.composite
def leaves(draw: st.DrawFn, row: Row) -> Written:
    kind = draw(st.sampled_from(LEAVES))
    small = st.integers(-3, 3).map(str)
    numbers = kind in {Type.BIGINT, Type.INTEGER, Type.SMALLINT, Type.NUMERIC, Type.DOUBLE}
    usual = usual_texts(kind)
    text = draw(st.one_of(st.none(), *([small] * 4 if numbers else [usual] * 4), usual))
    constant = literal(text, kind)
    if draw(st.booleans()):
        return Written(constant, literal_sql(text, kind))
    row.data.append(constant.value)
    return Written(Column(len(row.data) - 1, kind), literal_sql(text, kind))


@st.composite
def conditions(draw: st.DrawFn, row: Row, depth: int) -> Written:
    operands = [draw(expressions(row, depth)) for _ in range(2)]
    symbol = draw(st.sampled_from(COMPARISONS))
    try:
        return called(symbol, operands, is_operator=True)
    except SqlError:
        return called("is null", operands[:1], is_operator=True)


def case(condition: Written, results: list[Written]) -> Written:
    # PostgreSQL lets ELSE decide first.
    kind = common_type([results[1].expression.type, results[0].expression.type])
    first, otherwise = (cast(result, kind) for result in results)
    expression = Case(((condition.expression, first.expression),), otherwise.expression, kind)
    return Written(expression, f"(CASE WHEN {condition.sql} THEN {results[0].sql} ELSE {results[1].sql} END)")


@settings(max_examples=EXAMPLES, derandomize=SAME)
@given(st.data())
def test_random_expressions_equal_postgresql(data: st.DataObject) -> None:
    row = Row([])
    written = data.draw(expressions(row, 3))
    ours, theirs = of_ours(written.expression, tuple(row.data)), of_postgres(written.sql)
    note(f"{written.sql}\n{written.expression}\nours: {ours}\nPostgreSQL: {theirs}")
    if ours.sqlstate or theirs.sqlstate:
        # Which operand is worked out first, or at all where another decides, is nobody's promise.
        assert can_fail(written.expression) or not ours.sqlstate
        assert not (ours.sqlstate and not theirs.sqlstate) or " and " in written.sql or " or " in written.sql
    else:
        assert ours == theirs
