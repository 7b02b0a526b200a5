"""Arithmetic on numbers: integer overflow is an error, doubles follow PostgreSQL, numeric is exact."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from derive.algebra.types import Type
from derive.errors import SqlError
from derive.functions.function import Functions, word_of
from derive.functions.native import double_form, integer_form, sign_form
from derive.functions.types.numeric import EXACT, quotient
from derive.functions.types.text_format import BITS

FUNCTIONS = Functions()

INTEGERS = (Type.SMALLINT, Type.INTEGER, Type.BIGINT)
WORDS_OF_OPERATORS = {"+": "add", "-": "subtract", "*": "multiply", "/": "divide", "%": "modulo"}


def in_range(kind: Type, number: int) -> int:
    """Return the number, if it is in the range of an integer type.

    Raises:
        SqlError: 22003, it is out of range.
    """
    if not -1 << BITS[kind] - 1 <= number < 1 << BITS[kind] - 1:
        raise SqlError("22003", f"{kind.value} out of range")
    return number


def truncated_quotient(left: int, right: int) -> int:
    """Return a quotient of integers, truncated towards zero.

    Raises:
        SqlError: 22012, division by zero.
    """
    if not right:
        raise SqlError("22012", "division by zero")
    units = abs(left) // abs(right)
    return units if (left < 0) == (right < 0) else -units


def remainder(left: int, right: int) -> int:
    """Return the remainder of the truncated quotient; it has the sign of the dividend.

    Raises:
        SqlError: 22012, division by zero.
    """
    return left - truncated_quotient(left, right) * right


_INTEGER_OPERATORS: dict[str, Callable[[int, int], int]] = {
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": lambda left, right: left * right,
    "/": truncated_quotient,
    "%": remainder,
}


def checked_double(number: float, *operands: float) -> float:
    """Return a result that is infinite only if an operand is.

    Raises:
        SqlError: 22003, it is too large.
    """
    if math.isinf(number) and not any(map(math.isinf, operands)):
        raise SqlError("22003", "value out of range: overflow")
    return number


def _product(left: float, right: float) -> float:
    number = checked_double(left * right, left, right)
    if number == 0 and left and right:
        raise SqlError("22003", "value out of range: underflow")
    return number


def _double_quotient(left: float, right: float) -> float:
    if not right and not math.isnan(left):
        raise SqlError("22012", "division by zero")
    number = math.nan if not right else checked_double(left / right, left)
    if number == 0 and left and not math.isinf(right):
        raise SqlError("22003", "value out of range: underflow")
    return number


_DOUBLE_OPERATORS: dict[str, Callable[[float, float], float]] = {
    "+": lambda left, right: checked_double(left + right, left, right),
    "-": lambda left, right: checked_double(left - right, left, right),
    "*": _product,
    "/": _double_quotient,
}


def _numeric_of_special(operate: Callable[[Decimal, Decimal], Decimal]) -> Callable[[Decimal, Decimal], Decimal]:
    """Wrap an operation to return NaN for undefined results, such as infinity minus infinity."""

    def on_any(left: Decimal, right: Decimal) -> Decimal:
        if left.is_finite() and right.is_finite():
            return operate(left, right)
        if left.is_nan() or right.is_nan():
            return Decimal("NaN")
        try:
            return operate(left, right)
        except ArithmeticError:
            return Decimal("NaN")

    return on_any


def numeric_remainder(left: Decimal, right: Decimal) -> Decimal:
    """Return the remainder of the truncated quotient.

    Raises:
        SqlError: 22012, division by zero.
    """
    if left.is_nan() or right.is_nan() or (left.is_infinite() and right):
        return Decimal("NaN")
    if not right:
        raise SqlError("22012", "division by zero")
    return left if right.is_infinite() else EXACT.remainder(left, right)


_NUMERIC_OPERATORS: dict[str, Callable[[Decimal, Decimal], Decimal]] = {
    "+": _numeric_of_special(EXACT.add),
    "-": _numeric_of_special(EXACT.subtract),
    "*": _numeric_of_special(EXACT.multiply),
    "/": quotient,
    "%": numeric_remainder,
}


def _integer_function(kind: Type, operate: Callable[[int, int], int]) -> Callable[[int, int], int]:
    return lambda left, right: in_range(kind, operate(left, right))


def _add_binary() -> None:
    for kind in INTEGERS:
        for symbol, operate in _INTEGER_OPERATORS.items():
            word = WORDS_OF_OPERATORS[symbol]
            form = integer_form(kind, symbol, f"{word}_{word_of(kind)}")
            FUNCTIONS.define(symbol, (kind, kind), kind, word=word, sql=form)(_integer_function(kind, operate))
    for symbol, operate_doubles in _DOUBLE_OPERATORS.items():
        both = (Type.DOUBLE, Type.DOUBLE)
        word = WORDS_OF_OPERATORS[symbol]
        form = double_form(symbol, f"{word}_double")
        FUNCTIONS.define(symbol, both, Type.DOUBLE, word=word, sql=form)(operate_doubles)
    for symbol, operate_decimals in _NUMERIC_OPERATORS.items():
        both = (Type.NUMERIC, Type.NUMERIC)
        FUNCTIONS.define(symbol, both, Type.NUMERIC, word=WORDS_OF_OPERATORS[symbol])(operate_decimals)


def _add_mixed_integers() -> None:
    """Add operators for integers of different sizes, as PostgreSQL has them; the result has the greater size."""
    for index, narrow in enumerate(INTEGERS):
        for wide in INTEGERS[index + 1 :]:
            for kinds in ((narrow, wide), (wide, narrow)):
                for symbol, operate in _INTEGER_OPERATORS.items():
                    if symbol == "%":
                        continue
                    word = WORDS_OF_OPERATORS[symbol]
                    form = integer_form(wide, symbol, "_".join((word, *map(word_of, kinds))))
                    FUNCTIONS.define(symbol, kinds, wide, word=word, sql=form)(_integer_function(wide, operate))


def _add_unary() -> None:
    signs: dict[str, tuple[str, Callable[[Any], Any]]] = {
        "-": ("negate", lambda number: -number),
        "+": ("plus", lambda number: number),
        "abs": ("abs", abs),
        "@": ("absolute", abs),
    }
    for symbol, (word, operate) in signs.items():
        for kind in INTEGERS:
            operator = {"-": "-", "+": "+"}.get(symbol, "abs")
            form = sign_form(kind, operator, f"{word}_{word_of(kind)}")
            FUNCTIONS.define(symbol, (kind,), kind, word=word, sql=form)(_integer_sign(kind, operate))
        FUNCTIONS.define(symbol, (Type.DOUBLE,), Type.DOUBLE, word=word, can_fail=False)(operate)
        decimal_operate = {"negate": Decimal.copy_negate, "plus": operate}.get(word, Decimal.copy_abs)
        FUNCTIONS.define(symbol, (Type.NUMERIC,), Type.NUMERIC, word=word, can_fail=False)(decimal_operate)


def _integer_sign(kind: Type, operate: Callable[[int], int]) -> Callable[[int], int]:
    return lambda number: in_range(kind, operate(number))


_add_binary()
_add_mixed_integers()
_add_unary()
