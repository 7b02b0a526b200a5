"""Data of `real`: doubles that single precision has, so that `real` and `double precision` compare as data."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from decimal import ROUND_UP, Decimal
from fractions import Fraction

from derive.errors import SqlError
from derive.functions.types.numbers import EXACT, DoubleDatum, double_of_text, float_of, text_in_digits

_SINGLE = struct.Struct(">f")
_LEAST_NORMAL = 2.0**-126
_DIGITS = 6
"""Number of decimal digits that single precision always keeps."""


def _nearest(number: float) -> float:
    try:
        return float(_SINGLE.unpack(_SINGLE.pack(number))[0])
    except OverflowError:
        return math.copysign(math.inf, number)


def single_of_double(number: float) -> float:
    """Round a double to single precision.

    Raises:
        SqlError: the number is too large or too small (22003).
    """
    nearest = _nearest(number)
    if math.isinf(nearest) and not math.isinf(number):
        raise SqlError("22003", "value out of range: overflow")
    if number and not nearest:
        raise SqlError("22003", "value out of range: underflow")
    return nearest


def single_of_exact(number: Decimal | int) -> float:
    """Round a number to single precision in one step; its nearest double may be halfway between two singles.

    Raises:
        SqlError: the number is too large or too small (22003).
    """
    try:
        double = float(number)
    except OverflowError:
        double = math.inf
    nearest = _nearest(double)
    finite = isinstance(number, int) or number.is_finite()
    if finite and (math.isinf(nearest) or (number and not nearest)):
        raise SqlError("22003", f'"{number:f}" is out of range for type real')
    below, above = (_nearest(math.nextafter(double, side)) for side in (-math.inf, math.inf))
    if finite and below != above and 2 * double == below + above and (rest := Fraction(number) - Fraction(double)):
        return above if rest > 0 else below
    return nearest


def single_datum(number: float) -> DoubleDatum:
    """Return the datum of a number of any precision.

    Raises:
        SqlError: the number is too large or too small (22003).
    """
    return single_of_double(number) + 0.0 if number == number else "NaN"  # noqa: PLR0124 - NaN alone differs from itself


def datum_of_text(text: str) -> DoubleDatum:
    """Parse a number.

    Raises:
        SqlError: 22P02, the text is malformed; 22003, the number is too large or too small.
    """
    try:
        number = double_of_text(text)
        return single_datum(single_of_exact(Decimal(text.strip())) if math.isfinite(number) else number)
    except SqlError as error:
        word = text.strip().lower()
        if error.sqlstate == "22P02":
            raise SqlError("22P02", f'invalid input syntax for type real: "{text}"') from None
        raise SqlError("22003", f'"{word}" is out of range for type real') from None


def text_of(datum: DoubleDatum) -> str:
    """Format a datum in the fewest digits that identify it."""
    number = float_of(datum)
    if not math.isfinite(number):
        return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"
    if not number:
        return "0"
    least = 0 if abs(number) < _LEAST_NORMAL else _DIGITS - 1
    texts = (text for digits in range(least, 9) for text in _shortened(number, digits))
    return _plain(next(text for text in texts if _identifies(float(text), number)))


def _shortened(number: float, digits: int) -> Iterator[str]:
    """Return the nearest number with these digits, and the next larger one if the neighbours differ in distance."""
    yield text_in_digits(number, digits)
    if abs(math.frexp(number)[0]) == 0.5:
        exact = Decimal(number)
        unit = Decimal(1).scaleb(exact.adjusted() - digits)
        yield f"{exact.quantize(unit, rounding=ROUND_UP, context=EXACT):.{digits}e}"


def _identifies(number: float, single: float) -> bool:
    """Return whether a number is nearer to a single than to its neighbours."""
    return all(_nearest(math.nextafter(number, side)) == single for side in (math.inf, -math.inf))


def _plain(text: str) -> str:
    """Return a text with an exponent as PostgreSQL writes it: without exponents from -4 to 5, and trailing zeros."""
    mantissa, _, exponent = text.partition("e")
    if -4 <= int(exponent) < _DIGITS:
        text = format(Decimal(text), "f")
        return text.rstrip("0").removesuffix(".") if "." in text else text
    return f"{mantissa.rstrip('0').removesuffix('.')}e{exponent}"


def decimal_of(number: float) -> Decimal:
    """Return the first six digits of a number."""
    return Decimal(f"{number:.{_DIGITS}g}")


def binary_of(datum: DoubleDatum) -> bytes:
    """Return a datum in binary form."""
    return _SINGLE.pack(float_of(datum))


def of_binary(data: bytes) -> DoubleDatum:
    """Read a datum from its binary form."""
    return single_datum(_SINGLE.unpack(data)[0])
