"""Data of `double precision`: floats, never -0.0, and the text `NaN`."""

from __future__ import annotations

import math
import re
from typing import TypeAlias

from derive.errors import SqlError

DoubleDatum: TypeAlias = float | str
"""A float, or `NaN`."""

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_SPECIAL = {"infinity": math.inf, "inf": math.inf, "nan": math.nan}


def double_datum(number: float) -> DoubleDatum:
    """The datum of a number."""
    return number + 0.0 if number == number else "NaN"  # noqa: PLR0124 - NaN alone differs from itself


def float_of(datum: DoubleDatum) -> float:
    """The number that a datum is."""
    return float(datum)


def text_of_double(number: float) -> str:
    """A number in as few digits as tell it from all others."""
    if not math.isfinite(number):
        return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"
    text = repr(number)
    if "e" in text:
        return text
    if abs(number) >= 1e15:
        digits = text.removesuffix(".0").lstrip("-")
        mantissa = digits.rstrip("0")
        point = "." if len(mantissa) > 1 else ""
        return f"{'-' if number < 0 else ''}{mantissa[0]}{point}{mantissa[1:]}e+{len(digits) - 1:02}"
    return text.removesuffix(".0")


def double_of_text(text: str) -> float:
    """The number that a text is.

    Raises:
        SqlError: 22P02, it is none; 22003, it is too large or too small.
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
