"""Arithmetic with SQLite's own operators where their result equals PostgreSQL's; else with functions in Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from derive.algebra.expression import Call, Expression
from derive.algebra.types import Type
from derive.functions.function import SqlForm, registered_name
from derive.functions.types.formats import BITS

LONGEST_REPEATED = 60
"""Maximum length of arguments' SQL that a form may contain several times."""

_LEAST_NORMAL, _MOST = "2.2250738585072014e-308", "1.7976931348623157e308"


def are_short(arguments: Sequence[str]) -> bool:
    """Return whether arguments are so short that a form may repeat their SQL."""
    return all(len(argument) <= LONGEST_REPEATED for argument in arguments)


def integer_form(kind: Type, symbol: str, name: str) -> SqlForm:
    """Return the form with SQLite's integer operator, whose result is a double on overflow, and NULL if undefined."""

    def form(arguments: Sequence[str], _: Sequence[Type]) -> str:
        call = f"{registered_name(name)}({', '.join(arguments)})"
        if not are_short(arguments):
            return call
        result = f"({f' {symbol} '.join(arguments)})"
        if kind is Type.BIGINT:
            return f"iif(typeof{result} = 'integer', {result}, {call})"
        return f"iif({result} {_between(kind)}, {result}, {call})"

    return form


def _between(kind: Type) -> str:
    bound = 1 << BITS[kind] - 1
    return f"BETWEEN {-bound} AND {bound - 1}"


def sign_form(kind: Type, operator: str, name: str) -> SqlForm:
    """Return the form of the negative or the absolute value of an integer; the least integer has none."""

    def form(arguments: Sequence[str], _: Sequence[Type]) -> str:
        argument = arguments[0]
        call = f"{registered_name(name)}({argument})"
        least = f"(-{(1 << BITS[kind] - 1) - 1})"
        return f"iif({argument} >= {least}, {operator}({argument}), {call})" if are_short(arguments) else call

    return form


def narrowing_form(kind: Type, name: str) -> SqlForm:
    """Return the form of a cast to a smaller integer type."""

    def form(arguments: Sequence[str], _: Sequence[Type]) -> str:
        argument = arguments[0]
        call = f"{registered_name(name)}({argument})"
        return f"iif({argument} {_between(kind)}, {argument}, {call})" if are_short(arguments) else call

    return form


def double_form(symbol: str, name: str) -> SqlForm:
    """Return the form with SQLite's double operator, if operands are numbers and the result is in range."""

    def form(arguments: Sequence[str], _: Sequence[Type]) -> str:
        call = f"{registered_name(name)}({', '.join(arguments)})"
        if not are_short(arguments):
            return call
        result = f"({f' {symbol} '.join(arguments)})"
        numbers = [f"typeof({argument}) = 'real'" for argument in dict.fromkeys(arguments) if not _is_number(argument)]
        limits = f"-{_MOST} AND {_MOST}" if symbol in "+-" else f"{_LEAST_NORMAL} AND {_MOST}"
        checked = result if symbol in "+-" else f"abs{result}"
        return f"iif({' AND '.join((*numbers, f'{checked} BETWEEN {limits}'))}, {result}, {call})"

    return form


def _is_number(form: str) -> bool:
    return form.lstrip("-")[:1].isdigit()


_CHAINED = {
    f"{word}_{kinds}": symbol
    for word, symbol in (("add", "+"), ("subtract", "-"), ("multiply", "*"))
    for kinds in ("bigint", "bigint_integer", "integer_bigint", "bigint_smallint", "smallint_bigint")
}
_DEEPEST_CHAIN = 4
"""Maximum depth of nested operations: so few operations on overflowed integers, as doubles, cannot reach infinity."""


def chained(expression: Call, form: Callable[[Expression], str]) -> str | None:
    """Return SQL of nested sums, differences and products of bigint, with one overflow check.

    Args:
        expression: a call.
        form: returns SQL of other expressions.

    Returns:
        None if the expression is another operation, or its operands are too long.
    """
    if not 2 <= _depth(expression) <= _DEEPEST_CHAIN:
        return None
    forms: list[str] = []

    def unchecked(part: Expression) -> str:
        symbol = _operator(part)
        if isinstance(part, Call) and symbol:
            return f"({f' {symbol} '.join(map(unchecked, part.arguments))})"
        forms.append(form(part))
        return forms[-1]

    def called(part: Expression) -> str:
        if isinstance(part, Call) and _operator(part):
            return f"{registered_name(part.function)}({', '.join(map(called, part.arguments))})"
        return form(part)

    result = unchecked(expression)
    return f"iif(typeof{result} = 'integer', {result}, {called(expression)})" if are_short(forms) else None


def _operator(expression: Expression) -> str | None:
    return _CHAINED.get(expression.function) if isinstance(expression, Call) else None


def _depth(expression: Expression) -> int:
    if not isinstance(expression, Call) or not _operator(expression):
        return 0
    return 1 + max(map(_depth, expression.arguments))
