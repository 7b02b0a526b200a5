"""Data of `numeric`: bytes that SQLite sorts as numbers sort, canonical for equal numbers.

A datum is a byte for the kind. For finite numbers other than 0, the decimal exponent of the first digit (3 bytes,
biased) and the digits without trailing zeros follow. For negative numbers, the bytes after the kind are complemented,
and end with the highest byte.
"""

from __future__ import annotations

from decimal import MAX_EMAX, MIN_EMIN, ROUND_HALF_UP, Context, Decimal

from derive.errors import SqlError

EXACT = Context(prec=400_000, Emax=MAX_EMAX, Emin=MIN_EMIN, rounding=ROUND_HALF_UP)
"""Context of exact results: sums, differences, products."""

MOST_EXPONENT = 131_071
MOST_SCALE = 16_383

_MINUS_INFINITY, _NEGATIVE, _ZERO, _POSITIVE, _INFINITY, _NAN = (bytes([kind]) for kind in range(6))
_BIAS = 1 << 23
_COMPLEMENT = bytes(255 - byte for byte in range(256))
_SPECIAL = {
    _MINUS_INFINITY: Decimal("-Infinity"),
    _ZERO: Decimal(0),
    _INFINITY: Decimal("Infinity"),
    _NAN: Decimal("NaN"),
}


def _encoded(is_negative: bool, exponent: int, digits: str) -> bytes:
    magnitude = (exponent + _BIAS).to_bytes(3, "big") + digits.encode()
    return _NEGATIVE + magnitude.translate(_COMPLEMENT) + b"\xff" if is_negative else _POSITIVE + magnitude


def numeric_of_int(number: int) -> bytes:
    """Return the datum of an integer of any size."""
    if not number:
        return _ZERO
    digits = str(abs(number))
    return _encoded(number < 0, len(digits) - 1, digits.rstrip("0"))


def numeric_of(number: Decimal) -> bytes:
    """Return the datum of a number, rounded if it has too many digits after the decimal point.

    Raises:
        SqlError: 22003, it is too large.
    """
    if not number.is_finite():
        return _NAN if number.is_nan() else _INFINITY if number > 0 else _MINUS_INFINITY
    if not number:
        return _ZERO
    exponent = number.adjusted()
    if exponent > MOST_EXPONENT:
        raise SqlError("22003", "value overflows numeric format")
    scale = -int(number.as_tuple().exponent) if exponent < 0 else 0
    if scale > MOST_SCALE:
        number = number.quantize(Decimal(1).scaleb(-MOST_SCALE, EXACT), context=EXACT)
        return numeric_of(number)
    digits = str(number.copy_abs()).partition("E")[0].replace(".", "").strip("0")
    return _encoded(number.is_signed(), exponent, digits)


def decimal_of(datum: bytes) -> Decimal:
    """Return the number of a datum."""
    kind = datum[:1]
    if kind == _POSITIVE:
        magnitude, sign = datum[1:], ""
    elif kind == _NEGATIVE:
        magnitude, sign = datum[1:-1].translate(_COMPLEMENT), "-"
    else:
        return _SPECIAL[kind]
    digits = magnitude[3:].decode()
    exponent = int.from_bytes(magnitude[:3], "big") - _BIAS
    return Decimal(f"{sign}{digits}E{exponent - len(digits) + 1}")


def scale_of(number: Decimal) -> int:
    """Return the number of a finite number's digits after the decimal point, without trailing zeros."""
    exponent = int(number.normalize(EXACT).as_tuple().exponent) if number else 0
    return max(0, -exponent)


def rounded(number: Decimal, scale: int) -> Decimal:
    """Return a number rounded half away from zero to `scale` digits after the decimal point, which may be negative."""
    if not number.is_finite():
        return number
    return number.quantize(Decimal(1).scaleb(-scale, EXACT), rounding=ROUND_HALF_UP, context=EXACT)


def text_of_numeric(number: Decimal) -> str:
    """Format a number without an exponent and without trailing zeros."""
    if not number.is_finite():
        return "NaN" if number.is_nan() else "Infinity" if number > 0 else "-Infinity"
    text = format(number, "f")
    if "." in text:
        text = text.rstrip("0").removesuffix(".")
    return "0" if text in {"-0", ""} else text


def _first_group(number: Decimal) -> tuple[int, int]:
    """Return the exponent of 10,000 of the first group of four digits, and the group."""
    if not number:
        return 0, 0
    weight = number.adjusted() // 4
    return weight, int(number.copy_abs().scaleb(-4 * weight, EXACT))


def quotient(dividend: Decimal, divisor: Decimal) -> Decimal:
    """Return a quotient with PostgreSQL's number of digits: at least 16 significant ones.

    Raises:
        SqlError: 22012, division by zero.
    """
    if dividend.is_nan() or divisor.is_nan():
        return Decimal("NaN")
    if not divisor:
        raise SqlError("22012", "division by zero")
    if dividend.is_infinite():
        return Decimal("NaN") if divisor.is_infinite() else -dividend if divisor.is_signed() else dividend
    if divisor.is_infinite():
        return Decimal(0)
    return divided(dividend, divisor, quotient_scale(dividend, divisor))


def quotient_scale(dividend: Decimal, divisor: Decimal) -> int:
    """Return PostgreSQL's number of digits after the decimal point of a quotient of finite numbers."""
    (weight, first), (divisor_weight, divisor_first) = _first_group(dividend), _first_group(divisor)
    digits = 16 - 4 * (weight - divisor_weight - (first <= divisor_first))
    return min(max(digits, scale_of(dividend), scale_of(divisor), 0), 1000)


def divided(dividend: Decimal, divisor: Decimal, scale: int) -> Decimal:
    """Return a quotient of finite numbers, rounded half away from zero to `scale` digits after the decimal point."""
    numerator, denominator = dividend.as_integer_ratio()
    divisor_numerator, divisor_denominator = divisor.as_integer_ratio()
    numerator, denominator = numerator * divisor_denominator * 10**scale, denominator * divisor_numerator
    units, rest = divmod(abs(numerator), abs(denominator))
    units += 2 * rest >= abs(denominator)
    is_negative = (numerator < 0) != (denominator < 0)
    return Decimal(-units if is_negative else units).scaleb(-scale, EXACT)
