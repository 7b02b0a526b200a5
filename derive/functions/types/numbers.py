"""Data of `double precision` and `numeric`."""

from __future__ import annotations

import math
import re
from decimal import MAX_EMAX, MIN_EMIN, ROUND_HALF_EVEN, ROUND_HALF_UP, Context, Decimal
from fractions import Fraction
from functools import lru_cache
from typing import TypeAlias

from derive.errors import SqlError

DoubleDatum: TypeAlias = float | str
"""A float, or `NaN`."""

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_LEAST_TIED, _MOST_TIED = 2.0**53, 1e40
"""Range of numbers whose shortest text may be halfway between two doubles."""
_SPECIAL_DOUBLES = {"infinity": math.inf, "inf": math.inf, "nan": math.nan}


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
    """Format a number with an exponent and this number of digits after the first digit."""
    mantissa, _, exponent = f"{number:.{digits}e}".partition("e")
    return f"{mantissa}e{exponent}"


def _is_tied(number: float, text: str) -> bool:
    """Return whether a text is halfway between a number and its neighbour."""
    neighbours = (math.nextafter(number, side) for side in (math.inf, -math.inf))
    return any(2 * Fraction(text) == Fraction(number) + Fraction(neighbour) for neighbour in neighbours)


def double_of_text(text: str) -> float:
    """Parse a double.

    Raises:
        SqlError: 22P02, the text is malformed; 22003, the number is too large or too small.
    """
    word = text.strip().lower()
    special = _SPECIAL_DOUBLES.get(word.lstrip("+-")) if len(word) - len(word.lstrip("+-")) <= 1 else None
    if special is not None:
        return -special if word.startswith("-") else special
    if not _NUMBER.fullmatch(word):
        raise SqlError("22P02", f'invalid input syntax for type double precision: "{text}"')
    number = float(word)
    if math.isinf(number) or (number == 0 and any(digit in "123456789" for digit in word.partition("e")[0])):
        raise SqlError("22003", f'"{word}" is out of range for type double precision')
    return number


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


_PREFIXES = {exponent: _POSITIVE + (exponent + _BIAS).to_bytes(3, "big") for exponent in range(-40, 41)}
"""First bytes of common positive data, by exponent."""
_EXPONENTS = {prefix: exponent for exponent, prefix in _PREFIXES.items()}
_SHORT = 40
"""Maximum length of a common number: of its text, and of a cached datum in bytes."""


def numeric_of_int(number: int) -> bytes:
    """Return the datum of an integer of any size."""
    if not number:
        return _ZERO
    digits = str(abs(number))
    return _encoded(number < 0, len(digits) - 1, digits.rstrip("0"))


def numeric_of_plain(text: str) -> bytes | None:
    """Return the datum of a text of decimal digits, perhaps with a sign and a point; None for other and long texts.

    Most texts are plain, and are converted in a fraction of the time.
    """
    magnitude = text[1:] if text[:1] == "-" else text
    integer, _, fraction = magnitude.partition(".")
    if not (len(text) <= _SHORT and text.isascii() and integer.isdigit() and (fraction or "0").isdigit()):
        return None
    digits = (integer + fraction).lstrip("0")
    if not digits:
        return _ZERO
    prefix = _PREFIXES[len(digits) - len(fraction) - 1]
    if magnitude is text:
        return prefix + digits.rstrip("0").encode()
    return _NEGATIVE + (prefix[1:] + digits.rstrip("0").encode()).translate(_COMPLEMENT) + b"\xff"


