"""Incremental states of aggregates, for inserted and deleted rows, and exact sums of doubles.

A sum is exact: it depends neither on the order of values nor on values that were subtracted again.

A state is a row of columns. The contribution of rows is an aggregate of each column over the rows and their weights,
which are negative for deleted rows; states are added column by column. `min`, `max` and other aggregates that depend on
more than sums have no such state, and are computed from the multiset of values.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, TypeAlias

from derive.algebra.types import Datum, Type
from derive.functions.function import Function, registered_name
from derive.functions.types.numbers import (
    EXACT,
    decimal_of,
    divided,
    double_datum,
    numeric_of,
    quotient_scale,
    square_root_in,
)

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
    """Return the integer that bytes of `packed` represent."""
    return int.from_bytes(data[2:], "little", signed=True) << 8 * int.from_bytes(data[:2], "little") if data else 0


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
        is_sample: whether the variance is a sample's.
        count: number of values.
        units: their sum, in 2**-1074.
        squares: the sum of their squares, in 2**-2148.
    """
    if count <= is_sample:
        return None
    variance = Fraction(count * squares - units * units, (count * (count - is_sample)) << 2 * SCALE)
    number = rounded_quotient(variance.numerator, variance.denominator)
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


class RowSum:
    """The state of an aggregate that adds and removes values, without NULL, in the same way.

    Attributes:
        count: number of values.
    """

    def __init__(self) -> None:
        self.count = 0

    def step(self, datum: Any) -> None:
        """Add a row."""
        if datum is not None:
            self.count += 1
            self.add(datum, 1)

    def inverse(self, datum: Any) -> None:
        """Remove a row."""
        if datum is not None:
            self.count -= 1
            self.add(datum, -1)

    def add(self, datum: Any, weight: int) -> None:
        """Add a value with weight 1 or -1."""
        raise NotImplementedError


class WeightedSum:
    """The state of a sum of values with weights."""

    def step(self, datum: Any, weight: int) -> None:
        """Add a value with a weight."""
        raise NotImplementedError

    def inverse(self, datum: Any, weight: int) -> None:
        """Remove a value with a weight."""
        self.step(datum, -weight)


class _Numbers(RowSum):
    """Count, sum and sum of squares of a window of numbers."""

    def __init__(self, is_root: bool, is_sample: bool) -> None:
        super().__init__()
        self.options = is_root, is_sample
        self.specials = 0
        self.total = self.squares = Decimal(0)

    def add(self, datum: Any, weight: int) -> None:
        number = Decimal(datum) if datum.__class__ is int else decimal_of(datum)
        if number.is_finite():
            self.total = EXACT.add(self.total, EXACT.multiply(number, Decimal(weight)))
            self.squares = EXACT.add(self.squares, EXACT.multiply(EXACT.multiply(number, number), Decimal(weight)))
        else:
            self.specials += weight

    def value(self) -> Datum:
        total, squares = (numeric_of(number, is_limited=False) for number in (self.total, self.squares))
        return _numeric_result(*self.options, self.count, total, squares, self.specials)


class _Doubles(RowSum):
    """Count, sum and sum of squares of a window of doubles."""

    def __init__(self, is_root: bool, is_sample: bool) -> None:
        super().__init__()
        self.options = is_root, is_sample
        self.specials = self.units = self.squares = 0

    def add(self, datum: Any, weight: int) -> None:
        if datum.__class__ is float and datum - datum == 0:
            units = units_of(datum)
            self.units += weight * units
            self.squares += weight * units * units
        else:
            self.specials += weight

    def value(self) -> Datum:
        return _double_result(*self.options, self.count, packed(self.units), packed(self.squares), self.specials)


class _WeightedSquares(WeightedSum):
    """The sum of squares of finite doubles with weights."""

    def __init__(self) -> None:
        self._units = 0

    def step(self, datum: Any, weight: int) -> None:
        if datum.__class__ is float and datum - datum == 0:
            self._units += weight * units_of(datum) ** 2

    def value(self) -> bytes:
        return packed(self._units)


