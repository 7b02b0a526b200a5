"""Aggregates in Python, called by SQLite: rows are added and, in windows, removed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Protocol

import apsw

from derive.algebra.types import Datum
from derive.functions.aggregates import deviation, list_aggregates, ordered_sets
from derive.functions.aggregates.exact_sum import (
    SCALE,
    add_mantissa,
    packed,
    rounded_quotient,
    units_of_mantissas,
    unpacked,
)
from derive.functions.function import registered_name
from derive.functions.types.double import double_datum, text_of_double
from derive.functions.types.numeric import EXACT, decimal_of, numeric_of, numeric_of_int, quotient

NUMERIC_NAN, NUMERIC_INFINITY, NUMERIC_MINUS_INFINITY = "x'05'", "x'04'", "x'00'"
"""SQL of non-finite data of numeric."""


class Fold(Protocol):
    """The state of an aggregate."""

    def step(self, *data: Any) -> None:
        """Add a row."""

    def inverse(self, *data: Any) -> None:
        """Remove the row that was added first."""

    def value(self) -> Datum:
        """Return the value for the present rows."""


def special_of(nans: int, infinities: int, minus_infinities: int) -> str | None:
    """Return the result of a sum with non-finite values; None without any."""
    if nans or (infinities and minus_infinities):
        return "NaN"
    return "Infinity" if infinities else "-Infinity" if minus_infinities else None


class _DoubleSum:
    """Count and exact sum of doubles."""

    def __init__(self) -> None:
        self.count = 0
        self.mantissas: dict[int, int] = {}
        self.specials = {"NaN": 0, "Infinity": 0, "-Infinity": 0}

    def step(self, datum: Any) -> None:
        self._add(datum, 1)

    def inverse(self, datum: Any) -> None:
        self._add(datum, -1)

    def _add(self, datum: Any, weight: int) -> None:
        if datum is None:
            return
        self.count += weight
        if datum.__class__ is float and datum - datum == 0:
            add_mantissa(self.mantissas, datum, weight)
        else:
            self.specials[text_of_double(float(datum))] += weight

    def units(self) -> bytes:
        return packed(units_of_mantissas(self.mantissas))

    def value(self) -> Datum:
        return exact_sum(self.count, self.units(), *self.specials.values())


class _DoubleAverage(_DoubleSum):
    def value(self) -> Datum:
        return exact_average(self.count, self.units(), *self.specials.values())


def exact_sum(count: int, units: bytes, *specials: int) -> Datum:
    """Return the datum of a sum of doubles, given their count, sum in 2**-1074, and counts of non-finite values."""
    if not count:
        return None
    special = special_of(*specials)
    return double_datum(float(special) if special else rounded_quotient(unpacked(units), 1 << SCALE))


def exact_average(count: int, units: bytes, *specials: int) -> Datum:
    """Return the datum of an average of doubles, given the state of a sum."""
    if not count:
        return None
    special = special_of(*specials)
    return double_datum(float(special) if special else rounded_quotient(unpacked(units), count << SCALE))


class _WeightedUnits:
    """The exact sum of finite doubles with weights; others are ignored."""

    def __init__(self) -> None:
        self._mantissas: dict[int, int] = {}

    def step(self, datum: Any, weight: int) -> None:
        if datum.__class__ is float and datum - datum == 0:
            add_mantissa(self._mantissas, datum, weight)

    def inverse(self, datum: Any, weight: int) -> None:
        self.step(datum, -weight)

    def value(self) -> bytes:
        return packed(units_of_mantissas(self._mantissas))


class _NumericSum:
    """Count and sum of numeric values."""

    def __init__(self) -> None:
        self.count = 0
        self.total = Decimal(0)
        self.specials = {"NaN": 0, "Infinity": 0, "-Infinity": 0}

    def step(self, datum: Any) -> None:
        self._add(datum, 1)

    def inverse(self, datum: Any) -> None:
        self._add(datum, -1)

    def _add(self, datum: Any, weight: int) -> None:
        if datum is None:
            return
        self.count += weight
        number = Decimal(datum) if datum.__class__ is int else decimal_of(datum)
        if number.is_finite():
            self.total = EXACT.add(self.total, number if weight > 0 else number.copy_negate())
        else:
            self.specials[str(number)] += weight

    def value(self) -> Datum:
        return numeric_sum(self.count, numeric_of(self.total), *self.specials.values())


class _NumericAverage(_NumericSum):
    def value(self) -> Datum:
        return numeric_average(self.count, numeric_of(self.total), *self.specials.values())


class _IntegerSum(_NumericSum):
    def value(self) -> Datum:
        return int(self.total) if self.count else None


def numeric_sum(count: int, total: bytes, *specials: int) -> Datum:
    """Return the datum of a sum of numeric, given their count, sum of finite values, and counts of the others."""
    if not count:
        return None
    special = special_of(*specials)
    return numeric_of(Decimal(special)) if special else total


def numeric_average(count: int, total: bytes, *specials: int) -> Datum:
    """Return the datum of an average of numeric, given the state of a sum."""
    if not count:
        return None
    special = special_of(*specials)
    return numeric_of(Decimal(special) if special else quotient(decimal_of(total), Decimal(count)))


class _WeightedNumeric:
    """The sum of finite numbers with weights; others are ignored."""

    def __init__(self) -> None:
        self._total = Decimal(0)

    def step(self, datum: Any, weight: int) -> None:
        if datum is not None:
            number = Decimal(datum) if datum.__class__ is int else decimal_of(datum)
            if number.is_finite():
                self._total = EXACT.add(self._total, EXACT.multiply(number, Decimal(weight)))

    def inverse(self, datum: Any, weight: int) -> None:
        self.step(datum, -weight)

    def value(self) -> bytes:
        return numeric_of(self._total)


def sum_of_halves(high: int | None, low: int | None) -> Datum:
    """Return the numeric datum of a sum of bigint, given the sums of their upper and lower 32 bits."""
    return None if high is None or low is None else numeric_of_int((high << 32) + low)


def average_of_halves(count: int | None, high: int | None, low: int | None) -> Datum:
    """Return the numeric average of integers, from their count and the sums of their upper and lower 32 bits."""
    if not count or high is None or low is None:
        return None
    return numeric_of(quotient(Decimal((high << 32) + low), Decimal(count)))


def _added_units(left: bytes, right: bytes) -> bytes:
    return packed(unpacked(left) + unpacked(right)) if right else left


def _added_numeric(left: bytes, right: bytes) -> bytes:
    return numeric_of(EXACT.add(decimal_of(left), decimal_of(right)))


class _Distinct:
    """An aggregate over distinct combinations of arguments."""

    def __init__(self, fold: Callable[[], Fold]) -> None:
        self._fold = fold()
        self._counts: Counter[tuple[Any, ...]] = Counter()

    def step(self, *data: Any) -> None:
        if not self._counts[data]:
            self._fold.step(*data)
        self._counts[data] += 1

    def inverse(self, *data: Any) -> None:
        self._counts[data] -= 1
        if not self._counts[data]:
            self._fold.inverse(*data)

    def value(self) -> Datum:
        return self._fold.value()


FOLDS: dict[str, Callable[[], Fold]] = {
    "sum_smallint": _IntegerSum,
    "sum_integer": _IntegerSum,
    "sum_bigint": _NumericSum,
    "sum_numeric": _NumericSum,
    "sum_double": _DoubleSum,
    "avg_smallint": _NumericAverage,
    "avg_integer": _NumericAverage,
    "avg_bigint": _NumericAverage,
    "avg_numeric": _NumericAverage,
    "avg_double": _DoubleAverage,
    **deviation.FOLDS,
    **list_aggregates.FOLDS,
    **ordered_sets.FOLDS,
}
"""Aggregates of SQL, which also have distinct forms."""
_STATE_FOLDS: dict[str, Callable[[], Fold]] = {
    "exact": _WeightedUnits,
    "numeric_units": _WeightedNumeric,
    **deviation.STATE_FOLDS,
}
_STATE_FUNCTIONS: dict[str, Callable[..., Datum]] = {
    "exact_sum": exact_sum,
    "exact_average": exact_average,
    "numeric_sum": numeric_sum,
    "numeric_average": numeric_average,
    "sum_of_halves": sum_of_halves,
    "average_of_halves": average_of_halves,
    "added_units": _added_units,
    "added_numeric": _added_numeric,
    **deviation.STATE_FUNCTIONS,
}


def register(connection: apsw.Connection) -> None:
    """Register all folds, and the functions of states."""
    for name, fold in (FOLDS | _STATE_FOLDS).items():
        connection.create_window_function(registered_name(name), _factory(fold))
    for name, fold in FOLDS.items():
        connection.create_window_function(f"{registered_name(name)}_distinct", _factory(_distinct(fold)))
    for name, function in _STATE_FUNCTIONS.items():
        connection.create_scalar_function(registered_name(name), function, -1, deterministic=True)


def _distinct(fold: Callable[[], Fold]) -> Callable[[], Fold]:
    return lambda: _Distinct(fold)


def _factory(fold: Callable[[], Fold]) -> Callable[[], Any]:
    """Return the factory that SQLite calls for every group.

    Methods are plain functions of the state, which is faster.
    """

    def create() -> Any:
        state = fold()
        kind = type(state)
        return (state, kind.step, kind.value, kind.value, kind.inverse)

    return create
