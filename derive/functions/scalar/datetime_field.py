"""Fields of dates, timestamps and intervals, as in `extract`, `date_part` and `date_trunc`."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

from derive.algebra.types import Type
from derive.errors import SqlError
from derive.functions.function import Functions
from derive.functions.scalar.casts import timestamp_of_date
from derive.functions.scalar.datetime import TIMESTAMP_TYPES, checked_timestamp
from derive.functions.types.datetime import (
    DATE_INFINITY,
    DAY,
    HOUR,
    INFINITY,
    MINUTE,
    SECOND,
    civil_of,
    days_of,
)
from derive.functions.types.interval import UNIT_OF, Interval
from derive.functions.types.numeric import divided
from derive.functions.types.time_zone import offset_at, offset_of_local, zone_named

FUNCTIONS = Functions()

_T = Type.TEXT
_FIELDS = {**UNIT_OF, "quarter": "quarter", "qtr": "quarter"} | {
    name: name for name in ("epoch", "dow", "doy", "isodow", "isoyear", "julian", "timezone")
}
_FIELDS |= {"timezone_h": "timezone_hour", "timezone_m": "timezone_minute"}
_FIELDS |= {name: name for name in ("timezone_hour", "timezone_minute")}
_MONOTONE = {"year", "decade", "century", "millennium", "epoch", "julian", "isoyear"}
"""Fields that are infinite for infinite values; other fields are NULL."""
TIME_FIELDS = {"hour", "minute", "second", "millisecond", "microsecond"}
"""Fields of the time of day."""
_SPECIAL = {"epoch", "dow", "doy", "isodow", "isoyear", "julian"}
"""Fields that values cannot be truncated to."""


def field_named(name: str, kind: Type) -> str:
    """Return the full name of a field.

    Raises:
        SqlError: 22023, there is no such field.
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
    """Return the century of a year, which counts without 0; year 0 is 1 BC."""
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
        SqlError: 22023 or 0A000, it has no such field.
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
        SqlError: 22023 or 0A000, it has no such field.
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


_UNITS = {"microsecond": 1, "millisecond": 1000, "second": SECOND, "minute": MINUTE, "hour": HOUR}


def _cut_to(name: str, kind: Type) -> str:
    """Return the field that a value is truncated to."""
    field = field_named(name, kind)
    if field in _SPECIAL:
        raise SqlError("22023", f'unit "{name.lower()}" not recognized for type {kind.value}')
    if field.startswith("timezone"):
        raise unsupported_unit(name, kind)
    return field


def _truncated(kind: Type) -> Callable[[str, int], int]:
    def truncate(name: str, timestamp: int) -> int:
        field = _cut_to(name, kind)
        if abs(timestamp) == INFINITY:
            return timestamp
        if field in _UNITS:
            return timestamp // _UNITS[field] * _UNITS[field]
        return checked_timestamp(_first_day(field, timestamp // DAY) * DAY)

    return truncate


def _truncated_in_zone(name: str, timestamp: int, zone_name: str) -> int:
    zone = zone_named(zone_name)
    if abs(timestamp) == INFINITY:
        return _truncated(Type.TIMESTAMPTZ)(name, timestamp)
    offset = offset_at(zone, timestamp)
    cut = _truncated(Type.TIMESTAMPTZ)(name, timestamp + offset)
    # An hour that occurs twice keeps its offset.
    return checked_timestamp(
        cut - (offset if _cut_to(name, Type.TIMESTAMPTZ) in _UNITS else offset_of_local(zone, cut))
    )


_MONTHS = {"month": 1, "quarter": 3, "year": 12, "decade": 120, "century": 1200, "millennium": 12_000}


def _truncated_interval(name: str, interval: Interval) -> Interval:
    field = _cut_to(name, Type.INTERVAL)
    if field in _MONTHS:
        return Interval(_cut(interval.months, _MONTHS[field]) * _MONTHS[field], 0, 0)
    if field == "day":
        return Interval(interval.months, interval.days, 0)
    if field not in _UNITS:
        raise unsupported_unit(name, Type.INTERVAL)
    unit = _UNITS[field]
    return Interval(interval.months, interval.days, _cut(interval.microseconds, unit) * unit)


def _add() -> None:
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
        define("date_trunc", (_T, kind), kind)(_truncated(kind))
    define("date_trunc", (_T, Type.TIMESTAMPTZ, _T), Type.TIMESTAMPTZ)(_truncated_in_zone)
    define("date_trunc", (_T, Type.INTERVAL), Type.INTERVAL)(_truncated_interval)


def _field_of_midnight(name: str, days: int) -> Decimal | None:
    return _field_of_timestamp(Type.TIMESTAMP)(name, timestamp_of_date(days))


def _as_double(field_of: Callable[..., Decimal | None]) -> Callable[..., float | None]:
    def as_double(name: str, value: object) -> float | None:
        number = field_of(name, value)
        return None if number is None else float(number)

    return as_double


_add()
