"""Data of `double precision`: floats, never -0.0, and the text `NaN`."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import TypeAlias

from derive.errors import SqlError

DoubleDatum: TypeAlias = float | str
"""A float, or `NaN`."""

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_LEAST_TIED, _MOST_TIED = 2.0**53, 1e40
"""Range of numbers whose shortest text may be halfway between two doubles."""
_SPECIAL = {"infinity": math.inf, "inf": math.inf, "nan": math.nan}


def double_datum(number: float) -> DoubleDatum:
    """Return the datum of a number."""
    return number + 0.0 if number == number else "NaN"  # noqa: PLR0124 - NaN alone differs from itself


def float_of(datum: DoubleDatum) -> float:
    """Return the number of a datum."""
    return float(datum)


def text_of_double(number: float) -> str:
    """Format a number in the fewest digits that identify it."""
    if not math.isfinite(number):
        return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"
    text = repr(number)
    if _LEAST_TIED <= abs(number) < _MOST_TIED and _is_tied(number, text):
        # Python may end halfway to the next number, which readers round back; PostgreSQL writes more digits.
        longer = (text_in_digits(number, digits) for digits in range(17))
        return next(text for text in longer if float(text) == number and not _is_tied(number, text))
    if "e" in text:
        return text
    if abs(number) >= 1e15:
        return text_in_digits(number, len(text.removesuffix(".0").lstrip("-").rstrip("0")) - 1)
    return text.removesuffix(".0")


def text_in_digits(number: float, digits: int) -> str:
    """Format a number with this number of digits after the first, and an exponent."""
    mantissa, _, exponent = f"{number:.{digits}e}".partition("e")
    return f"{mantissa}e{exponent}"


def _is_tied(number: float, text: str) -> bool:
    """Return whether a text is halfway between a number and its neighbour."""
    neighbours = (math.nextafter(number, side) for side in (math.inf, -math.inf))
    return any(2 * Fraction(text) == Fraction(number) + Fraction(neighbour) for neighbour in neighbours)


def double_of_text(text: str) -> float:
    """Parse a number.

    Raises:
        SqlError: 22P02, it is malformed; 22003, it is too large or too small.
    """
    word = text.strip().lower()
    special = _SPECIAL.get(word.lstrip("+-")) if len(word) - len(word.lstrip("+-")) <= 1 else None
    if special is not None:
        return -special if word.startswith("-") else special
    if not _NUMBER.fullmatch(word):
        raise SqlError("22P02", f'invalid input syntax for type double precision: "{text}"')
    number = float(word)
    if math.isinf(number) or (number == 0 and any(digit in "123456789" for digit in word.partition("e")[0])):
        raise SqlError("22003", f'"{word}" is out of range for type double precision')
    return number
