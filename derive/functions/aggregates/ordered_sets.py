"""Ordered-set aggregates, with WITHIN GROUP: percentiles and the most frequent value."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from derive.algebra.types import Datum
from derive.errors import SqlError
from derive.functions.types.double import double_datum, float_of

ORDERED_SETS = {"percentile_cont": 1, "percentile_disc": 1, "mode": 0}
"""Number of direct arguments in parentheses, by name; the aggregated argument is in WITHIN GROUP."""


class _Percentile:
    """Ordered values, and the requested fraction, which is the same for all rows."""

    def __init__(self) -> None:
        self._values: list[Any] = []
        self._fraction: float | None = None

    def step(self, *data: Any) -> None:
        value, fraction = data
        if value is not None:
            self._values.append(value)
        self._fraction = None if fraction is None else float_of(fraction)

    def inverse(self, *_: Any) -> None:
        raise SqlError("0A000", "percentiles are not supported in windows")

    def value(self) -> Datum:
        fraction = self._fraction
        if fraction is None:
            return None
        if not 0 <= fraction <= 1:
            raise SqlError("22003", f"percentile value {fraction:g} is not between 0 and 1")
        return self.at(fraction, self._values) if self._values else None

    @staticmethod
    def at(fraction: float, values: list[Any]) -> Datum:
        """Return the first value whose cumulative fraction is at least the requested one."""
        datum: Datum = values[max(math.ceil(fraction * len(values)), 1) - 1]
        return datum


class _Between(_Percentile):
    @staticmethod
    def at(fraction: float, values: list[Any]) -> Datum:
        """Return the linear interpolation between values."""
        place = fraction * (len(values) - 1)
        low, high = (float_of(values[round_(place)]) for round_ in (math.floor, math.ceil))
        return double_datum(low if low == high else low + (place - math.floor(place)) * (high - low))


class _Mode:
    """The most frequent value, the first of several."""

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


FOLDS: dict[str, Callable[[], Any]] = {
    "percentile_cont": _Between,
    "percentile_disc": _Percentile,
    "mode": _Mode,
}
