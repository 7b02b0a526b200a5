"""Arithmetic of dates, timestamps and intervals; the time zone is UTC unless one is named."""

from __future__ import annotations

import math
import random
import time
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from derive.algebra.types import Type
from derive.errors import SqlError
from derive.functions.function import Function, Functions
from derive.functions.scalar.casts import timestamp_of_date
from derive.functions.types.datetime import (
    DATE_INFINITY,
    DAY,
    END_OF_TIMESTAMPS,
    FIRST_DAY,
    FIRST_TIMESTAMP,
    INFINITY,
    LAST_DAY,
    SECOND,
    civil_of,
    days_of,
    length_of_month,
)
from derive.functions.types.interval import Interval, text_of_interval
from derive.functions.types.time_zone import Zone, offset_at, offset_of_local, zone_named

FUNCTIONS = Functions()

_I, _D, _T = Type.INTEGER, Type.DATE, Type.TEXT
_V = Type.INTERVAL
TIMESTAMP_TYPES = (Type.TIMESTAMP, Type.TIMESTAMPTZ)


def checked_timestamp(timestamp: int) -> int:
    """Return a timestamp, if it is in range.

    Raises:
        SqlError: 22008, it is out of range.
    """
    if not FIRST_TIMESTAMP <= timestamp < END_OF_TIMESTAMPS:
        raise SqlError("22008", "timestamp out of range")
    return timestamp


def checked_date(days: int) -> int:
    """Return a date, if it is in range.

    Raises:
        SqlError: 22008, it is out of range.
    """
    if not FIRST_DAY <= days <= LAST_DAY:
        raise SqlError("22008", "date out of range")
    return days


def later(timestamp: int, interval: Interval) -> int:
    """Add an interval to a timestamp: first months, up to a month's last day; then days, then time.

    Raises:
        SqlError: 22008, the result is out of range.
    """
    if abs(timestamp) == INFINITY:
        return timestamp
    if interval.months:
        days, time_of_day = divmod(timestamp, DAY)
        date = civil_of(days)
        year, month = divmod(date.year * 12 + date.month - 1 + interval.months, 12)
        day = min(date.day, length_of_month(year, month + 1))
        timestamp = checked_timestamp(days_of(year, month + 1, day) * DAY + time_of_day)
    timestamp = checked_timestamp(timestamp + interval.days * DAY)
    return checked_timestamp(timestamp + interval.microseconds)


def negated(interval: Interval) -> Interval:
    """Return the negative of an interval."""
    return Interval(-interval.months, -interval.days, -interval.microseconds)


def _sum(left: Interval, right: Interval) -> Interval:
    return Interval(left.months + right.months, left.days + right.days, left.microseconds + right.microseconds)


def _earlier(timestamp: int, interval: Interval) -> int:
    return later(timestamp, negated(interval))


def _difference(left: int, right: int) -> Interval:
    if INFINITY in {abs(left), abs(right)}:
        raise SqlError("22008", "cannot subtract infinite timestamps")
    microseconds = left - right
    days = abs(microseconds) // DAY * (1 if microseconds >= 0 else -1)
    return Interval(0, days, microseconds - days * DAY)


def _days_later(days: int, count: int) -> int:
    return days if abs(days) == DATE_INFINITY else checked_date(days + count)


def _days_between(left: int, right: int) -> int:
    if DATE_INFINITY in {abs(left), abs(right)}:
        raise SqlError("22008", "cannot subtract infinite dates")
    return left - right


def scaled(interval: Interval, factor: Callable[[float], float]) -> Interval:
    """Multiply an interval: fractions of months become days of a 30-day month, and fractions of days time.

    Raises:
        SqlError: 22008, a field is too large.
    """
    months, days = factor(interval.months), factor(interval.days)
    if not (abs(months) < 1 << 31 and abs(days) < 1 << 31):
        raise SqlError("22008", "interval out of range")
    rest_of_months = _to_microseconds((months - int(months)) * 30)
    rest = _to_microseconds((days - int(days) + rest_of_months - int(rest_of_months)) * 86_400)
    more_days = int(rest / 86_400) if abs(rest) >= 86_400 else 0
    rest -= more_days * 86_400
    microseconds = factor(interval.microseconds) + rest * SECOND
    if not abs(microseconds) < 1 << 63:
        raise SqlError("22008", "interval out of range")
    return Interval(int(months), int(days) + more_days + int(rest_of_months), round(microseconds))


