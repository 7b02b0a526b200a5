"""Scalar expressions as SQL of SQLite, and SQL that raises errors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

from derive.algebra.expression import (
    Call,
    Case,
    Column,
    Expression,
    Literal,
    OuterColumn,
    Subquery,
    SubqueryKind,
)
from derive.algebra.types import Datum
from derive.functions.library import function_named
from derive.functions.native import chained

ColumnForm: TypeAlias = Callable[[Column | OuterColumn], str]
"""Function that returns the SQL of a column."""
SubqueryForm: TypeAlias = Callable[[Subquery], str]
"""Function that returns the SQL of a subquery, with its test."""


def sql_of_datum(datum: Datum) -> str:
    """Return the SQL of a literal."""
    if datum is None:
        return "NULL"
    if isinstance(datum, str):
        if "\0" in datum:
            return f"CAST(x'{datum.encode().hex()}' AS TEXT)"
        return "'" + datum.replace("'", "''") + "'"
    if isinstance(datum, bytes):
        return f"x'{datum.hex()}'"
    if isinstance(datum, float) and math.isinf(datum):
        return "9e999" if datum > 0 else "-9e999"
    return repr(int(datum) if isinstance(datum, bool) else datum)


def no_subquery(subquery: Subquery) -> str:
    """Raise an error for a subquery where none is possible."""
    raise ValueError(f"{subquery} where no subquery can be")


def sql_of(expression: Expression, column: ColumnForm, subquery: SubqueryForm = no_subquery) -> str:
    """Return the SQL of an expression, for connections with the registered functions.

    Args:
        expression: expression without parameters.
        column: function that returns the SQL of a column.
        subquery: function that returns the SQL of a subquery.
    """
    match expression:
        case Column() | OuterColumn():
            return column(expression)
        case Literal(value):
            return sql_of_datum(value)
        case Call():
            return _call_sql(expression, lambda part: sql_of(part, column, subquery))
        case Case(branches, otherwise):
            whens = [
                f"WHEN {sql_of(condition, column, subquery)} THEN {sql_of(result, column, subquery)}"
                for condition, result in branches
            ]
            return f"CASE {' '.join(whens)} ELSE {sql_of(otherwise, column, subquery)} END"
        case Subquery():
            return subquery(expression)
    raise ValueError(f"{expression} is a parameter that has not become a literal")


def _call_sql(call: Call, form: Callable[[Expression], str]) -> str:
    chain = chained(call, form)
    if chain is not None:
        return chain
    function = function_named(call.function)
    forms = [form(argument) for argument in call.arguments]
    if function.sql is None:
        return function.call(forms)
    return function.sql(forms, [argument.type for argument in call.arguments])


def can_fail(expression: Expression) -> bool:
    """Return whether the evaluation may raise an error; subqueries count, but not the relations in them."""
    match expression:
        case Call(name, arguments):
            return function_named(name).can_fail or any(map(can_fail, arguments))
        case Case(branches, otherwise):
            parts = [part for branch in branches for part in branch]
            return can_fail(otherwise) or any(map(can_fail, parts))
        case Subquery():
            return expression.kind is SubqueryKind.SCALAR or any(map(can_fail, expression.operands))
    return False


def is_volatile(expression: Expression) -> bool:
    """Return whether the next evaluation may have another value; the relations of subqueries do not count."""
    match expression:
        case Call(name, arguments):
            return function_named(name).is_volatile or any(map(is_volatile, arguments))
        case Case(branches, otherwise):
            return is_volatile(otherwise) or any(is_volatile(part) for branch in branches for part in branch)
        case Subquery():
            return any(map(is_volatile, expression.operands))
    return False


def failing_sql(sqlstate: str, message: str) -> str:
    """Return SQL whose evaluation raises a `SqlError`."""
    return f"flow_fail({sql_of_datum(sqlstate)}, {sql_of_datum(message)})"
