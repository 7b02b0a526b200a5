"""Correlation, covariance and linear regression of pairs of doubles, from exact sums.

The arguments are Y and X. Pairs with a NULL do not count. All sums are exact, so a result depends neither on the order
of pairs nor on pairs that were removed again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias

from derive.algebra.types import Datum
from derive.functions.aggregates.accumulator import (
    SCALE,
    Accumulator,
    WeightedSum,
    added,
    packed,
    rounded_quotient,
    units_of,
    unpacked,
)
from derive.functions.types.numbers import double_datum

_SPECIALS = ("NaN", math.inf, -math.inf)
"""Data of the values that are not finite."""
_SPECIALS_SQL = ("'NaN'", "9e999", "-9e999")


@dataclass(slots=True)
class Sums:
    """Sums over pairs; those of values are in 2**-1074, those of products in 2**-2148.

    Attributes:
        count: number of pairs.
        y: sum of the finite Y.
        x: sum of the finite X.
        yy: sum of the squares of the finite Y.
        xx: sum of the squares of the finite X.
        xy: sum of the products of pairs of finite values.
        y_specials: numbers of Y that are NaN, infinity and minus infinity.
        x_specials: numbers of X that are NaN, infinity and minus infinity.
    """

    count: int = 0
    y: int = 0
    x: int = 0
    yy: int = 0
    xx: int = 0
    xy: int = 0
    y_specials: tuple[int, ...] = (0, 0, 0)
    x_specials: tuple[int, ...] = (0, 0, 0)

    def add(self, y: Any, x: Any, weight: int) -> None:
        """Add a pair with a weight."""
        self.count += weight
        y_units, x_units = _units(y), _units(x)
        if y_units is None:
            self.y_specials = _counted(self.y_specials, y, weight)
        else:
            self.y += weight * y_units
            self.yy += weight * y_units * y_units
        if x_units is None:
            self.x_specials = _counted(self.x_specials, x, weight)
        else:
            self.x += weight * x_units
            self.xx += weight * x_units * x_units
        if y_units is not None and x_units is not None:
            self.xy += weight * y_units * x_units


_Number: TypeAlias = Fraction | float
"""A fraction; a float if it is not finite."""


def _units(datum: Any) -> int | None:
    return units_of(datum) if datum.__class__ is float and datum - datum == 0 else None


def _counted(counts: tuple[int, ...], datum: Any, weight: int) -> tuple[int, ...]:
    return tuple(count + weight * (datum == special) for count, special in zip(counts, _SPECIALS, strict=True))


def _spread(count: int, products: int, left: int, right: int, *specials: tuple[int, ...]) -> _Number:
    """Return the sum of the products of two values' distances from their averages; NaN if a value is not finite."""
    if any(map(any, specials)):
        return math.nan
    return Fraction(count * products - left * right, count << 2 * SCALE)


def _total(units: int, specials: tuple[int, ...]) -> _Number:
    nans, infinities, minus_infinities = specials
    if nans or (infinities and minus_infinities):
        return math.nan
    if infinities or minus_infinities:
        return math.inf if infinities else -math.inf
    return Fraction(units, 1 << SCALE)


def _double(number: _Number) -> float:
    return rounded_quotient(number.numerator, number.denominator) if isinstance(number, Fraction) else number


def _divided(number: _Number, divisor: int) -> float:
    return _double(number / divisor)


def _correlation(sums: Sums) -> float | None:
    xx, yy, xy = _spreads(sums)
    if xx == 0 or yy == 0:
        return None
    if not (isinstance(xx, Fraction) and isinstance(yy, Fraction) and isinstance(xy, Fraction)):
        return math.nan
    return math.copysign(math.sqrt(_double(xy * xy / (xx * yy))), xy)


def _determination(sums: Sums) -> float | None:
    xx, yy, xy = _spreads(sums)
    if xx == 0:
        return None
    if yy == 0:
        return 1.0
    if not (isinstance(xx, Fraction) and isinstance(yy, Fraction) and isinstance(xy, Fraction)):
        return math.nan
    return _double(xy * xy / (xx * yy))


def _slope(sums: Sums) -> float | None:
    xx, _, xy = _spreads(sums)
    if xx == 0:
        return None
    return _double(xy / xx) if isinstance(xx, Fraction) and isinstance(xy, Fraction) else math.nan


def _intercept(sums: Sums) -> float | None:
    xx, _, xy = _spreads(sums)
    if xx == 0:
        return None
    y, x = _total(sums.y, sums.y_specials), _total(sums.x, sums.x_specials)
    if not (isinstance(xx, Fraction) and isinstance(xy, Fraction)):
        return math.nan  # otherwise all values are finite
    return _double((y - x * xy / xx) / sums.count)


