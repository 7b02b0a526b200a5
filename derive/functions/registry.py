"""Functions, operators, casts and aggregates of SQL: resolution, and translation to SQL of SQLite.

Other packages need only this module of `derive.functions`, besides the representations of values (`type_info`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from math import isinf
from typing import TypeAlias

import apsw

from derive.algebra.expression import Call, Case, Column, Expression, Literal, OuterColumn, Subquery, SubqueryKind
from derive.algebra.types import Datum, Row, Type
from derive.errors import SqlError
from derive.functions.aggregates.accumulator import Accumulator
from derive.functions.aggregates.library import (
    accumulator_of,
    aggregate_sql,
    register_aggregates,
    resolve_aggregate,
    resolve_window,
)
from derive.functions.function import Function, Functions, chained, registered_name
from derive.functions.resolve import (
    Resolution,
    ambiguous_function,
    ambiguous_operator,
    choose,
    common_type,
    resolve_array,
    resolve_quantified,
    unknown_function,
    unknown_operator,
)
from derive.functions.scalar import (
    array,
    bytea,
    casts,
    catalog,
    datetime,
    json,
    json_paths,
    json_queries,
    logic,
    math,
    network,
    numeric_program,
    pattern_matching,
    periods,
    row_functions,
    sampling,
    templates,
    text,
    timetz,
    validity,
)
from derive.functions.scalar.array import builder_of, elements_sql, unzip_of
from derive.functions.scalar.casts import resolve_cast
from derive.functions.scalar.logic import sort_key

USER_FUNCTIONS = ("current_user", "current_role", "session_user", "user")
"""Functions that return the user who is logged in; the session's value replaces the call before a query runs."""


READ_TIME = "mz_now"
"""Function that returns the time at which a query reads, which replaces the call before the query runs."""
PRESENT = ("now", "transaction_timestamp", "statement_timestamp")
"""Functions that return the start of a transaction or statement; in a view, they are `READ_TIME`."""


def _session_functions() -> Functions:
    """Return the functions without arguments that depend on the session."""
    functions = Functions()
    for name in USER_FUNCTIONS:
        functions.add(Function(name, name, (), Type.TEXT, lambda: "flow", can_fail=False, is_volatile=True))
    for name, value in (("current_catalog", "flow"), ("current_database", "flow")):
        functions.add(Function(name, name, (), Type.TEXT, lambda value=value: value, can_fail=False))
    return functions


_MODULES = (
    logic,
    math,
    casts,
    text,
    pattern_matching,
    bytea,
    datetime,
    timetz,
    periods,
    templates,
    network,
    json,
    json_paths,
    json_queries,
    row_functions,
    sampling,
    catalog,
)
_SESSION_FUNCTIONS = _session_functions()


def _chosen_by_types() -> tuple[Functions, ...]:
    """Return the functions that PostgreSQL's overload rules choose from."""
    return (*(module.FUNCTIONS for module in _MODULES), _SESSION_FUNCTIONS, array.TEXT_FUNCTIONS)


@cache
def functions_by_name() -> Mapping[str, Function]:
    """Return every function, by its unique name."""
    functions: dict[str, Function] = {}
    for functions_of_kind in (*_chosen_by_types(), array.FUNCTIONS, validity.FUNCTIONS):
        for function in functions_of_kind:
            if function.name in functions:
                raise ValueError(f"two functions are named {function.name}")
            functions[function.name] = function
    return functions


@cache
def functions_by_symbol() -> Mapping[str, tuple[Function, ...]]:
    """Return functions and operators by SQL name, except for array functions (`array_resolution`)."""
    symbols: dict[str, list[Function]] = {}
    for functions in _chosen_by_types():
        for function in functions:
            symbols.setdefault(function.symbol, []).append(function)
    return {symbol: tuple(functions) for symbol, functions in symbols.items()}


def function_named(name: str) -> Function:
    """Return the function of a `Call`."""
    return functions_by_name()[name]


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
    if isinstance(datum, float) and isinf(datum):
        return "9e999" if datum > 0 else "-9e999"
    return repr(int(datum) if isinstance(datum, bool) else datum)


def no_subquery(subquery: Subquery) -> str:
    """Raise an error, because the place of the subquery cannot have a subquery."""
    raise ValueError(f"a subquery is not possible here: {subquery}")


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
    chain = chained(call, form) or numeric_program.program_sql(call, form)
    if chain is not None:
        return chain
    function = function_named(call.function)
    forms = [form(argument) for argument in call.arguments]
    if function.sql is None:
        return function.call(forms)
    return function.sql(forms, [argument.type for argument in call.arguments])


def can_fail(expression: Expression) -> bool:
    """Return whether the evaluation may raise an error. Subqueries count, but the relations in them do not."""
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
    """Return whether two evaluations may have different values; the relations of subqueries do not count."""
    match expression:
        case Call(name, arguments):
            return function_named(name).is_volatile or any(map(is_volatile, arguments))
        case Case(branches, otherwise):
            return is_volatile(otherwise) or any(is_volatile(part) for branch in branches for part in branch)
        case Subquery():
            return any(map(is_volatile, expression.operands))
    return False