class WeightedNumeric(WeightedSum):
    """The sum of finite numbers with weights; other numbers are ignored."""

    def __init__(self) -> None:
        self._total = Decimal(0)

    def step(self, datum: Any, weight: int) -> None:
        """Add a datum, weighted."""
        if datum is not None:
            number = Decimal(datum) if datum.__class__ is int else decimal_of(datum)
            if number.is_finite():
                term = self.term(number)
                self._total = EXACT.add(self._total, term if weight == 1 else EXACT.multiply(term, Decimal(weight)))

    def term(self, number: Decimal) -> Decimal:
        """Return the number to add for a number."""
        return number

    def value(self) -> bytes:
        """Return the datum of the sum, which may exceed the limits of numeric."""
        return numeric_of(self._total, is_limited=False)


class _WeightedNumericSquares(WeightedNumeric):
    """The sum of squares of finite numbers with weights."""

    def term(self, number: Decimal) -> Decimal:
        return EXACT.multiply(number, number)


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


AggregateForm: TypeAlias = Callable[[Sequence[str], str], str]
"""A function that returns SQL of an aggregate, given SQL of the arguments and of the suffix (FILTER and OVER)."""


Numbers: TypeAlias = tuple[Any, ...]
"""A number for each column of a state, which are added to those of other rows: integers, or decimals."""


@dataclass(frozen=True, slots=True)
class Bulk:
    """The contribution of many rows to a state, computed by columns.

    Attributes:
        numbers: returns the numbers of rows, given the columns of the arguments and the number of rows; numerics are
            decimals.
        data: returns the columns of the state for numbers.
        is_costly: whether SQL calls a function of Python for each row.
    """

    numbers: Callable[[Sequence[Sequence[Any]], int], Numbers]
    data: Callable[[Numbers], tuple[Datum, ...]]
    is_costly: bool = False


@dataclass(frozen=True, slots=True)
class Accumulator:
    """The state of an aggregate, as columns.

    Attributes:
        empty: SQL of the columns without rows.
        delta: returns, from SQL of the arguments and of a row's weight, the contribution of rows to each column.
        merged: returns, from SQL of two states, SQL of each column of their sum.
        result: returns, from SQL of a state, SQL of the aggregate's value.
        bulk: computes the contribution of many rows by columns, in Python; None if only SQL computes it.
    """

    empty: tuple[str, ...]
    delta: Callable[[Sequence[str], str], tuple[str, ...]]
    merged: Callable[[Sequence[str], Sequence[str]], tuple[str, ...]]
    result: Callable[[Sequence[str]], str]
    bulk: Bulk | None = None


@dataclass(frozen=True, slots=True)
class AggregateFunction:
    """An aggregate for arguments of certain types.

    Attributes:
        signature: its name, symbol and types.
        form: returns its SQL.
        accumulator: its incremental state; None if missing.
        is_ordered: whether its value depends on the order of rows.
        conversions: functions from SQL of each argument and its type to SQL for the Python function; empty for none.
    """

    signature: Function
    form: AggregateForm
    accumulator: Accumulator | None = None
    is_ordered: bool = False
    conversions: tuple[Callable[[str, Type], str], ...] = ()


def added(left: Sequence[str], right: Sequence[str]) -> tuple[str, ...]:
    """Return SQL of the sums of numbers in two states."""
    return tuple(f"{one} + {other}" for one, other in zip(left, right, strict=True))


def python_form(name: str) -> AggregateForm:
    """Return the form of an aggregate in Python."""
    return lambda arguments, suffix: f"{registered_name(name)}({', '.join(arguments)}){suffix}"


def counter(argument: str, weight: str) -> str:
    """Return SQL of the number of non-NULL values in rows."""
    return f"sum(iif({argument} IS NULL, 0, {weight}))"


def weighted(argument: str, condition: str, weight: str) -> str:
    """Return SQL of the number of values that fulfil a condition in rows."""
    return f"sum(iif({argument} {condition}, {weight}, 0))"


def _count(columns: Sequence[Sequence[Any]], rows: int) -> Numbers:
    return ((rows - columns[0].count(None)) if columns else rows,)


def _halves(columns: Sequence[Sequence[Any]], rows: int) -> Numbers:
    (column,) = columns
    count = rows - column.count(None)
    total = sum(column if count == rows else [datum for datum in column if datum is not None])
    return count, total >> 32, total & 0xFFFFFFFF


def _decimals(columns: Sequence[Sequence[Any]], rows: int) -> Numbers:
    (column,) = columns
    count = rows - column.count(None)
    known = column if count == rows else [number for number in column if number is not None]
    try:
        total = functools.reduce(EXACT.add, known, Decimal(0))
        if total.is_finite():
            return count, total, 0, 0, 0
    except ArithmeticError:  # infinities of both signs
        pass
    specials = [sum(str(number) == name for number in known) for name in ("NaN", "Infinity", "-Infinity")]
    return count, functools.reduce(EXACT.add, filter(Decimal.is_finite, known), Decimal(0)), *specials


