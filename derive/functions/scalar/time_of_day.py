"""Functions of times of day."""

from __future__ import annotations

from decimal import Decimal

from derive.algebra.types import Type
from derive.errors import SqlError
from derive.functions.function import Functions
from derive.functions.scalar.casts import timestamp_of_date
from derive.functions.scalar.datetime import later
from derive.functions.scalar.datetime_field import TIME_FIELDS, field_named, time_field, unsupported_unit
from derive.functions.types.datetime import DAY, HOUR, MINUTE, SECOND
from derive.functions.types.interval import Interval

FUNCTIONS = Functions()

_M, _V, _D, _T, _I = Type.TIME, Type.INTERVAL, Type.DATE, Type.TEXT, Type.INTEGER


def _later(time: int, interval: Interval) -> int:
    return (time + interval.microseconds) % DAY


def _earlier(time: int, interval: Interval) -> int:
    return (time - interval.microseconds) % DAY


def _timestamp_of(days: int, time: int) -> int:
    return later(timestamp_of_date(days), Interval(0, 0, time))


def _field(name: str, time: int) -> Decimal:
    field = field_named(name, _M)
    if field == "epoch":
        return Decimal(time) / SECOND
    number = time_field(field, time) if field in TIME_FIELDS else None
    if number is None:
        raise unsupported_unit(name, _M)
    return number


def _made(hour: int, minute: int, second: float) -> int:
    time = hour * HOUR + minute * MINUTE
    is_time = 0 <= hour <= 24 and 0 <= minute <= 59 and 0 <= second <= 60
    time += round(second * SECOND) if is_time else 0
    if not is_time or time > DAY:
        raise SqlError("22008", f"time field value out of range: {hour}:{minute:02}:{second:g}")
    return time


def _add() -> None:
    define = FUNCTIONS.define
    define("+", (_M, _V), _M, word="add", can_fail=False)(_later)
    define("+", (_V, _M), _M, word="add", can_fail=False)(lambda interval, time: _later(time, interval))
    define("-", (_M, _V), _M, word="subtract", can_fail=False)(_earlier)
    define("-", (_M, _M), _V, word="subtract", can_fail=False)(lambda left, right: Interval(0, 0, left - right))
    define("+", (_D, _M), Type.TIMESTAMP, word="add")(_timestamp_of)
    define("+", (_M, _D), Type.TIMESTAMP, word="add")(lambda time, days: _timestamp_of(days, time))
    define("extract", (_T, _M), Type.NUMERIC)(_field)
    define("date_part", (_T, _M), Type.DOUBLE)(lambda name, time: float(_field(name, time)))
    define("make_time", (_I, _I, Type.DOUBLE), _M)(_made)


_add()
