"""Functions of dates, timestamps, intervals and times of day; the time zone is UTC unless one is given."""

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
    HOUR,
    INFINITY,
    LAST_DAY,
    MINUTE,
    SECOND,
    UNIT_OF,
    Interval,
    Zone,
    civil_of,
    days_of,
    length_of_month,
    offset_at,
    offset_of_local,
    text_in_zone,
    text_of_interval,
    timestamp_of_text,
    zone_named,
)
from derive.functions.types.numbers import divided

FUNCTIONS = Functions()

_I, _D, _T = Type.INTEGER, Type.DATE, Type.TEXT
_V = Type.INTERVAL
TIMESTAMP_TYPES = (Type.TIMESTAMP, Type.TIMESTAMPTZ)


def checked_timestamp(timestamp: int) -> int:
    """Return a timestamp, if it is in range.

    Raises:
        SqlError: the result is out of range (22008).
    """
    if not FIRST_TIMESTAMP <= timestamp < END_OF_TIMESTAMPS:
        raise SqlError("22008", "timestamp out of range")
    return timestamp


def checked_date(days: int) -> int:
    """Return a date, if it is in range.

    Raises:
        SqlError: the result is out of range (22008).
    """
    if not FIRST_DAY <= days <= LAST_DAY:
        raise SqlError("22008", "date out of range")
    return days


def later(timestamp: int, interval: Interval) -> int:
    """Add an interval to a timestamp: first months, up to a month's last day; then days, then time.

    Raises:
        SqlError: the result is out of range (22008).
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
        SqlError: a field is too large (22008).
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


def _text_in_zone(zone: str, timestamp: int) -> str:
    return text_in_zone(timestamp, zone_named(zone))


def _timestamp_in_zone(zone: str, text: str) -> int:
    return timestamp_of_text(text, has_zone=True, zone=zone_named(zone))


def later_in_zone(timestamp: int, interval: Interval, name: str) -> int:
    """Add an interval to a timestamp, with months and days in a zone's local time.

    Raises:
        SqlError: 22008, the result is out of range; 22023, the zone is unknown.
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


def _made_interval(
    years: int = 0, months: int = 0, weeks: int = 0, days: int = 0, hours: int = 0, minutes: int = 0, seconds: float = 0
) -> Interval:
    if not math.isfinite(seconds) or abs(seconds) >= 1 << 63:
        raise SqlError("22008", "interval out of range")
    return Interval(
        years * 12 + months, weeks * 7 + days, (hours * 60 + minutes) * MINUTE + round(Decimal(seconds) * SECOND)
    )


def _made_timestamp_in_zone(*fields_and_zone: Any) -> int:
    *fields, zone = fields_and_zone
    return _of_local(_made_timestamp(*fields), zone_named(zone))