def _doubles(columns: Sequence[Sequence[Any]], rows: int) -> Numbers:
    (column,) = columns
    known = [datum for datum in column if datum is not None]
    mantissas: dict[int, int] = {}
    for datum in known:
        if datum.__class__ is float and datum - datum == 0:
            add_mantissa(mantissas, datum, 1)
    specials = [known.count(datum) for datum in ("NaN", math.inf, -math.inf)]
    return len(known), units_of_mantissas(mantissas), *specials


def _with_total(convert: Callable[[Any], Datum]) -> Callable[[Numbers], tuple[Datum, ...]]:
    return lambda numbers: (numbers[0], convert(numbers[1]), *numbers[2:])


_COUNTS = Bulk(_count, tuple)
_INTEGER_SUMS = Bulk(_halves, tuple)
_DECIMAL_SUMS = Bulk(_decimals, _with_total(functools.partial(numeric_of, is_limited=False)), is_costly=True)
_DOUBLE_SUMS = Bulk(_doubles, _with_total(packed), is_costly=True)


def of_halves(result: str) -> Accumulator:
    """Return the state of integers: count, and the sums of their upper and lower 32 bits, which cannot overflow."""
    return Accumulator(
        ("0", "0", "0"),
        lambda arguments, weight: (
            counter(arguments[0], weight),
            f"coalesce(sum(({arguments[0]} >> 32) * {weight}), 0)",
            f"coalesce(sum(({arguments[0]} & 4294967295) * {weight}), 0)",
        ),
        added,
        lambda state: result.format(*state),
        _INTEGER_SUMS,
    )


def of_sums(fold: str, add: str, result: str, empty: str, specials: tuple[str, str, str]) -> Accumulator:
    """Return the state of doubles or numeric: count, sum of the finite values, and counts of the other values."""

    def delta(arguments: Sequence[str], weight: str) -> tuple[str, ...]:
        counts = (weighted(arguments[0], f"= {special}", weight) for special in specials)
        return (counter(arguments[0], weight), f"{fold}({arguments[0]}, {weight})", *counts)

    def merged(left: Sequence[str], right: Sequence[str]) -> tuple[str, ...]:
        counts = added(left, right)
        return (counts[0], f"{add}({left[1]}, {right[1]})", *counts[2:])

    bulk = _DECIMAL_SUMS if fold == "flow_numeric_units" else _DOUBLE_SUMS
    return Accumulator(("0", empty, "0", "0", "0"), delta, merged, lambda state: f"{result}({', '.join(state)})", bulk)


def of_squares(folds: tuple[str, str], add: str, result: str, empty: str, specials: tuple[str, ...]) -> Accumulator:
    """Return the state of variances: counts of finite and other values, sums of finite values and of squares."""

    def delta(arguments: Sequence[str], weight: str) -> tuple[str, ...]:
        sums = (f"{fold}({arguments[0]}, {weight})" for fold in folds)
        others = weighted(arguments[0], f"IN ({', '.join(specials)})", weight)
        return (counter(arguments[0], weight), *sums, others)

    def merged(left: Sequence[str], right: Sequence[str]) -> tuple[str, ...]:
        counts = added(left, right)
        sums = (f"{add}({left[index]}, {right[index]})" for index in (1, 2))
        return (counts[0], *sums, counts[3])

    return Accumulator(("0", empty, empty, "0"), delta, merged, lambda state: f"{result}, {', '.join(state)})")


def of_counts(form: Callable[[Sequence[str], str], str]) -> Accumulator:
    """Return the state of a count; `form` returns the contribution of rows."""
    return Accumulator(
        ("0",), lambda arguments, weight: (form(arguments, weight),), added, lambda state: state[0], _COUNTS
    )


def of_truths(result: str) -> Accumulator:
    """Return the state of booleans: counts of true and false."""
    return Accumulator(
        ("0", "0"),
        lambda arguments, weight: (
            weighted(arguments[0], "IS TRUE", weight),
            weighted(arguments[0], "IS FALSE", weight),
        ),
        added,
        lambda state: result.format(*state),
    )