def _to_microseconds(number: float) -> float:
    return round(number * SECOND) / SECOND


def _times(interval: Interval, factor: float) -> Interval:
    if not math.isfinite(factor):
        raise SqlError("22008", "interval out of range")
    return scaled(interval, lambda field: field * factor)


def _divided(interval: Interval, divisor: float) -> Interval:
    if not divisor:
        raise SqlError("22012", "division by zero")
    if math.isnan(divisor):
        raise SqlError("22008", "interval out of range")
    return scaled(interval, lambda field: field / divisor)


def _justified_days(interval: Interval) -> Interval:
    months = interval.months + int(interval.days / 30)
    days = interval.days - int(interval.days / 30) * 30
    if months > 0 > days:
        months, days = months - 1, days + 30
    elif months < 0 < days:
        months, days = months + 1, days - 30
    return Interval(months, days, interval.microseconds)


def _justified_hours(interval: Interval) -> Interval:
    more = abs(interval.microseconds) // DAY * (1 if interval.microseconds >= 0 else -1)
    days, microseconds = interval.days + more, interval.microseconds - more * DAY
    if days > 0 > microseconds:
        days, microseconds = days - 1, microseconds + DAY
    elif days < 0 < microseconds:
        days, microseconds = days + 1, microseconds - DAY
    return Interval(interval.months, days, microseconds)


def _justified(interval: Interval) -> Interval:
    interval = _justified_days(_justified_hours(interval))
    months, days, microseconds = interval.months, interval.days, interval.microseconds
    if months > 0 and (days < 0 or (days == 0 and microseconds < 0)):
        months, days = months - 1, days + 30
    elif months < 0 and (days > 0 or (days == 0 and microseconds > 0)):
        months, days = months + 1, days - 30
    if days > 0 > microseconds:
        days, microseconds = days - 1, microseconds + DAY
    elif days < 0 < microseconds:
        days, microseconds = days + 1, microseconds - DAY
    return Interval(months, days, microseconds)


def _age(left: int, right: int) -> Interval:
    """Return the difference in years, months, days and time."""
    if INFINITY in {abs(left), abs(right)}:
        raise SqlError("22008", "cannot subtract infinite timestamps")
    late, early = max(left, right), min(left, right)
    (late_day, late_time), (early_day, early_time) = divmod(late, DAY), divmod(early, DAY)
    end, begin = civil_of(late_day), civil_of(early_day)
    months = (end.year - begin.year) * 12 + end.month - begin.month
    days, microseconds = end.day - begin.day, late_time - early_time
    if microseconds < 0:
        days, microseconds = days - 1, microseconds + DAY
    while days < 0:
        # Days are borrowed from the first operand's month, or from the second's if that is earlier.
        borrowed = begin
        days += length_of_month(borrowed.year, borrowed.month)
        months -= 1
    interval = Interval(months, days, microseconds)
    return interval if left >= right else negated(interval)


def _of_local(local: int, zone: Zone) -> int:
    """Return the timestamp of a local time in a zone."""
    return checked_timestamp(local - offset_of_local(zone, local))


def _local_of(timestamp: int, zone: Zone) -> int:
    """Return the local time of a timestamp in a zone."""
    return checked_timestamp(timestamp + offset_at(zone, timestamp))


def _in_zone(zone: str, timestamp: int) -> int:
    return timestamp if abs(timestamp) == INFINITY else _of_local(timestamp, zone_named(zone))


def _shown_in_zone(zone: str, timestamp: int) -> int:
    return timestamp if abs(timestamp) == INFINITY else _local_of(timestamp, zone_named(zone))


def _zone_of_interval(interval: Interval) -> Zone:
    if interval.months or interval.days:
        text = text_of_interval(interval)
        raise SqlError("22023", f'interval time zone "{text}" must not include months or days')
    return int(Decimal(interval.microseconds) / SECOND) * SECOND


