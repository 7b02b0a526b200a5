"""Aggregates that store all their rows: lists and objects, in the order of rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import reduce
from operator import and_, or_, xor
from typing import Any

from derive.algebra.types import ARRAYS, Datum, Type
from derive.errors import SqlError
from derive.functions.function import word_of
from derive.functions.scalar.datetime import scaled
from derive.functions.types.array import array_of
from derive.functions.types.interval import Interval, interval_datum, interval_of
from derive.functions.types.jsonb import jsonb_datum, parsed_json

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
                raise SqlError("54000", "what is aggregated into one value is too large", hint=hint)

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


class _JsonArray(_Listed):
    """JSON values as an array; NULL becomes null."""

    skips_null = False

    def value(self) -> Datum:
        if not self.rows:
            return None
        return "[" + ", ".join("null" if element is None else element for (element,) in self.rows) + "]"


class _JsonObject(_Listed):
    """Keys and JSON values as an object; the last value of a key counts."""

    skips_null = False

    def value(self) -> Datum:
        if not self.rows:
            return None
        members = {}
        for key, value in self.rows:
            if key is None:
                raise SqlError("22023", "field name must not be null")
            members[key] = None if value is None else parsed_json(value)
        return jsonb_datum(members)


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


def _bits(operate: Callable[[int, int], int]) -> Callable[[], Any]:
    return lambda: _Bits(operate)


FOLDS: dict[str, Callable[[], Any]] = {
    "string_agg_text": _StringAggregate,
    "string_agg_bytea": _StringAggregate,
    **{f"array_agg_{word_of(kind.element)}": _array(kind.element) for kind in ARRAYS if kind.element},
    "jsonb_agg": _JsonArray,
    "jsonb_object_agg": _JsonObject,
    "json_agg": _JsonArray,
    "json_object_agg": _JsonObject,
    "sum_interval": _IntervalSum,
    "avg_interval": _IntervalAverage,
    **{
        f"{name}_{word}": _bits(operate)
        for name, operate in (("bit_and", and_), ("bit_or", or_), ("bit_xor", xor))
        for word in ("smallint", "integer", "bigint")
    },
}
"""Aggregates of SQL."""
