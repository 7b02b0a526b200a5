"""Aggregates in Python, called by SQLite: rows are added and, in windows, removed."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable
from decimal import Decimal
from functools import reduce
from operator import and_, or_, xor
from typing import Any, Protocol

import apsw

from derive.algebra.types import ARRAYS, Datum, Type
from derive.errors import SqlError
from derive.functions.aggregates import accumulator, regression
from derive.functions.aggregates.accumulator import (
    SCALE,
    RowSum,
    WeightedNumeric,
    WeightedSum,
    add_mantissa,
    packed,
    rounded_quotient,
    units_of_mantissas,
    unpacked,
)
from derive.functions.function import registered_name, word_of
from derive.functions.scalar.datetime import scaled
from derive.functions.scalar.dimensions import aggregated
from derive.functions.types.array import array_of, elements_of, sizes_of
from derive.functions.types.datetime import Interval, interval_datum, interval_of
from derive.functions.types.jsonb import jsonb_datum, parsed_json
from derive.functions.types.numbers import (
    EXACT,
    decimal_of,
    double_datum,
    float_of,
    numeric_of,
    numeric_of_int,
    quotient,
    text_of_double,
)
from derive.functions.types.single import single_datum

ORDERED_SETS = {"percentile_cont": 1, "percentile_disc": 1, "mode": 0}
"""Number of direct arguments in parentheses, by name; the aggregated argument is in WITHIN GROUP."""


class _Percentile:
    """Ordered values, and the requested fraction, which is the same for all rows."""

    def __init__(self) -> None:
        self._values: list[Any] = []
        self._fraction: Datum = None

    def step(self, *data: Any) -> None:
        value, self._fraction = data
        if value is not None:
            self._values.append(value)

    def inverse(self, *_: Any) -> None:
        raise SqlError("0A000", "percentiles are not supported in windows")

    def value(self) -> Datum:
        return self.of_fraction(self._fraction)

    def of_fraction(self, datum: Any) -> Datum:
        """Return the value at the datum of a fraction; None if the fraction is NULL, or without values."""
        if datum is None:
            return None
        fraction = float_of(datum)
        if not 0 <= fraction <= 1:
            raise SqlError("22003", f"percentile value {fraction:g} is not between 0 and 1")
        return self.at(fraction, self._values) if self._values else None

    def of_fractions(self, element: Type) -> Datum:
        """Return the array of the values at an array of fractions."""
        if not self._values or not isinstance(self._fraction, bytes):
            return None
        values = [self.of_fraction(datum) for datum in elements_of(Type.DOUBLE, self._fraction)]
        return array_of(element, values, sizes_of(Type.DOUBLE, self._fraction))

    @staticmethod
    def at(fraction: float, values: list[Any]) -> Datum:
        """Return the first value whose cumulative fraction is at least the requested fraction."""
        datum: Datum = values[max(math.ceil(fraction * len(values)), 1) - 1]
        return datum


class _Between(_Percentile):
    @staticmethod
    def at(fraction: float, values: list[Any]) -> Datum:
        """Return the linear interpolation between values."""
        place = fraction * (len(values) - 1)
        low, high = (float_of(values[round_(place)]) for round_ in (math.floor, math.ceil))
        return double_datum(low if low == high else low + (place - math.floor(place)) * (high - low))


class _Percentiles(_Percentile):
    """The values at an array of fractions."""

    def __init__(self, element: Type) -> None:
        super().__init__()
        self._element = element

    def value(self) -> Datum:
        return self.of_fractions(self._element)


class _BetweenMany(_Between):
    """The interpolations at an array of fractions."""

    def value(self) -> Datum:
        return self.of_fractions(Type.DOUBLE)


class _BetweenIntervals(_Percentile):
    @staticmethod
    def at(fraction: float, values: list[Any]) -> Datum:
        """Return the linear interpolation between intervals, field by field."""
        place = fraction * (len(values) - 1)
        low, high = values[math.floor(place)], values[math.ceil(place)]
        if math.floor(place) == math.ceil(place):
            datum: Datum = low
            return datum
        begin, end = interval_of(low), interval_of(high)
        difference = Interval(end.months - begin.months, end.days - begin.days, end.microseconds - begin.microseconds)
        part = scaled(difference, lambda field: field * (place - math.floor(place)))
        return interval_datum(
            Interval(part.months + begin.months, part.days + begin.days, part.microseconds + begin.microseconds)
        )


class _BetweenManyIntervals(_BetweenIntervals):
    """The interpolations of intervals at an array of fractions."""

    def value(self) -> Datum:
        return self.of_fractions(Type.INTERVAL)


class _Mode:
    """The most frequent value; of equally frequent values, the first."""

    def __init__(self) -> None:
        self._counts: dict[Any, int] = {}

    def step(self, *data: Any) -> None:
        if data[0] is not None:
            self._counts[data[0]] = self._counts.get(data[0], 0) + 1

    def inverse(self, *_: Any) -> None:
        raise SqlError("0A000", "mode is not supported in windows")

    def value(self) -> Datum:
        datum: Datum = max(self._counts, key=self._counts.__getitem__, default=None)
        return datum


def _percentiles(element: Type) -> Callable[[], Any]:
    return lambda: _Percentiles(element)


_ORDERED_SET_FOLDS: dict[str, Callable[[], Any]] = {
    "percentile_cont": _Between,
    "percentile_disc": _Percentile,
    "percentile_cont_array": _BetweenMany,
    "percentile_cont_interval": _BetweenIntervals,
    "percentile_cont_interval_array": _BetweenManyIntervals,
    **{f"percentile_disc_{word_of(kind.element)}": _percentiles(kind.element) for kind in ARRAYS if kind.element},
    "mode": _Mode,
}


_MOST_BYTES = 1 << 28
"""Maximum size of rows that are aggregated into one value."""
_ROW_BYTES = 64


def _size(data: tuple[Any, ...]) -> int:
    """Return the approximate size of a row in bytes."""
    return _ROW_BYTES + sum(len(datum) for datum in data if isinstance(datum, str | bytes))


class _Listed:
    """Rows in their order; rows with a NULL first value are skipped."""

    skips_null = True

    def __init__(self) -> None:
        self.rows: deque[tuple[Any, ...]] = deque()
        self._size = 0

    def step(self, *data: Any) -> None:
        if data[0] is not None or not self.skips_null:
            self.rows.append(data)
            self._size += _size(data)
            if self._size > _MOST_BYTES:
                hint = "Aggregate fewer rows at once."
                raise SqlError("54000", "the aggregated value is too large", hint=hint)

    def inverse(self, *data: Any) -> None:
        if data[0] is not None or not self.skips_null:
            self._size -= _size(self.rows.popleft())


class _StringAggregate(_Listed):
    """Texts or bytes, joined by separators."""

    def value(self) -> Datum:
        if not self.rows:
            return None
        first, *others = self.rows
        pieces = [first[0]]
        for text, separator in others:
            pieces += [separator, text] if separator is not None else [text]
        joined: str | bytes = first[0][:0].join(pieces)
        return joined


class _Array(_Listed):
    """Data as an array, including NULL."""

    skips_null = False

    def __init__(self, element: Type) -> None:
        super().__init__()
        self._element = element

    def value(self) -> Datum:
        return array_of(self._element, [datum for (datum,) in self.rows]) if self.rows else None


class _ArrayOfArrays(_Array):
    """Arrays as the rows of one array."""

    def value(self) -> Datum:
        return aggregated(self._element, [datum for (datum,) in self.rows]) if self.rows else None


class _JsonArray(_Listed):
    """JSON values as an array; NULL becomes null."""

    skips_null = False

    def value(self) -> Datum:
        if not self.rows:
            return None
        return "[" + ", ".join("null" if element is None else element for (element,) in self.rows) + "]"


class _StrictJsonArray(_JsonArray):
    """JSON values as an array, without NULL."""

    def value(self) -> Datum:
        if not self.rows:
            return None
        return "[" + ", ".join(element for (element,) in self.rows if element is not None) + "]"


class _JsonObject(_Listed):
    """Keys and JSON values as an object; the last value of a key counts."""

    skips_null = False

    def __init__(self, is_json: bool, is_strict: bool, is_unique: bool) -> None:
        super().__init__()
        self._sqlstate = "22004" if is_json else "22023"
        self._is_strict = is_strict
        self._is_unique = is_unique

    def value(self) -> Datum:
        if not self.rows:
            return None
        keys = [key for key, _ in self.rows]
        if None in keys:
            raise SqlError(self._sqlstate, "field name must not be null")
        if self._is_unique and len(set(keys)) < len(keys):
            raise SqlError("22030", "duplicate JSON object key value")
        members = {
            key: None if value is None else parsed_json(value)
            for key, value in self.rows
            if value is not None or not self._is_strict
        }
        return jsonb_datum(members)


def _object(*options: bool) -> Callable[[], Any]:
    return lambda: _JsonObject(*options)


class _Bits(_Listed):
    """A bitwise operation on integers."""

    def __init__(self, operate: Callable[[int, int], int]) -> None:
        super().__init__()
        self._operate = operate

    def value(self) -> Datum:
        return reduce(self._operate, (number for (number,) in self.rows)) if self.rows else None


class _IntervalSum(_Listed):
    """The sum of intervals, field by field."""

    def total(self) -> Interval:
        intervals = [interval_of(datum) for (datum,) in self.rows]
        return Interval(
            sum(interval.months for interval in intervals),
            sum(interval.days for interval in intervals),
            sum(interval.microseconds for interval in intervals),
        )

    def value(self) -> Datum:
        return interval_datum(self.total()) if self.rows else None


class _IntervalAverage(_IntervalSum):
    def value(self) -> Datum:
        count = len(self.rows)
        return interval_datum(scaled(self.total(), lambda field: field / count)) if count else None


def _array(element: Type) -> Callable[[], Any]:
    return lambda: _Array(element)


def _array_of_arrays(element: Type) -> Callable[[], Any]:
    return lambda: _ArrayOfArrays(element)


def _bits(operate: Callable[[int, int], int]) -> Callable[[], Any]:
    return lambda: _Bits(operate)


_LIST_FOLDS: dict[str, Callable[[], Any]] = {
    "string_agg_text": _StringAggregate,
    "string_agg_bytea": _StringAggregate,
    **{f"array_agg_{word_of(kind.element)}": _array(kind.element) for kind in ARRAYS if kind.element},
    **{f"array_agg_{word_of(kind)}": _array_of_arrays(kind.element) for kind in ARRAYS if kind.element},
    "jsonb_agg": _JsonArray,
    "json_agg": _JsonArray,
    "jsonb_agg_strict": _StrictJsonArray,
    "json_agg_strict": _StrictJsonArray,
    **{
        f"{prefix}_object_agg{suffix}": _object(prefix == "json", is_strict, is_unique)
        for prefix in ("jsonb", "json")
        for suffix, is_strict, is_unique in (
            ("", False, False),
            ("_strict", True, False),
            ("_unique", False, True),
            ("_unique_strict", True, True),
        )
    },
    "sum_interval": _IntervalSum,
    "avg_interval": _IntervalAverage,
    **{
        f"{name}_{word}": _bits(operate)
        for name, operate in (("bit_and", and_), ("bit_or", or_), ("bit_xor", xor))
        for word in ("smallint", "integer", "bigint")
    },
}
"""Aggregates of SQL."""


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


class _DoubleSum(RowSum):
    """Count and exact sum of doubles."""

    def __init__(self) -> None:
        super().__init__()
        self.mantissas: dict[int, int] = {}
        self.specials = {"NaN": 0, "Infinity": 0, "-Infinity": 0}

    def add(self, datum: Any, weight: int) -> None:
        if datum.__class__ is float and datum - datum == 0:
            add_mantissa(self.mantissas, datum, weight)
        else:
            self.specials[text_of_double(float(datum))] += weight

    def units(self) -> bytes:
        return packed(units_of_mantissas(self.mantissas))

    def value(self) -> Datum:
        return exact_sum(self.count, self.units(), *self.specials.values())


class _RealSum(_DoubleSum):
    def value(self) -> Datum:
        return real_sum(self.count, self.units(), *self.specials.values())


class _DoubleAverage(_DoubleSum):
    def value(self) -> Datum:
        return exact_average(self.count, self.units(), *self.specials.values())


def exact_sum(count: int, units: bytes, *specials: int) -> Datum:
    """Return the datum of a sum of doubles, given their count, sum in 2**-1074, and counts of non-finite values."""
    if not count:
        return None
    special = special_of(*specials)
    return double_datum(float(special) if special else rounded_quotient(unpacked(units), 1 << SCALE))


def real_sum(count: int, units: bytes, *specials: int) -> Datum:
    """Return the datum of a sum in single precision; the arguments are as for `exact_sum`.

    Raises:
        SqlError: the sum is too large (22003).
    """
    total: Any = exact_sum(count, units, *specials)
    return None if total is None else single_datum(float(total))


def exact_average(count: int, units: bytes, *specials: int) -> Datum:
    """Return the datum of an average of doubles; the arguments are as for `exact_sum`."""
    if not count:
        return None
    special = special_of(*specials)
    return double_datum(float(special) if special else rounded_quotient(unpacked(units), count << SCALE))


class _WeightedUnits(WeightedSum):
    """The exact sum of finite doubles with weights; other doubles are ignored."""

    def __init__(self) -> None:
        self._mantissas: dict[int, int] = {}

    def step(self, datum: Any, weight: int) -> None:
        if datum.__class__ is float and datum - datum == 0:
            add_mantissa(self._mantissas, datum, weight)

    def value(self) -> bytes:
        return packed(units_of_mantissas(self._mantissas))


class _NumericSum(RowSum):
    """Count and sum of numeric values."""

    def __init__(self) -> None:
        super().__init__()
        self.total = Decimal(0)
        self.specials = {"NaN": 0, "Infinity": 0, "-Infinity": 0}

    def add(self, datum: Any, weight: int) -> None:
        number = Decimal(datum) if datum.__class__ is int else decimal_of(datum)
        if number.is_finite():
            self.total = EXACT.add(self.total, number if weight > 0 else number.copy_negate())
        else:
            self.specials[str(number)] += weight

    def value(self) -> Datum:
        return numeric_sum(self.count, numeric_of(self.total), *self.specials.values())


class _NumericAverage(_NumericSum):
    def value(self) -> Datum:
        return numeric_average(self.count, numeric_of(self.total, is_limited=False), *self.specials.values())


class _IntegerSum(_NumericSum):
    def value(self) -> Datum:
        return int(self.total) if self.count else None


def numeric_sum(count: int, total: bytes, *specials: int) -> Datum:
    """Return the datum of a sum of numeric, given their count, sum of finite values, and counts of the other values."""
    if not count:
        return None
    special = special_of(*specials)
    return numeric_of(Decimal(special) if special else decimal_of(total))


def numeric_average(count: int, total: bytes, *specials: int) -> Datum:
    """Return the datum of an average of numeric, given the state of a sum."""
    if not count:
        return None
    special = special_of(*specials)
    return numeric_of(Decimal(special) if special else quotient(decimal_of(total), Decimal(count)))


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
    return numeric_of(EXACT.add(decimal_of(left), decimal_of(right)), is_limited=False)


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
    "sum_real": _RealSum,
    "sum_double": _DoubleSum,
    "avg_smallint": _NumericAverage,
    "avg_integer": _NumericAverage,
    "avg_bigint": _NumericAverage,
    "avg_numeric": _NumericAverage,
    "avg_double": _DoubleAverage,
    **accumulator.FOLDS,
    **regression.FOLDS,
    **_LIST_FOLDS,
    **_ORDERED_SET_FOLDS,
}
"""Aggregates of SQL, which also have distinct forms."""
_STATE_FOLDS: dict[str, Callable[[], Fold]] = {
    "exact": _WeightedUnits,
    "numeric_units": WeightedNumeric,
    **accumulator.STATE_FOLDS,
    **regression.STATE_FOLDS,
}
_STATE_FUNCTIONS: dict[str, Callable[..., Datum]] = {
    "exact_sum": exact_sum,
    "real_sum": real_sum,
    "exact_average": exact_average,
    "numeric_sum": numeric_sum,
    "numeric_average": numeric_average,
    "sum_of_halves": sum_of_halves,
    "average_of_halves": average_of_halves,
    "added_units": _added_units,
    "added_numeric": _added_numeric,
    **accumulator.STATE_FUNCTIONS,
    **regression.STATE_FUNCTIONS,
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