def numeric_of(number: Decimal, *, is_limited: bool = True) -> bytes:
    """Return the datum of a number; excess digits after the decimal point are rounded away.

    Args:
        number: the number.
        is_limited: whether the limits of numeric apply, which the state of a sum may exceed.

    Raises:
        SqlError: the result is too large (22003).
    """
    if not number.is_finite():
        return _NAN if number.is_nan() else _INFINITY if number > 0 else _MINUS_INFINITY
    if not number:
        return _ZERO
    exponent = number.adjusted()
    prefix = _PREFIXES.get(exponent)
    if prefix is not None and len(text := str(number)) <= _SHORT:
        digits = (text.partition("E")[0] if "E" in text else text).replace(".", "")
        if digits[0] != "-":
            return prefix + digits.strip("0").encode()
        magnitude = prefix[1:] + digits[1:].strip("0").encode()
        return _NEGATIVE + magnitude.translate(_COMPLEMENT) + b"\xff"
    if exponent > MOST_EXPONENT and is_limited:
        raise SqlError("22003", "value overflows numeric format")
    scale = -int(number.as_tuple().exponent) if exponent < 0 else 0
    if scale > MOST_SCALE and is_limited:
        number = number.quantize(Decimal(1).scaleb(-MOST_SCALE, EXACT), context=EXACT)
        return numeric_of(number)
    digits = str(number.copy_abs()).partition("E")[0].replace(".", "").strip("0")
    return _encoded(number.is_signed(), exponent, digits)


def decimal_of(datum: bytes) -> Decimal:
    """Return the number of a datum; the expressions of a statement read the same data again and again."""
    return _decimal_of_short(datum) if len(datum) <= _SHORT else decoded(datum)


def decoded(datum: bytes) -> Decimal:
    """Return the number of a datum, without a cache."""
    known = _EXPONENTS.get(datum[:4])
    if known is not None:
        digits = datum[4:].decode()
        return Decimal(f"{digits}E{known - len(digits) + 1}")
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


_decimal_of_short = lru_cache(maxsize=8192)(decoded)


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
    """Return a quotient with PostgreSQL's number of digits: at least 16 significant digits.

    Raises:
        SqlError: division by zero (22012).
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


_LEAST_DIGITS = 16
_MOST_SCALE = 1000
_MOST_LOGARITHM = 6000
"""PostgreSQL's limit on the logarithm of an exponential."""
_LN_10 = 2.302585092994046
_MORE = 12
"""Extra digits that are computed and rounded away."""


def _context(digits: int) -> Context:
    return Context(prec=max(digits, 1) + _MORE, Emax=MAX_EMAX, Emin=MIN_EMIN, rounding=ROUND_HALF_EVEN)


def _limited(scale: int, *numbers: Decimal) -> int:
    return min(max(scale, 0, *(scale_of(number) for number in numbers)), _MOST_SCALE)


def _weight(number: Decimal) -> int:
    """Return the exponent of 10,000 of the first group of four digits."""
    return number.adjusted() // 4 if number else 0