def timestamp_of_seconds(seconds: float) -> int:
    """Return the timestamp that is a number of seconds after 1970-01-01.

    Raises:
        SqlError: the result is out of range (22008).
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
    define("text_in_zone", (_T, Type.TIMESTAMPTZ), _T)(_text_in_zone)
    define("timestamptz_in_zone", (_T, _T), Type.TIMESTAMPTZ)(_timestamp_in_zone)
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
    for count in range(8):
        define("make_interval", (*(_I,) * 6, Type.DOUBLE)[:count], Type.INTERVAL)(_made_interval)
    fields = (_I, _I, _I, _I, _I, Type.DOUBLE)
    define("make_timestamp", fields, Type.TIMESTAMP)(_made_timestamp)
    define("make_timestamptz", fields, Type.TIMESTAMPTZ)(_made_timestamp)
    define("make_timestamptz", (*fields, _T), Type.TIMESTAMPTZ)(_made_timestamp_in_zone)
    define("to_timestamp", (Type.DOUBLE,), Type.TIMESTAMPTZ)(timestamp_of_seconds)


def _add_volatile() -> None:
    for symbol in ("now", "transaction_timestamp", "statement_timestamp", "clock_timestamp", "mz_now"):
        FUNCTIONS.add(
            Function(
                symbol, symbol, (), Type.TIMESTAMPTZ, lambda: time.time_ns() // 1000, can_fail=False, is_volatile=True
            )
        )
    FUNCTIONS.add(Function("random", "random", (), Type.DOUBLE, random.random, can_fail=False, is_volatile=True))
    for symbol in ("gen_random_uuid", "uuidv4"):
        FUNCTIONS.add(
            Function(symbol, symbol, (), Type.UUID, lambda: uuid.uuid4().bytes, can_fail=False, is_volatile=True)
        )


_add_arithmetic()
_add_intervals()
_add_making()
_add_volatile()


_FIELDS = {**UNIT_OF, "quarter": "quarter", "qtr": "quarter"} | {
    name: name for name in ("epoch", "dow", "doy", "isodow", "isoyear", "julian", "timezone")
}
_FIELDS |= {"timezone_h": "timezone_hour", "timezone_m": "timezone_minute"}
_FIELDS |= {name: name for name in ("timezone_hour", "timezone_minute")}
_MONOTONE = {"year", "decade", "century", "millennium", "epoch", "julian", "isoyear"}
"""Fields that are infinite for infinite values; all other fields are NULL for them."""
TIME_FIELDS = {"hour", "minute", "second", "millisecond", "microsecond"}
"""Fields of the time of day."""
_SPECIAL = {"epoch", "dow", "doy", "isodow", "isoyear", "julian"}
"""Names of fields to which values cannot be truncated."""


def field_named(name: str, kind: Type) -> str:
    """Return the full name of a field.

    Raises:
        SqlError: the field is unknown (22023).
    """
    field = _FIELDS.get(name.lower())
    if field is None:
        raise SqlError("22023", f'unit "{name.lower()}" not recognized for type {kind.value}')
    return field


def unsupported_unit(name: str, kind: Type) -> SqlError:
    """Return the error for a field that values of a type do not have."""
    return SqlError("0A000", f'unit "{name.lower()}" not supported for type {kind.value}')


def iso_week(days: int) -> tuple[int, int]:
    """Return the ISO 8601 year and week of a date: weeks begin on Mondays, the first week contains January 4."""
    thursday = days - (days + 3) % 7 + 3
    year = civil_of(thursday).year
    return year, (thursday - days_of(year, 1, 1)) // 7 + 1


def _cut(number: int, divisor: int) -> int:
    """Return a quotient truncated towards zero."""
    return number // divisor if number >= 0 else -(-number // divisor)


def century_of(year: int) -> int:
    """Return the century of a year. There is no century 0; year 0 is 1 BC."""
    return (year + 99) // 100 if year > 0 else _cut(year - 100, 100)


def _millennium_of(year: int) -> int:
    return (year + 999) // 1000 if year > 0 else _cut(year - 1000, 1000)


def _date_field(field: str, days: int) -> int | None:
    """Return a field that depends on the date."""
    date = civil_of(days)
    shown_year = date.year if date.year > 0 else date.year - 1
    iso_year, week = iso_week(days)
    return {
        "day": date.day,
        "month": date.month,
        "quarter": (date.month - 1) // 3 + 1,
        "year": shown_year,
        "decade": date.year // 10,
        "century": century_of(date.year),
        "millennium": _millennium_of(date.year),
        "dow": (days + 4) % 7,
        "isodow": (days + 3) % 7 + 1,
        "doy": days - days_of(date.year, 1, 1) + 1,
        "week": week,
        "isoyear": iso_year if iso_year > 0 else iso_year - 1,
    }.get(field)


def time_field(field: str, microseconds: int) -> Decimal | None:
    """Return a field that depends on the time of day."""
    within_minute = Decimal(microseconds % MINUTE)
    match field:
        case "hour":
            return Decimal(microseconds // HOUR)
        case "minute":
            return Decimal(microseconds // MINUTE % 60)
        case "second":
            return within_minute / SECOND
        case "millisecond":
            return within_minute / 1000
        case "microsecond":
            return within_minute
    return None


def _infinite(field: str, is_positive: bool) -> Decimal | None:
    return Decimal("Infinity" if is_positive else "-Infinity") if field in _MONOTONE else None


def field_of_date(name: str, days: int) -> Decimal | None:
    """Return a field of a date.

    Raises:
        SqlError: the type has no field of that name (22023 or 0A000).
    """
    field = field_named(name, Type.DATE)
    if field in TIME_FIELDS or field.startswith("timezone"):
        raise unsupported_unit(name, Type.DATE)
    if abs(days) == DATE_INFINITY:
        return _infinite(field, days > 0)
    if field == "epoch":
        return Decimal(days * 86_400)
    if field == "julian":
        return Decimal(days + 2_440_588)
    number = _date_field(field, days)
    return None if number is None else Decimal(number)


def _field_of_timestamp(kind: Type) -> Callable[[str, int], Decimal | None]:
    def field_of(name: str, timestamp: int) -> Decimal | None:
        field = field_named(name, kind)
        if field.startswith("timezone"):
            if kind is Type.TIMESTAMP:
                raise unsupported_unit(name, kind)
            return Decimal(0) if abs(timestamp) != INFINITY else None
        if abs(timestamp) == INFINITY:
            return _infinite(field, timestamp > 0)
        days, microseconds = divmod(timestamp, DAY)
        if field == "epoch":
            return Decimal(timestamp) / SECOND
        if field == "julian":
            return divided(Decimal(timestamp + 2_440_588 * DAY), Decimal(DAY), 20)
        number = _date_field(field, days)
        return time_field(field, microseconds) if number is None else Decimal(number)

    return field_of


def field_of_interval(name: str, interval: Interval) -> Decimal:
    """Return a field of an interval.

    Raises:
        SqlError: the type has no field of that name (22023 or 0A000).
    """
    field = field_named(name, Type.INTERVAL)
    years = _cut(interval.months, 12)
    months = interval.months - years * 12
    if field == "epoch":
        quarters_of_days = years * 1461 + months * 120 + interval.days * 4
        return (Decimal(quarters_of_days * 21_600 * SECOND) + interval.microseconds) / SECOND
    numbers = {
        "year": years,
        "month": months,
        "quarter": months // 3 + 1 if interval.months >= 0 else -(-months // 3 + 1),
        "week": _cut(interval.days, 7),
        "day": interval.days,
        "decade": _cut(years, 10),
        "century": _cut(years, 100),
        "millennium": _cut(years, 1000),
    }
    if field in numbers:
        return Decimal(numbers[field])
    time = time_field(field, abs(interval.microseconds))
    if time is None:
        raise unsupported_unit(name, Type.INTERVAL)
    return time.copy_negate() if interval.microseconds < 0 else time


def _year_begun(field: str, year: int) -> int:
    """Return the first year of a year's decade, century or millennium."""
    match field:
        case "decade":
            return year // 10 * 10
        case "century":
            return (year - 1) // 100 * 100 + 1
        case "millennium":
            return (year - 1) // 1000 * 1000 + 1
    return year


