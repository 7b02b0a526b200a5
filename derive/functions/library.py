"""All scalar functions, by name and by symbol."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from derive.algebra.types import Type
from derive.functions.function import Function, Functions
from derive.functions.scalar import (
    array,
    bytea,
    casts,
    catalog,
    datetime,
    json,
    logic,
    math,
    network,
    pattern_matching,
    row_functions,
    templates,
    text,
)

USER_FUNCTIONS = ("current_user", "current_role", "session_user", "user")
"""Functions that return the user who is logged in; the session's value replaces the call before a query runs."""


def _session_functions() -> Functions:
    """Return the functions without arguments that depend on the session."""
    functions = Functions()
    for name in USER_FUNCTIONS:
        functions.add(Function(name, name, (), Type.TEXT, lambda: "flow", can_fail=False, is_volatile=True))
    for name, value in (("current_schema", "public"), ("current_catalog", "flow"), ("current_database", "flow")):
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
    templates,
    network,
    json,
    row_functions,
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