def square_root(number: Decimal) -> Decimal:
    """Return a square root.

    Raises:
        SqlError: the number is negative (2201F).
    """
    if number.is_nan():
        return number
    if number < 0:
        raise SqlError("2201F", "cannot take square root of a negative number")
    if number.is_infinite() or not number:
        return number
    scale = _limited(_LEAST_DIGITS - ((_weight(number) + 1) * 4 // 2 - 1), number)
    return square_root_in(number, scale)


def square_root_in(number: Decimal, scale: int) -> Decimal:
    """Return a square root of a finite number, rounded to `scale` digits after the decimal point."""
    twice = math.isqrt(int(EXACT.multiply(number.scaleb(2 * scale, EXACT), Decimal(4))))
    return Decimal((twice + 1) // 2).scaleb(-scale, EXACT)


def exponential(number: Decimal) -> Decimal:
    """Return e to the power of a number.

    Raises:
        SqlError: the result is too large (22003).
    """
    if not number.is_finite():
        return Decimal(0) if number == Decimal("-Infinity") else number
    exponent = float(number) / _LN_10
    scale = _limited(_LEAST_DIGITS - int(max(min(exponent, 6144), -6144)), number)
    if abs(number) >= _MOST_LOGARITHM and number > 0:
        raise SqlError("22003", "value overflows numeric format")
    if number <= -_MOST_LOGARITHM or exponent < -scale - 2:
        return Decimal(0)
    return rounded(_context(int(exponent) + scale + 1).exp(number), scale)


def _logarithm_weight(number: Decimal) -> int:
    """Return the approximate decimal exponent of a number's natural logarithm."""
    if Decimal("0.9") <= number <= Decimal("1.1"):
        difference = EXACT.subtract(number, Decimal(1))
        return difference.adjusted() if difference else 0
    magnitude = abs(_approximate_logarithm(number))
    return int(math.log10(magnitude)) if magnitude else 0


def _approximate_logarithm(number: Decimal) -> float:
    exponent = number.adjusted()
    return math.log(float(number.scaleb(-exponent, EXACT))) + exponent * _LN_10


def _positive(number: Decimal) -> None:
    if number <= 0:
        what = "a negative number" if number else "zero"
        raise SqlError("2201E", f"cannot take logarithm of {what}")


def logarithm(number: Decimal) -> Decimal:
    """Return a natural logarithm.

    Raises:
        SqlError: the number is zero or negative (2201E).
    """
    if number.is_nan():
        return number
    _positive(number)
    if number.is_infinite():
        return number
    weight = _logarithm_weight(number)
    scale = _limited(_LEAST_DIGITS - weight, number)
    return rounded(_context(max(weight, 0) + scale + 2).ln(number), scale)


def logarithm_of_base(base: Decimal, number: Decimal) -> Decimal:
    """Return a logarithm to a base.

    Raises:
        SqlError: 2201E, the number or the base is zero or negative; 22012, the base is 1.
    """
    if base.is_nan() or number.is_nan():
        return Decimal("NaN")
    _positive(base)
    _positive(number)
    if base.is_infinite() or number.is_infinite():
        both = base.is_infinite() and number.is_infinite()
        return Decimal("NaN") if both else number if number.is_infinite() else Decimal(0)
    if base == 1:
        raise SqlError("22012", "division by zero")
    weight = _logarithm_weight(number) - _logarithm_weight(base)
    scale = _limited(_LEAST_DIGITS - weight, base, number)
    context = _context(max(weight, 0) + scale + 40)
    return rounded(context.divide(context.ln(number), context.ln(base)), scale)


def power(base: Decimal, exponent: Decimal) -> Decimal:
    """Return a power.

    Raises:
        SqlError: 2201F, the power is undefined; 22003, the power is too large.
    """
    if not (base.is_finite() and exponent.is_finite()):
        return _special_power(base, exponent)
    if not base and exponent < 0:
        raise SqlError("2201F", "zero raised to a negative power is undefined")
    is_whole = exponent == exponent.to_integral_value()
    if base < 0 and not is_whole:
        raise SqlError("2201F", "a negative number raised to a non-integer power yields a complex result")
    if not exponent:
        return Decimal(1)
    if not base:
        return base
    result_exponent = _approximate_logarithm(base.copy_abs()) / _LN_10 * float(exponent)
    most = 131_072 if is_whole else _MOST_LOGARITHM / _LN_10
    if result_exponent >= most:
        raise SqlError("22003", "value overflows numeric format")
    scale = _limited(_LEAST_DIGITS - int(max(result_exponent, -6144)), base, exponent if not is_whole else Decimal(0))
    if result_exponent < -scale - 2:
        return Decimal(0)
    context = _context(int(result_exponent) + scale + 20)
    magnitude = context.power(base.copy_abs(), exponent)
    is_negative = base < 0 and is_whole and int(exponent) % 2
    return rounded(magnitude.copy_negate() if is_negative else magnitude, scale)


def _special_power(base: Decimal, exponent: Decimal) -> Decimal:
    if base == 1 or (exponent.is_finite() and not exponent):
        return Decimal(1)
    if base.is_nan() or exponent.is_nan():
        return Decimal("NaN")
    if not base and exponent < 0:
        raise SqlError("2201F", "zero raised to a negative power is undefined")
    if exponent.is_infinite():
        size = base.copy_abs()
        if size == 1:
            return Decimal(1)
        grows = (size > 1) == (exponent > 0)
        return Decimal("Infinity") if grows else Decimal(0)
    if base < 0 and exponent != exponent.to_integral_value():
        raise SqlError("2201F", "a negative number raised to a non-integer power yields a complex result")
    if exponent < 0:
        return Decimal(0)
    return base if base > 0 or int(exponent) % 2 else Decimal("Infinity")