def _first_day(field: str, days: int) -> int:
    """Return the first day of a date's week, month, …."""
    if field == "day":
        return days
    if field == "week":
        return days - (days + 3) % 7
    date = civil_of(days)
    if field == "month":
        return days_of(date.year, date.month, 1)
    if field == "quarter":
        return days_of(date.year, (date.month - 1) // 3 * 3 + 1, 1)
    return days_of(_year_begun(field, date.year), 1, 1)


TIME_UNITS = {"microsecond": 1, "millisecond": 1000, "second": SECOND, "minute": MINUTE, "hour": HOUR}
"""Microseconds of the fields of the time of day."""


def _cut_to(name: str, kind: Type) -> str:
    """Return the field to which a value is truncated."""
    field = field_named(name, kind)
    if field in _SPECIAL:
        raise SqlError("22023", f'unit "{name.lower()}" not recognized for type {kind.value}')
    if field.startswith("timezone"):
        raise unsupported_unit(name, kind)
    return field


def truncation(kind: Type) -> Callable[[str, int], int]:
    """Return `date_trunc` of timestamps of a type."""

    def truncate(name: str, timestamp: int) -> int:
        field = _cut_to(name, kind)
        if abs(timestamp) == INFINITY:
            return timestamp
        if field in TIME_UNITS:
            return timestamp // TIME_UNITS[field] * TIME_UNITS[field]
        return checked_timestamp(_first_day(field, timestamp // DAY) * DAY)

    return truncate


def _truncated_in_zone(name: str, timestamp: int, zone_name: str) -> int:
    zone = zone_named(zone_name)
    if abs(timestamp) == INFINITY:
        return truncation(Type.TIMESTAMPTZ)(name, timestamp)
    offset = offset_at(zone, timestamp)
    cut = truncation(Type.TIMESTAMPTZ)(name, timestamp + offset)
    # An hour that occurs twice keeps its offset.
    return checked_timestamp(
        cut - (offset if _cut_to(name, Type.TIMESTAMPTZ) in TIME_UNITS else offset_of_local(zone, cut))
    )


_MONTHS = {"month": 1, "quarter": 3, "year": 12, "decade": 120, "century": 1200, "millennium": 12_000}


def _truncated_interval(name: str, interval: Interval) -> Interval:
    field = _cut_to(name, Type.INTERVAL)
    if field in _MONTHS:
        return Interval(_cut(interval.months, _MONTHS[field]) * _MONTHS[field], 0, 0)
    if field == "day":
        return Interval(interval.months, interval.days, 0)
    if field not in TIME_UNITS:
        raise unsupported_unit(name, Type.INTERVAL)
    unit = TIME_UNITS[field]
    return Interval(interval.months, interval.days, _cut(interval.microseconds, unit) * unit)


def _add_fields() -> None:
    define = FUNCTIONS.define
    fields: list[tuple[Type, Callable[..., Decimal | None]]] = [
        (Type.DATE, field_of_date),
        (Type.INTERVAL, field_of_interval),
        *((kind, _field_of_timestamp(kind)) for kind in TIMESTAMP_TYPES),
    ]
    for kind, field_of in fields:
        define("extract", (_T, kind), Type.NUMERIC)(field_of)
        if kind is not Type.DATE:
            define("date_part", (_T, kind), Type.DOUBLE)(_as_double(field_of))
    define("date_part", (_T, Type.DATE), Type.DOUBLE)(_as_double(_field_of_midnight))
    for kind in TIMESTAMP_TYPES:
        define("date_trunc", (_T, kind), kind)(truncation(kind))
    define("date_trunc", (_T, Type.TIMESTAMPTZ, _T), Type.TIMESTAMPTZ)(_truncated_in_zone)
    define("date_trunc", (_T, Type.INTERVAL), Type.INTERVAL)(_truncated_interval)


def _field_of_midnight(name: str, days: int) -> Decimal | None:
    return _field_of_timestamp(Type.TIMESTAMP)(name, timestamp_of_date(days))


def _as_double(field_of: Callable[..., Decimal | None]) -> Callable[..., float | None]:
    def as_double(name: str, value: object) -> float | None:
        number = field_of(name, value)
        return None if number is None else float(number)

    return as_double


_add_fields()


_M = Type.TIME


def _later(time: int, interval: Interval) -> int:
    return (time + interval.microseconds) % DAY


def _earlier_in_day(time: int, interval: Interval) -> int:
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


def _add_times_of_day() -> None:
    define = FUNCTIONS.define
    define("+", (_M, _V), _M, word="add", can_fail=False)(_later)
    define("+", (_V, _M), _M, word="add", can_fail=False)(lambda interval, time: _later(time, interval))
    define("-", (_M, _V), _M, word="subtract", can_fail=False)(_earlier_in_day)
    define("-", (_M, _M), _V, word="subtract", can_fail=False)(lambda left, right: Interval(0, 0, left - right))
    define("+", (_D, _M), Type.TIMESTAMP, word="add")(_timestamp_of)
    define("+", (_M, _D), Type.TIMESTAMP, word="add")(lambda time, days: _timestamp_of(days, time))
    define("extract", (_T, _M), Type.NUMERIC)(_field)
    define("date_part", (_T, _M), Type.DOUBLE)(lambda name, time: float(_field(name, time)))
    define("make_time", (_I, _I, Type.DOUBLE), _M)(_made)


_add_times_of_day()