__all__ = [
    "Accumulator",
    "Resolution",
    "accumulator_of",
    "aggregate_sql",
    "builder_of",
    "can_fail",
    "common_type",
    "elements_sql",
    "evaluate",
    "is_volatile",
    "register",
    "resolve_aggregate",
    "resolve_cast",
    "resolve_function",
    "resolve_operator",
    "resolve_quantified",
    "resolve_window",
    "sort_key",
    "sql_of",
    "sql_of_datum",
    "unzip_of",
]

_ALIKE = {"coalesce": "COALESCE", "greatest": "GREATEST", "least": "LEAST"}
"""Functions whose arguments all have one type, the type of the result."""
_INTEGERS = {Type.SMALLINT, Type.INTEGER, Type.BIGINT}
"""Types whose data compare directly."""
BESIDE_REAL = _INTEGERS | {Type.DOUBLE, Type.NUMERIC}
"""Types with which operators combine `real` in double precision."""
_ALIASES = {"!=": "<>", "like": "~~", "not like": "!~~", "ilike": "~~*", "not ilike": "!~~*"}


def resolve_function(name: str, types: Sequence[Type], offset: int | None = None) -> Resolution:
    """Resolve the function of a call.

    Args:
        name: name in lower case, as in SQL.
        types: types of the arguments; `UNKNOWN` for literals and parameters whose type is open.
        offset: position of the call in the statement's text, for errors.

    Raises:
        SqlError: 42883, there is none; 42725, several fit; 42804, the arguments have no common type.
    """
    if name in _ALIKE and types:
        kind = common_type(types, _ALIKE[name])
        return Resolution(name, (kind,) * len(types), kind)
    if name == "nullif" and len(types) == 2:
        if set(types) <= _INTEGERS:
            return Resolution(name, tuple(types), types[0])
        equality = resolve_operator("=", types, offset)
        expected = equality.argument_types
        first = types[0] if types[0] is Type.REAL else expected[0]  # its data are those of double precision
        return Resolution(name, (first, expected[1]), first)
    of_arrays = resolve_array(name, types) if any(kind.element for kind in types) else None
    if of_arrays is not None:
        return of_arrays
    by_symbol = functions_by_symbol()
    functions = by_symbol.get(name, ())
    chosen = choose(functions, types)
    if len(chosen) > 1:
        raise ambiguous_function(name, types, offset)
    if not chosen:
        raise unknown_function(name, types, {word: () for word in by_symbol if word[0].isalpha()}, offset)
    return chosen[0]


def resolve_operator(symbol: str, types: Sequence[Type], offset: int | None = None) -> Resolution:
    """Resolve the function of an operation.

    Args:
        symbol: `+`, `<=`, `~~`, `like`, `is distinct from`, `and`, `is null`, ….
        types: types of one or two operands (`and` and `or` take more).
        offset: position of the operation in the statement's text, for errors.

    Raises:
        SqlError: 42883, there is none; 42725, several fit.
    """
    symbol = _ALIASES.get(symbol.lower(), symbol.lower())
    if Type.REAL in types and set(types) & BESIDE_REAL:
        types = (Type.DOUBLE,) * len(types)
    of_arrays = resolve_array(symbol, types) if any(kind.element for kind in types) else None
    if of_arrays is not None:
        return of_arrays
    chosen = choose(functions_by_symbol().get(symbol, ()), types, is_operator=True)
    if len(chosen) > 1:
        raise ambiguous_operator(symbol, types, offset)
    if not chosen:
        raise unknown_operator(symbol, types, offset)
    return chosen[0]


def register(connection: apsw.Connection) -> None:
    """Register on a connection all functions that the SQL of `sql_of` and `aggregate_sql` calls."""
    for function in functions_by_name().values():
        if function.python is not None:
            connection.create_scalar_function(
                registered_name(function.name),
                function.python,
                -1 if function.is_variadic else len(function.arguments),
                deterministic=not function.is_volatile,
            )
    connection.create_scalar_function("flow_fail", _fail, 2)
    connection.create_scalar_function(numeric_program.NAME, numeric_program.execute, -1, deterministic=True)
    register_aggregates(connection)


def _fail(*sqlstate_and_message: Datum) -> Datum:
    sqlstate, message = map(str, sqlstate_and_message)
    raise SqlError(sqlstate, message)


class _Evaluator(threading.local):
    """A connection per thread."""

    def __init__(self) -> None:
        self.connection = apsw.Connection(":memory:")
        register(self.connection)


_EVALUATOR = _Evaluator()


def evaluate(expression: Expression, row: Row = ()) -> Datum:
    """Compute the value of an expression without subqueries.

    Args:
        expression: expression over the columns of the row.
        row: one datum for each column.

    Raises:
        SqlError: the computation failed.
    """
    form = sql_of(expression, lambda column: f":c{column.index}")
    bindings = {f"c{index}": datum for index, datum in enumerate(row)}
    value: Datum = _EVALUATOR.connection.execute(f"SELECT {form}", bindings).get
    return value