def _spreads(sums: Sums) -> tuple[_Number, _Number, _Number]:
    return _spread_of_x(sums), _spread_of_y(sums), _spread_of_both(sums)


def _spread_of_x(sums: Sums) -> _Number:
    return _spread(sums.count, sums.xx, sums.x, sums.x, sums.x_specials)


def _spread_of_y(sums: Sums) -> _Number:
    return _spread(sums.count, sums.yy, sums.y, sums.y, sums.y_specials)


def _spread_of_both(sums: Sums) -> _Number:
    return _spread(sums.count, sums.xy, sums.x, sums.y, sums.x_specials, sums.y_specials)


def _sample_covariance(sums: Sums) -> float | None:
    return None if sums.count == 1 else _divided(_spread_of_both(sums), sums.count - 1)


NAMES: Mapping[str, Callable[[Sums], float | None]] = {
    "corr": _correlation,
    "covar_pop": lambda sums: _divided(_spread_of_both(sums), sums.count),
    "covar_samp": _sample_covariance,
    "regr_avgx": lambda sums: _divided(_total(sums.x, sums.x_specials), sums.count),
    "regr_avgy": lambda sums: _divided(_total(sums.y, sums.y_specials), sums.count),
    "regr_count": lambda sums: sums.count,
    "regr_intercept": _intercept,
    "regr_r2": _determination,
    "regr_slope": _slope,
    "regr_sxx": lambda sums: _double(_spread_of_x(sums)),
    "regr_sxy": lambda sums: _double(_spread_of_both(sums)),
    "regr_syy": lambda sums: _double(_spread_of_y(sums)),
}
"""Results by name, for at least one pair."""


def _result(name: str, sums: Sums) -> Datum:
    if name == "regr_count":
        return sums.count
    number = NAMES[name](sums) if sums.count else None
    return None if number is None else double_datum(number)


class _Pairs:
    """The state of an aggregate of pairs."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._sums = Sums()

    def step(self, y: Any, x: Any) -> None:
        if y is not None and x is not None:
            self._sums.add(y, x, 1)

    def inverse(self, y: Any, x: Any) -> None:
        if y is not None and x is not None:
            self._sums.add(y, x, -1)

    def value(self) -> Datum:
        return _result(self._name, self._sums)


class _Products(WeightedSum):
    """The sum of the products of finite doubles with weights."""

    def __init__(self) -> None:
        self._units = 0

    def step(self, y: Any, x: Any, weight: int) -> None:  # type: ignore[override]
        y_units, x_units = _units(y), _units(x)
        if y_units is not None and x_units is not None:
            self._units += weight * y_units * x_units

    def inverse(self, y: Any, x: Any, weight: int) -> None:  # type: ignore[override]
        self.step(y, x, -weight)

    def value(self) -> bytes:
        return packed(self._units)


def _result_of_state(*state: Any) -> Datum:
    name, count, *sums = state
    y, x, yy, xx, xy = (unpacked(data) for data in sums[:5])
    return _result(name, Sums(count, y, x, yy, xx, xy, tuple(sums[5:8]), tuple(sums[8:])))


def _fold(name: str) -> Callable[[], Any]:
    return lambda: _Pairs(name)


FOLDS: dict[str, Callable[[], Any]] = {f"{name}_double_double": _fold(name) for name in NAMES}
"""Aggregates of SQL."""
STATE_FOLDS: dict[str, Callable[[], Any]] = {"exact_products": _Products}
STATE_FUNCTIONS: dict[str, Callable[..., Datum]] = {"regression": _result_of_state}


def accumulator_of(name: str) -> Accumulator:
    """Return the state of an aggregate of pairs: the columns of `Sums`."""
    return Accumulator(
        ("0", *["x''"] * 5, *["0"] * 6),
        _delta,
        _merged,
        lambda state: f"flow_regression('{name}', {', '.join(state)})",
    )


def _delta(arguments: Sequence[str], weight: str) -> tuple[str, ...]:
    y, x = arguments
    are_known = f"{y} IS NOT NULL AND {x} IS NOT NULL"
    y, x = f"iif({x} IS NULL, NULL, {y})", f"iif({y} IS NULL, NULL, {x})"
    return (
        f"sum(iif({are_known}, {weight}, 0))",
        *(f"flow_exact({one}, {weight})" for one in (y, x)),
        *(f"flow_exact_squares({one}, {weight})" for one in (y, x)),
        f"flow_exact_products({y}, {x}, {weight})",
        *(f"sum(iif({one} = {special}, {weight}, 0))" for one in (y, x) for special in _SPECIALS_SQL),
    )


def _merged(left: Sequence[str], right: Sequence[str]) -> tuple[str, ...]:
    counts = added(left, right)
    sums = (f"flow_added_units({left[index]}, {right[index]})" for index in range(1, 6))
    return (counts[0], *sums, *counts[6:])
