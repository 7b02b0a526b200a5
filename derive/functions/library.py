"""All scalar functions, by name and by symbol."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from derive.functions.function import Function, Functions
from derive.functions.scalar import (
    arithmetic,
    array,
    bytea,
    casts,
    catalog,
    datetime,
    datetime_field,
    datetime_template,
    fitting,
    json,
    like,
    logic,
    math,
    network,
    number_template,
    regex,
    row_functions,
    session,
    text,
    time_of_day,
)

_MODULES = (
    logic,
    arithmetic,
    casts,
    fitting,
    math,
    text,
    like,
    regex,
    bytea,
    datetime,
    datetime_field,
    datetime_template,
    time_of_day,
    network,
    number_template,
    json,
    row_functions,
    session,
    catalog,
)


def _chosen_by_types() -> tuple[Functions, ...]:
    """Return the functions that PostgreSQL's overload rules choose from."""
    return (*(module.FUNCTIONS for module in _MODULES), array.TEXT_FUNCTIONS)


@cache
def functions_by_name() -> Mapping[str, Function]:
    """Return every function, by its unique name."""
    functions: dict[str, Function] = {}
    for functions_of_kind in (*_chosen_by_types(), array.FUNCTIONS):
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
