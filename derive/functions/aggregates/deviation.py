"""Exact variances and standard deviations, from the count, the sum and the sum of squares of values."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

from derive.algebra.types import Datum
from derive.functions.aggregates.exact_sum import SCALE, packed, rounded_double, units_of, unpacked
from derive.functions.types.double import double_datum
from derive.functions.types.numeric import EXACT, decimal_of, divided, numeric_of, quotient_scale, square_root_in

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
