"""Exact sums of doubles, and variances and standard deviations from exact sums: rounded once, at the end.

So a sum depends neither on the order of values nor on values that were subtracted again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any

from derive.algebra.types import Datum
from derive.functions.types.double import double_datum
from derive.functions.types.numeric import EXACT, decimal_of, divided, numeric_of, quotient_scale, square_root_in

SCALE = 1074
"""Every finite double is an integer times 2**-1074, every product of two one times 2**-2148."""

_MANTISSA = 1 << 53


def units_of(number: float) -> int:
    """Return a finite number in units of 2**-1074."""
    fraction, exponent = math.frexp(number)
    mantissa, shift = int(fraction * _MANTISSA), exponent - 53 + SCALE
    return mantissa << shift if shift >= 0 else mantissa >> -shift


def add_mantissa(mantissas: dict[int, int], number: float, weight: int) -> None:
    """Add a finite number with a weight to sums of mantissas by exponent, which are small integers."""
    fraction, exponent = math.frexp(number)
    mantissas[exponent] = mantissas.get(exponent, 0) + int(fraction * _MANTISSA) * weight


def units_of_mantissas(mantissas: Mapping[int, int]) -> int:
    """Return the total of sums of mantissas in units of 2**-1074."""
    units = 0
    for exponent, mantissa in mantissas.items():
        shift = exponent - 53 + SCALE
        units += mantissa << shift if shift >= 0 else mantissa >> -shift
    return units


def packed(units: int) -> bytes:
    """Pack an integer of any size into few bytes: the number of trailing zero bytes (2 bytes), and the rest."""
    if not units:
        return b""
    zeros = ((units & -units).bit_length() - 1) // 8
    rest = units >> 8 * zeros
    return zeros.to_bytes(2, "little") + rest.to_bytes(rest.bit_length() // 8 + 1, "little", signed=True)


def unpacked(data: bytes) -> int:
    """Return a packed integer."""
    return int.from_bytes(data[2:], "little", signed=True) << 8 * int.from_bytes(data[:2], "little") if data else 0


def rounded_double(number: Fraction) -> float:
    """Return the nearest double, which is infinite for large numbers."""
    return rounded_quotient(number.numerator, number.denominator)


def rounded_quotient(numerator: int, denominator: int) -> float:
    """Return the double nearest to a fraction with a positive denominator, which need not be in lowest terms."""
    try:
        return numerator / denominator
    except OverflowError:
        return math.inf if numerator > 0 else -math.inf


NAMES = {
    "variance": (False, True),
    "var_samp": (False, True),
    "var_pop": (False, False),
    "stddev": (True, True),
    "stddev_samp": (True, True),
    "stddev_pop": (True, False),
}
"""Flags of an aggregate: a square root (standard deviation), and a sample, whose divisor is the count minus one."""


def numeric_deviation(is_root: bool, is_sample: bool, count: int, total: Decimal, squares: Decimal) -> Decimal | None:
    """Return a variance of finite numbers, or its square root; None for too few."""
    if count <= is_sample:
        return None
    size = Decimal(count)
    spread = EXACT.subtract(EXACT.multiply(size, squares), EXACT.multiply(total, total))
    if spread <= 0:
        return Decimal(0)
    divisor = EXACT.multiply(size, Decimal(count - is_sample))
    scale = quotient_scale(spread, divisor)
    variance = divided(spread, divisor, scale)
    return square_root_in(variance, scale) if is_root else variance


def double_deviation(is_root: bool, is_sample: bool, count: int, units: int, squares: int) -> float | None:
    """Return a variance of finite doubles, or its square root; None for too few.

    Args:
        is_root: whether to return the square root.
        is_sample: whether it is of a sample.
        count: number of values.
        units: their sum, in 2**-1074.
        squares: the sum of their squares, in 2**-2148.
    """
    if count <= is_sample:
        return None
    variance = Fraction(count * squares - units * units, (count * (count - is_sample)) << 2 * SCALE)
    number = rounded_double(variance)
    return math.sqrt(number) if is_root else number


def _numeric_result(*state: Any) -> Datum:
    is_root, is_sample, count, total, squares, *specials = state
    if any(specials):
        return numeric_of(Decimal("NaN")) if count > is_sample else None
    deviation = numeric_deviation(is_root, is_sample, count, decimal_of(total), decimal_of(squares))
    return None if deviation is None else numeric_of(deviation)


def _double_result(*state: Any) -> Datum:
    is_root, is_sample, count, units, squares, *specials = state
    if any(specials):
        return "NaN" if count > is_sample else None
    deviation = double_deviation(is_root, is_sample, count, unpacked(units), unpacked(squares))
    return None if deviation is None else double_datum(deviation)


class _Numbers:
    """Count, sum and sum of squares of a window of numbers."""

    def __init__(self, is_root: bool, is_sample: bool) -> None:
        self.options = is_root, is_sample
        self.count = self.specials = 0
        self.total = self.squares = Decimal(0)

    def step(self, datum: Any) -> None:
        self._add(datum, Decimal(1))

    def inverse(self, datum: Any) -> None:
        self._add(datum, Decimal(-1))

    def _add(self, datum: Any, weight: Decimal) -> None:
        if datum is None:
            return
        self.count += int(weight)
        number = Decimal(datum) if datum.__class__ is int else decimal_of(datum)
        if number.is_finite():
            self.total = EXACT.add(self.total, EXACT.multiply(number, weight))
            self.squares = EXACT.add(self.squares, EXACT.multiply(EXACT.multiply(number, number), weight))
        else:
            self.specials += int(weight)

    def value(self) -> Datum:
        return _numeric_result(
            *self.options, self.count, numeric_of(self.total), numeric_of(self.squares), self.specials
        )


class _Doubles:
    """Count, sum and sum of squares of a window of doubles."""

    def __init__(self, is_root: bool, is_sample: bool) -> None:
        self.options = is_root, is_sample
        self.count = self.specials = self.units = self.squares = 0

    def step(self, datum: Any) -> None:
        self._add(datum, 1)

    def inverse(self, datum: Any) -> None:
        self._add(datum, -1)

    def _add(self, datum: Any, weight: int) -> None:
        if datum is None:
            return
        self.count += weight
        if datum.__class__ is float and datum - datum == 0:
            units = units_of(datum)
            self.units += weight * units
            self.squares += weight * units * units
        else:
            self.specials += weight

    def value(self) -> Datum:
        return _double_result(*self.options, self.count, packed(self.units), packed(self.squares), self.specials)


class _WeightedSquares:
    """The sum of squares of finite doubles with weights."""

    def __init__(self) -> None:
        self._units = 0

    def step(self, datum: Any, weight: int) -> None:
        if datum.__class__ is float and datum - datum == 0:
            self._units += weight * units_of(datum) ** 2

    def inverse(self, datum: Any, weight: int) -> None:
        self.step(datum, -weight)

    def value(self) -> bytes:
        return packed(self._units)


class _WeightedNumericSquares:
    """The sum of squares of finite numbers with weights."""

    def __init__(self) -> None:
        self._total = Decimal(0)

    def step(self, datum: Any, weight: int) -> None:
        if datum is not None:
            number = Decimal(datum) if datum.__class__ is int else decimal_of(datum)
            if number.is_finite():
                square = EXACT.multiply(number, number)
                self._total = EXACT.add(self._total, EXACT.multiply(square, Decimal(weight)))

    def inverse(self, datum: Any, weight: int) -> None:
        self.step(datum, -weight)

    def value(self) -> bytes:
        return numeric_of(self._total)


def _fold(kind: Callable[[bool, bool], Any], options: tuple[bool, bool]) -> Callable[[], Any]:
    return lambda: kind(*options)


FOLDS: dict[str, Callable[[], Any]] = {
    f"{name}_{word}": _fold(kind, options)
    for name, options in NAMES.items()
    for word, kind in (
        ("double", _Doubles),
        *((word, _Numbers) for word in ("smallint", "integer", "bigint", "numeric")),
    )
}
"""Aggregates of SQL."""
STATE_FOLDS: dict[str, Callable[[], Any]] = {
    "exact_squares": _WeightedSquares,
    "numeric_squares": _WeightedNumericSquares,
}
STATE_FUNCTIONS: dict[str, Callable[..., Datum]] = {
    "exact_deviation": _double_result,
    "numeric_deviation": _numeric_result,
}
