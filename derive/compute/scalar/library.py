"""All scalar functions, by name and by symbol."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from derive.compute.scalar import (
    arithmetic,
    binary,
    casts,
    json_functions,
    logic,
    mathematics,
    moment,
    moment_field,
    moment_template,
    number_template,
    pattern,
    text,
)
from derive.compute.scalar.function import Function

_MODULES = (
    logic,
    arithmetic,
    casts,
    mathematics,
    text,
    pattern,
    binary,
    moment,
    moment_field,
    moment_template,
    number_template,
    json_functions,
)


@cache
def functions_by_name() -> Mapping[str, Function]:
    """Every function, by its unique name."""
    functions: dict[str, Function] = {}
    for module in _MODULES:
        for function in module.FUNCTIONS:
            if function.name in functions:
                raise ValueError(f"two functions are named {function.name}")
            functions[function.name] = function
    return functions


@cache
def functions_by_symbol() -> Mapping[str, tuple[Function, ...]]:
    """What SQL calls functions and operators, and which those are."""
    symbols: dict[str, list[Function]] = {}
    for function in functions_by_name().values():
        symbols.setdefault(function.symbol, []).append(function)
    return {symbol: tuple(functions) for symbol, functions in symbols.items()}


def function_named(name: str) -> Function:
    """The function that a `Call` names."""
    return functions_by_name()[name]