def _in_offset(interval: Interval, timestamp: int) -> int:
    return timestamp if abs(timestamp) == INFINITY else _of_local(timestamp, _zone_of_interval(interval))


def _shown_in_offset(interval: Interval, timestamp: int) -> int:
    return timestamp if abs(timestamp) == INFINITY else _local_of(timestamp, _zone_of_interval(interval))


def later_in_zone(timestamp: int, interval: Interval, name: str) -> int:
    """Add an interval to a timestamp, with months and days in a zone's local time.

    Raises:
        SqlError: 22008, the result is out of range; 22023, there is no such zone.
    """
    zone = zone_named(name)
    if abs(timestamp) == INFINITY:
        return timestamp
    for part in (Interval(interval.months, 0, 0), Interval(0, interval.days, 0)):
        if part.months or part.days:
            timestamp = _of_local(later(_local_of(timestamp, zone), part), zone)
    return checked_timestamp(timestamp + interval.microseconds)


def _earlier_in_zone(timestamp: int, interval: Interval, name: str) -> int:
    return later_in_zone(timestamp, negated(interval), name)


def _binned(stride: Interval, timestamp: int, origin: int) -> int:
    if INFINITY in {abs(timestamp), abs(origin)}:
        if abs(timestamp) == INFINITY:
            return timestamp
        raise SqlError("22008", "origin out of range")
    if stride.months:
        raise SqlError("0A000", "timestamps cannot be binned into intervals containing months or years")
    width = stride.days * DAY + stride.microseconds
    if width <= 0:
        raise SqlError("22008", "stride must be greater than zero")
    return checked_timestamp(origin + (timestamp - origin) // width * width)


def _made_date(year: int, month: int, day: int) -> int:
    if not year or not 1 <= month <= 12 or not 1 <= day <= length_of_month(year + (year < 0), month):
        raise SqlError("22008", f"date field value out of range: {year}-{month:02}-{day:02}")
    return checked_date(days_of(year + (year < 0), month, day))


def _made_timestamp(year: int, month: int, day: int, hour: int, minute: int, second: float) -> int:
    if not (0 <= hour <= 24 and 0 <= minute <= 59 and 0 <= second <= 60):
        raise SqlError("22008", f"time field value out of range: {hour}:{minute:02}:{second:g}")
    time_of_day = (hour * 3600 + minute * 60) * SECOND + round(second * SECOND)
    if time_of_day > DAY:
        raise SqlError("22008", f"time field value out of range: {hour}:{minute:02}:{second:g}")
    return checked_timestamp(_made_date(year, month, day) * DAY + time_of_day)


def _made_timestamp_in_zone(*fields_and_zone: Any) -> int:
    *fields, zone = fields_and_zone
    return _of_local(_made_timestamp(*fields), zone_named(zone))


def timestamp_of_seconds(seconds: float) -> int:
    """Return the timestamp of a number of seconds since 1970.

    Raises:
        SqlError: 22008, it is out of range.
    """
    if math.isinf(seconds):
        return INFINITY if seconds > 0 else -INFINITY
    if math.isnan(seconds):
        raise SqlError("22008", "timestamp cannot be NaN")
    if not FIRST_TIMESTAMP <= seconds * SECOND < END_OF_TIMESTAMPS:
        raise SqlError("22008", f'timestamp out of range: "{seconds:g}"')
    # Far from the year 2000, doubles have fewer digits than microseconds need.
    since_2000 = seconds - 946_684_800
    return checked_timestamp(round(since_2000 * SECOND) + 946_684_800 * SECOND)


def _add_arithmetic() -> None:
    define = FUNCTIONS.define
    define("+", (_D, _I), _D, word="add")(_days_later)
    define("+", (_I, _D), _D, word="add")(lambda count, days: _days_later(days, count))
    define("-", (_D, _I), _D, word="subtract")(lambda days, count: _days_later(days, -count))
    define("-", (_D, _D), _I, word="subtract")(_days_between)
    define("+", (_D, _V), Type.TIMESTAMP, word="add")(lambda days, interval: later(timestamp_of_date(days), interval))
    define("+", (_V, _D), Type.TIMESTAMP, word="add")(lambda interval, days: later(timestamp_of_date(days), interval))
    define("-", (_D, _V), Type.TIMESTAMP, word="subtract")(
        lambda days, interval: _earlier(timestamp_of_date(days), interval)
    )
    for kind in TIMESTAMP_TYPES:
        define("+", (kind, _V), kind, word="add")(later)
        define("+", (_V, kind), kind, word="add")(lambda interval, timestamp: later(timestamp, interval))
        define("-", (kind, _V), kind, word="subtract")(_earlier)
        define("-", (kind, kind), _V, word="subtract")(_difference)
        define("age", (kind, kind), _V)(_age)
        define("date_bin", (_V, kind, kind), kind)(_binned)
        define("isfinite", (kind,), Type.BOOLEAN, can_fail=False)(lambda timestamp: abs(timestamp) != INFINITY)
    define("isfinite", (_D,), Type.BOOLEAN, can_fail=False)(lambda days: abs(days) != DATE_INFINITY)
    define("isfinite", (_V,), Type.BOOLEAN, can_fail=False)(lambda _: True)


def _add_intervals() -> None:
    define = FUNCTIONS.define
    define("+", (_V, _V), _V, word="add")(_sum)
    define("-", (_V, _V), _V, word="subtract")(lambda left, right: _sum(left, negated(right)))
    define("-", (_V,), _V, word="negate")(negated)
    define("*", (_V, Type.DOUBLE), _V, word="multiply")(_times)
    define("*", (Type.DOUBLE, _V), _V, word="multiply")(lambda factor, interval: _times(interval, factor))
    define("/", (_V, Type.DOUBLE), _V, word="divide")(_divided)
    define("justify_days", (_V,), _V)(_justified_days)
    define("justify_hours", (_V,), _V)(_justified_hours)
    define("justify_interval", (_V,), _V)(_justified)


def _add_making() -> None:
    define = FUNCTIONS.define
    define("timezone", (_T, Type.TIMESTAMP), Type.TIMESTAMPTZ)(_in_zone)
    define("timezone", (_T, Type.TIMESTAMPTZ), Type.TIMESTAMP)(_shown_in_zone)
    define("timezone", (_V, Type.TIMESTAMP), Type.TIMESTAMPTZ)(_in_offset)
    define("timezone", (_V, Type.TIMESTAMPTZ), Type.TIMESTAMP)(_shown_in_offset)
    timestamp_and_interval = (Type.TIMESTAMPTZ, _V)
    define("date_add", timestamp_and_interval, Type.TIMESTAMPTZ)(later)
    define("date_subtract", timestamp_and_interval, Type.TIMESTAMPTZ)(_earlier)
    define("date_add", (*timestamp_and_interval, _T), Type.TIMESTAMPTZ)(later_in_zone)
    define("date_subtract", (*timestamp_and_interval, _T), Type.TIMESTAMPTZ)(_earlier_in_zone)
    define("make_date", (_I, _I, _I), _D)(_made_date)
    fields = (_I, _I, _I, _I, _I, Type.DOUBLE)
    define("make_timestamp", fields, Type.TIMESTAMP)(_made_timestamp)
    define("make_timestamptz", fields, Type.TIMESTAMPTZ)(_made_timestamp)
    define("make_timestamptz", (*fields, _T), Type.TIMESTAMPTZ)(_made_timestamp_in_zone)
    define("to_timestamp", (Type.DOUBLE,), Type.TIMESTAMPTZ)(timestamp_of_seconds)


def _add_volatile() -> None:
    for symbol in ("now", "transaction_timestamp", "statement_timestamp", "clock_timestamp"):
        FUNCTIONS.add(
            Function(
                symbol, symbol, (), Type.TIMESTAMPTZ, lambda: time.time_ns() // 1000, can_fail=False, is_volatile=True
            )
        )
    FUNCTIONS.add(Function("random", "random", (), Type.DOUBLE, random.random, can_fail=False, is_volatile=True))
    name = "gen_random_uuid"
    FUNCTIONS.add(Function(name, name, (), Type.UUID, lambda: uuid.uuid4().bytes, can_fail=False, is_volatile=True))


_add_arithmetic()
_add_intervals()
_add_making()
_add_volatile()
