"""Aggregates and window functions: the resolution of calls, and their SQL."""

from __future__ import annotations

from collections.abc import Sequence

import apsw

from derive.algebra.relation import Aggregate
from derive.algebra.types import Type
from derive.functions.aggregates import aggregate_functions
from derive.functions.aggregates.accumulator import Accumulator
from derive.functions.aggregates.library import AGGREGATES, UNCHANGED_BY_DISTINCT
from derive.functions.function import Function, registered_name
from derive.functions.resolve import Resolution, ambiguous_function, choose, unknown_function


def resolve_aggregate(name: str, types: Sequence[Type], offset: int | None = None) -> Resolution:
    """Return the aggregate of a call; `count(*)` has no arguments.

    Raises:
        SqlError: 42883, there is none; 42725, it is ambiguous.
    """
    functions = [function.signature for function in AGGREGATES.values() if function.signature.symbol == name]
    chosen = choose(functions, types)
    if len(chosen) == 1:
        resolution = chosen[0]
        if resolution.function in {"min", "max", "any_value"}:
            if name != "any_value" and resolution.argument_types[0] in _UNORDERED:
                raise unknown_function(name, types, {name: ()}, offset)
            kind = resolution.argument_types[0]
            result = Type.INET if kind is Type.CIDR and name != "any_value" else kind
            return Resolution(resolution.function, resolution.argument_types, result)
        return resolution
    if chosen:
        raise ambiguous_function(name, types, offset)
    raise unknown_function(name, types, {function.signature.symbol: () for function in AGGREGATES.values()}, offset)


def is_aggregate(name: str) -> bool:
    """Return whether an aggregate has this name in SQL."""
    return any(function.signature.symbol == name for function in AGGREGATES.values())


def is_window_function(name: str) -> bool:
    """Return whether a function that needs a window has this name in SQL."""
    return name in _WINDOW_FUNCTIONS


_UNORDERED = {Type.BOOLEAN, Type.JSONB}
"""Types without a minimum and a maximum."""
_B, _N, _D = Type.BIGINT, Type.INTEGER, Type.DOUBLE
_WINDOW_FUNCTIONS: dict[str, tuple[tuple[Type | None, ...], Type | None]] = {
    "row_number": ((), _B),
    "rank": ((), _B),
    "dense_rank": ((), _B),
    "percent_rank": ((), _D),
    "cume_dist": ((), _D),
    "ntile": ((_N,), _N),
    "first_value": ((None,), None),
    "last_value": ((None,), None),
    "nth_value": ((None, _N), None),
}
"""Types of arguments, and of the result; None for any type, and for the type of the first argument."""


def resolve_window(name: str, types: Sequence[Type], offset: int | None = None) -> Resolution:
    """Return the window function, or aggregate, of a call with OVER.

    Raises:
        SqlError: 42883, there is none.
    """
    if name in {"lag", "lead"} and 1 <= len(types) <= 3:
        first = Type.TEXT if types[0] is Type.UNKNOWN else types[0]
        arguments = (first, Type.INTEGER, first)[: len(types)]
        signature = Function(name, name, arguments, first)
        if choose([signature], types):
            return Resolution(name, arguments, first)
    if name in _WINDOW_FUNCTIONS:
        expected, result = _WINDOW_FUNCTIONS[name]
        chosen = choose([Function(name, name, expected, result or Type.UNKNOWN)], types)
        if chosen:
            return Resolution(name, chosen[0].argument_types, result or chosen[0].argument_types[0])
        raise unknown_function(name, types, _WINDOW_FUNCTIONS, offset)
    if is_aggregate(name):
        return resolve_aggregate(name, types, offset)
    raise unknown_function(name, types, dict.fromkeys((*_WINDOW_FUNCTIONS, "lag", "lead")), offset)


def aggregate_sql(
    aggregate: Aggregate,
    arguments: Sequence[str],
    condition: str | None = None,
    order: Sequence[str] = (),
    over: str = "",
) -> str:
    """Return SQL of an aggregate.

    Args:
        aggregate: the aggregate.
        arguments: SQL of its arguments.
        condition: SQL of its condition.
        order: SQL of its sort keys, each with its direction.
        over: `OVER (…)` for a window.
    """
    function = AGGREGATES[aggregate.function]
    suffix = (f" FILTER (WHERE {condition})" if condition else "") + (f" {over}" if over else "")
    if not aggregate.is_distinct and not function.is_ordered:
        return function.form(arguments, suffix)
    name = registered_name(aggregate.function)
    if aggregate.is_distinct and aggregate.function in UNCHANGED_BY_DISTINCT:
        return function.form(arguments, suffix)
    if aggregate.is_distinct and aggregate.function == "count_any":
        return f"count(DISTINCT {arguments[0]}){suffix}"
    ties = (f"{argument} NULLS LAST" for argument in arguments)
    ordered = "" if over else f" ORDER BY {', '.join((*order, *ties))}"
    if function.conversions:
        converted = zip(function.conversions, arguments, aggregate.arguments, strict=True)
        arguments = [convert(form, argument.type) for convert, form, argument in converted]
    return f"{name}{'_distinct' if aggregate.is_distinct else ''}({', '.join(arguments)}{ordered}){suffix}"


def accumulator_of(aggregate: Aggregate) -> Accumulator | None:
    """Return the incremental state of an aggregate; None if it has none, or is distinct."""
    if aggregate.is_distinct and aggregate.function not in UNCHANGED_BY_DISTINCT:
        return None
    return AGGREGATES[aggregate.function].accumulator


def register_aggregates(connection: apsw.Connection) -> None:
    """Register the aggregates in Python, and the functions of states."""
    aggregate_functions.register(connection)
