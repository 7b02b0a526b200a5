"""Nested arithmetic of numerics has the results and errors of its steps."""

from __future__ import annotations

from decimal import Decimal

from hypothesis import given, settings
from hypothesis import strategies as st

from derive.algebra.expression import Call, Column, Expression, Literal
from derive.algebra.types import Datum, Row, Type
from derive.errors import SqlError
from derive.functions.registry import evaluate, function_named, sql_of
from derive.functions.types.numbers import decoded, numeric_of

NUMBERS = ["0", "1", "-1", "0.5", "-12.340", "1E+30", "-1E-30", "1E+131000", "7E-16000", "NaN", "Infinity", "-Infinity"]
NUMERICS = [numeric_of(Decimal(text)) for text in NUMBERS] + [numeric_of(Decimal(10**50 + 1)), None]
INTEGERS = [0, 1, -7, 1 << 40, None]


def expressions(leaves: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    """Operations over columns 0 to 2 of numeric, column 3 of bigint, and literals."""
    both = st.sampled_from(["add_numeric", "subtract_numeric", "multiply_numeric"])
    negated = leaves.map(lambda part: Call("negate_numeric", (part,), Type.NUMERIC))
    return negated | st.builds(lambda name, *parts: Call(name, parts, Type.NUMERIC), both, leaves, leaves)


LEAVES: st.SearchStrategy[Expression] = st.one_of(
    st.integers(0, 2).map(lambda index: Column(index, Type.NUMERIC)),
    st.just(Call("bigint_to_numeric", (Column(3, Type.BIGINT),), Type.NUMERIC)),
    st.sampled_from(NUMERICS[:-1]).map(lambda datum: Literal(datum, Type.NUMERIC)),
)
NUMERIC_DATA = st.sampled_from(NUMERICS)


def step_by_step(expression: Expression, row: Row) -> Datum:
    """The value of an expression, by the function of each step."""
    match expression:
        case Call(name, arguments):
            python = function_named(name).python
            assert python is not None
            return python(*[step_by_step(argument, row) for argument in arguments])
        case Column(index):
            return row[index]
        case Literal(value):
            return value
    raise AssertionError(expression)


@settings(max_examples=200, deadline=None)
@given(st.recursive(LEAVES, expressions, max_leaves=8), st.tuples(*[NUMERIC_DATA] * 3, st.sampled_from(INTEGERS)))
def test_nested_numeric_arithmetic_equals_its_steps(expression: Expression, row: Row) -> None:
    try:
        expected = step_by_step(expression, row)
    except SqlError as error:
        expected = error.sqlstate
    try:
        value = evaluate(expression, row)
    except SqlError as error:
        value = error.sqlstate
    assert value == expected


def test_nested_numeric_arithmetic_is_one_call() -> None:
    discount, tax = Column(1, Type.NUMERIC), Column(2, Type.NUMERIC)
    one = Literal(numeric_of(Decimal(1)), Type.NUMERIC)
    net = Call("subtract_numeric", (one, discount), Type.NUMERIC)
    charged = Call("multiply_numeric", (net, Call("add_numeric", (tax, discount), Type.NUMERIC)), Type.NUMERIC)
    text = sql_of(charged, lambda column: f"c{column.index}")
    assert text == "flow_numeric_program('* - #0380000031 0 + 1 0', c1, c2)"
    assert sql_of(net, lambda column: f"c{column.index}") == "flow_subtract_numeric(x'0380000031', c1)"


@settings(max_examples=200, deadline=None)
@given(st.decimals(allow_nan=False, allow_infinity=False))
def test_numeric_data_are_decoded_to_equal_numbers(number: Decimal) -> None:
    if abs(number.adjusted()) < 10_000:
        assert decoded(numeric_of(number)) == number
